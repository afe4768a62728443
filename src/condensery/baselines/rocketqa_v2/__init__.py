"""RocketQAv2 (Ren et al. 2021): a retriever and a re-ranker that are trained together and learn from each other."""
