"""COSTA (Ma et al. 2022): MLM, and a contrastive loss between a text and its spans of several granularities."""
