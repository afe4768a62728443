"""Losses, and the gradient cache that trains large contrastive batches.

To add a loss of the bi-encoder, subclass ``RetrievalLoss`` and register the class by name: ``@register("my_loss")``.
"""
