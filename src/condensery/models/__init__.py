"""Models that map token ids to vectors or logits. ``Encoder`` is the backbone; the other models use it."""
