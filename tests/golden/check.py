"""Hold our losses and gradients against a folder of reference numbers.

    python tests/golden/check.py DIR

``DIR`` holds config.json, state_dict.safetensors, inputs.npz, losses.json and grads_<run>.safetensors as the reference
implementation of Condenser and coCondenser produced them, in float64 and without dropout. For every run of the folder,
ours is computed by the code that trains: one model, one gradient cache. Prints a line a run and the worst relative
error of losses and of gradients; exits 0 when both are below 1e-9.

The reference's cached runs scale their losses in their own way (each chunk's MLM mean times spans / documents); that
scaling is repeated here, in ``ReferenceScaling``. Our own cached path is exact, so it is also held, for several chunk
sizes, against the reference's single pass.
"""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM

from condensery.losses.contrast import span_contrast
from condensery.losses.gradient_cache import backpropagate
from condensery.losses.mlm import MaskedPrediction
from condensery.models.condenser import Condenser, CondenserShape
from condensery.tokens.batches import Chunk

TOLERANCE = 1e-9
FILES = ("config.json", "inputs.npz", "losses.json", "state_dict.safetensors")


@dataclass
class Fixture:
    """One folder of reference numbers, opened."""

    config: dict[str, Any]
    weights: dict[str, Tensor]
    inputs: dict[str, Tensor]
    losses: dict[str, dict[str, float]]

    @classmethod
    def open(cls, folder: Path) -> "Fixture":
        inputs = {name: torch.from_numpy(array) for name, array in np.load(folder / "inputs.npz").items()}
        config, losses = (json.loads((folder / name).read_text()) for name in ("config.json", "losses.json"))
        return cls(config, load_file(folder / "state_dict.safetensors"), inputs, losses)

    def model(self, late_mlm: bool) -> Condenser:
        """The reference's model with the reference's weights, in float64 and training mode."""
        language_model = BertForMaskedLM(BertConfig(**self.config["bert"], attn_implementation="eager"))
        shape = CondenserShape(self.config["n_head_layers"], self.config["skip_from"], late_mlm)
        model = Condenser(language_model, shape).double().train()
        for part, prefix in ((language_model, "lm."), (model.head, "c_head.")):
            of_part = {n.removeprefix(prefix): value for n, value in self.weights.items() if n.startswith(prefix)}
            part.load_state_dict(of_part)
        return model

    def chunks(self, size: int) -> list[Chunk]:
        """The batch in chunks of ``size`` spans, in order; the last may be shorter."""
        return [self._chunk(rows) for rows in torch.arange(len(self.inputs["input_ids"])).split(size)]

    def _chunk(self, rows: Tensor) -> Chunk:
        lengths = self.inputs["attention_mask"][rows].sum(dim=1)
        longest = int(lengths.max())
        labels = self.inputs["labels"][rows, :longest].flatten()
        masked = (labels != -100).nonzero().flatten()
        ids = self.inputs["input_ids"][rows, :longest].contiguous()
        return Chunk(input_ids=ids, lengths=lengths, rows=rows, masked=masked, targets=labels[masked], tower=0)

    @property
    def masked(self) -> int:
        return int((self.inputs["labels"] != -100).sum())


