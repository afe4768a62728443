"""Models: token ids to vectors or logits. ``Encoder`` is the backbone, ``Condenser`` and ``BiEncoder`` use it."""
