"""Models: token ids to vectors or logits. ``Encoder`` is the backbone, ``Condenser`` pre-trains it, ``BiEncoder`` retrieves."""
