"""The index of token vectors, which ColBERT, COIL and ME-BERT (``late_interaction``) search."""
