"""Losses, one file each, and the gradient cache through which contrastive batches are trained.

A new loss of the bi-encoder is a subclass of ``RetrievalLoss`` that is registered by name: ``@register("my_loss")``.
"""
