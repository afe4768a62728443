"""SEED (Lu et al. 2021): MLM, and a weak auto-regressive decoder, which sees the CLS vector and a few past tokens."""
