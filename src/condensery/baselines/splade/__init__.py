"""SPLADE: a text is a sparse vector over the vocabulary, from the logits of its masked language model.

The index that it searches is in ``splade_index``.
"""
