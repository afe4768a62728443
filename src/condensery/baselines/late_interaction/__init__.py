"""Retrievers that compare the vectors of tokens: ColBERT, COIL and ME-BERT.

The index that they search is in ``late_interaction_index``.
"""
