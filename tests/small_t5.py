"""A random sequence-to-sequence model. It is so small that it generates a hundred queries per second."""

import json
from pathlib import Path
from typing import Any

import torch

from condensery.models.generator import save_generator, small_generator


def save_small_t5(folder: Path, tokenizer: Path, **config: Any) -> Path:
    """Save a T5 with the vocabulary of ``tokenizer``. Its logits vary so much that the generated queries differ.

    ``config``: changed values of its config files.
    """
    made = small_generator(tokenizer, layers=1, hidden=16, heads=2, intermediate=32, dropout=0.0, seed=3)
    with torch.no_grad():
        made.model.shared.weight.normal_(0, 1)
    save_generator(made, folder)
    for name in ("config.json", "generation_config.json"):
        saved = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**saved, **config}))
    return folder
