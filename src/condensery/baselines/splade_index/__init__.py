"""The index of sparse vectors over the vocabulary, which SPLADE (``splade``) searches."""
