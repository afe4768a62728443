"""BM25 over passages with generated queries: docT5query (Nogueira and Lin 2019), doc2query-- (Gospodinov et al. 2023)."""
