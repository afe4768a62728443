"""COSTA (Ma et al. 2022): MLM, and a contrast of a text's vector with the vectors of its spans of several granularities."""
