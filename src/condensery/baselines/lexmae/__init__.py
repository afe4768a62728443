"""LexMAE (Shen et al. 2022): MLM, and a weak decoder that sees the text through a bag of words from the encoder's logits."""
