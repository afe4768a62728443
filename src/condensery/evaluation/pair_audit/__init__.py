"""The pair audit: people and BM25 rate how related a passage and its context are (Wu et al. 2023, appendix A)."""
