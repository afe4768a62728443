"""The pair audit: how related the contexts of pre-training are, by people and BM25 (Wu et al. 2023, appendix A)."""
