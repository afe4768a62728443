"""DeepCT: a regressor on BERT's states gives each word of a passage its term frequency in BM25 (Dai and Callan 2019)."""
