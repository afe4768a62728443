"""SPLADE and ColBERT that were trained elsewhere, loaded unchanged.

The indexes that they search are in ``splade_index`` and ``late_interaction_index``.
"""
