"""Objectives: what is minimised, and the one gradient cache through which contrastive batches are trained."""
