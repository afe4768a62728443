"""Losses, one file each, and the one gradient cache through which contrastive batches are trained.

A new loss of the bi-encoder is a subclass of ``RetrievalLoss`` with a name: ``@register("my_loss")``.
"""
