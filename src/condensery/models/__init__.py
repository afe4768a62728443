"""Models: token ids to vectors or logits. ``Encoder`` is the backbone; the others use it."""
