"""GAR (Mao et al. 2021): BM25 searches with queries to which a generator adds an answer, a sentence and a title."""
