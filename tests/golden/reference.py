"""The part of the reference numbers that stands in the repository, so that a checkout by itself is held against them.

    python tests/golden/reference.py DIR

reads the folder that ``check.py`` reads, and writes ``reference.json`` beside this file: the configuration, the batch, the
losses of every run and the norm of each gradient, all as the reference implementation gives them. The weights are
rounded to 16 bits, which keeps the file near 200 kB. The rounding moves losses by less than 4e-6 and norms by less
than 1e-4, so the bounds here are wider than the 1e-9 of ``check.py``.
"""

import base64
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from check import Fixture, loss_error, named_gradients, named_losses, run
from safetensors.torch import load_file
from torch import Tensor

PLACE = Path(__file__).with_name("reference.json")
LOSS_TOLERANCE = 1e-5
NORM_TOLERANCE = 1e-3
LARGEST = 2**15 - 1
TIED = {  # the copy -> the parameter that it is
    "lm.cls.predictions.decoder.weight": "lm.bert.embeddings.word_embeddings.weight",
    "lm.cls.predictions.decoder.bias": "lm.cls.predictions.bias",
}


def rounded(weight: Tensor) -> dict[str, Any]:
    """A float64 tensor as multiples of a step, in little-endian 16-bit integers."""
    step = float(weight.abs().max()) / LARGEST
    multiples = (weight / step).round().numpy().astype("<i2")
    return {"shape": list(weight.shape), "step": step, "multiples": base64.b64encode(multiples.tobytes()).decode()}


def restored(entry: dict[str, Any]) -> Tensor:
    """What ``rounded`` keeps of a tensor, in float64."""
    multiples = np.frombuffer(base64.b64decode(entry["multiples"]), "<i2").astype(np.float64)
    return torch.from_numpy(multiples * entry["step"]).reshape(entry["shape"])


def write(folder: Path, place: Path) -> None:
    """Write the small part of a folder of reference numbers."""
    whole = Fixture.open(folder)
    kept = {name: value for name, value in whole.weights.items() if name not in TIED and value.is_floating_point()}
    norms = {}
    for path in sorted(folder.glob("grads_*.safetensors")):
        gradients = load_file(path)
        norms[path.stem.removeprefix("grads_")] = {name: float(value.norm()) for name, value in gradients.items()}
    small = {
        "config": whole.config,
        "inputs": {name: whole.inputs[name].tolist() for name in ("input_ids", "attention_mask", "labels")},
        "losses": whole.losses,
        "gradient_norms": norms,
        "weights": {name: rounded(value) for name, value in kept.items()},
    }
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in small.items()]
    place.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def read(place: Path) -> tuple[Fixture, dict[str, dict[str, float]]]:
    """The small part as ``check.py`` reads a whole folder, and the norm of each gradient of each run."""
    small = json.loads(place.read_text())
    weights = {name: restored(entry) for name, entry in small["weights"].items()}
    weights |= {copy: weights[name] for copy, name in TIED.items()}
    inputs = {name: torch.tensor(values) for name, values in small["inputs"].items()}
    return Fixture(small["config"], weights, inputs, small["losses"]), small["gradient_norms"]


def errors(fixture: Fixture, name: str, norms: dict[str, float]) -> tuple[float, float]:
    """Worst relative error of the losses of a run, and of its gradients' norms.

    A norm that is zero but for rounding is measured against a millionth of the largest.
    """
    losses, model = run(fixture, name)
    ours = {parameter: float(gradient.norm()) for parameter, gradient in named_gradients(model).items()}
    if ours.keys() != norms.keys():
        return loss_error(named_losses(losses), fixture.losses[name]), float("inf")
    floor = 1e-6 * max(norms.values())
    of_norms = max(abs(ours[parameter] - value) / max(value, floor) for parameter, value in norms.items())
    return loss_error(named_losses(losses), fixture.losses[name]), of_norms


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        print("usage: python tests/golden/reference.py DIR", file=sys.stderr)
        sys.exit(1)
    write(Path(sys.argv[1]), PLACE)
