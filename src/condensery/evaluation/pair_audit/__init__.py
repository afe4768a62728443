"""The pair audit: contexts of pre-training, judged by people and ranked by BM25 (Wu et al. 2023, appendix A)."""