class ReferenceScaling(MaskedPrediction):
    """Each chunk's MLM means times its spans over the batch's documents, as the reference's cached path has it."""

    def __init__(self, model: Condenser, documents: int) -> None:
        super().__init__(model, masked=1)
        self.documents = documents

    def encode(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        vectors, losses = self.model.encode(chunk)
        return vectors, {n: loss.mean() * len(chunk.rows) / self.documents for n, loss in losses.items()}


def run(fixture: Fixture, name: str) -> tuple[dict[str, Tensor], Condenser]:
    """Losses and the model with its gradients, for the reference run ``name``."""
    late = bool(fixture.config.get("late_mlm", True)) and not name.endswith("no_late_mlm")
    model = fixture.model(late)
    cached = re.fullmatch(r"cocondenser_gradcache_chunk(\d+)", name)
    if cached:
        encoder: MaskedPrediction = ReferenceScaling(model, fixture.config["docs"])
        losses = backpropagate(encoder, fixture.chunks(int(cached[1])), span_contrast)
    else:
        contrast = span_contrast if name.startswith("cocondenser") else None
        encoder = MaskedPrediction(model, fixture.masked)
        losses = backpropagate(encoder, fixture.chunks(fixture.config["spans"]), contrast)
    return losses, model


def named_losses(losses: dict[str, Tensor]) -> dict[str, float]:
    """Our losses under the reference's names."""
    names = {"mlm_late": "late_mlm", "mlm_head": "head_mlm", "contrast": "contrastive"}
    ours = {names[name]: float(value) for name, value in losses.items()}
    total = sum(ours.values())
    return {**ours, "total": total, "returned_loss": total, "check_2x_formula": total}


def loss_error(ours: dict[str, float], reference: dict[str, float]) -> float:
    """Worst relative error over the reference's losses; infinite where one is missing in ours that is not zero."""
    pairs = [(ours.get(name, float("inf") if value else 0.0), value) for name, value in reference.items()]
    return max(abs(own - value) / (abs(value) or 1.0) for own, value in pairs)


def named_gradients(model: Condenser) -> dict[str, Tensor]:
    """Our gradients under the reference's names; zeros where a parameter has none."""
    names = {r"^language_model\.": "lm.", r"^head\.": "c_head.", r"^encoder\.model\.": "lm.bert."}
    found = {}
    for name, parameter in model.named_parameters():
        for ours, theirs in names.items():
            name = re.sub(ours, theirs, name)
        found[name] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    return found


def gradient_error(model: Condenser, reference: dict[str, Tensor]) -> float:
    """Worst error over the tensors: largest difference over the tensor's largest entry.

    A gradient that is zero but for rounding (of the key biases, since softmax ignores a constant) is measured against a
    millionth of the largest gradient. A parameter without a counterpart counts as infinitely wrong.
    """
    ours = named_gradients(model)
    if ours.keys() != reference.keys():
        print(f"parameters without a counterpart: {sorted(ours.keys() ^ reference.keys())}")
        return float("inf")
    floor = 1e-6 * max(float(value.abs().max()) for value in reference.values())
    worst = 0.0
    for name, value in reference.items():
        worst = max(worst, float((ours[name] - value).abs().max()) / max(float(value.abs().max()), floor))
    return worst


def main(folder: Path) -> int:
    """Check every run of the folder; 0 when all agree."""
    missing = [name for name in FILES if not (folder / name).is_file()]
    runs = sorted(folder.glob("grads_*.safetensors"))
    if missing or not runs:
        print(f"error: {folder}: no {', '.join(missing or ['grads_*.safetensors'])}")
        return 1
    fixture = Fixture.open(folder)
    worst_loss = worst_gradient = 0.0
    for path in runs:
        name = path.stem.removeprefix("grads_")
        losses, model = run(fixture, name)
        of_losses = loss_error(named_losses(losses), fixture.losses[name])
        of_gradients = gradient_error(model, load_file(path))
        print(f"{name:32} loss error {of_losses:.1e}   gradient error {of_gradients:.1e}")
        worst_loss, worst_gradient = max(worst_loss, of_losses), max(worst_gradient, of_gradients)
    plain = folder / "grads_cocondenser_plain.safetensors"
    for size in (1, 4, 5, fixture.config["spans"] - 1) if plain.exists() else ():
        model = fixture.model(bool(fixture.config.get("late_mlm", True)))
        losses = backpropagate(MaskedPrediction(model, fixture.masked), fixture.chunks(size), span_contrast)
        of_losses = loss_error(named_losses(losses), fixture.losses["cocondenser_plain"])
        of_gradients = gradient_error(model, load_file(plain))
        print(f"{f'ours, chunks of {size}, exact':32} loss error {of_losses:.1e}   gradient error {of_gradients:.1e}")
        worst_loss, worst_gradient = max(worst_loss, of_losses), max(worst_gradient, of_gradients)
    print(f"worst relative error: losses {worst_loss:.2e}, gradients {worst_gradient:.2e} (tolerance {TOLERANCE:.0e})")
    return 0 if worst_loss < TOLERANCE and worst_gradient < TOLERANCE else 1


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        print("usage: python tests/golden/check.py DIR", file=sys.stderr)
        sys.exit(1)
    sys.exit(main(Path(sys.argv[1])))
