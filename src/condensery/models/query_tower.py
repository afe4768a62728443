"""The query encoder of a saved retriever in NumPy, for single queries: maps token ids to CLS vectors.

NumPy is used because importing torch takes longer than everything else in answering a query. Encoding one query takes only a
few small matrix products. The computation is that of ``Encoder``; a test compares its results with those of transformers. For
checkpoints that this module does not support, ``Encoder`` encodes the query with torch.

Symbols in shapes: n tokens of a query, d hidden size, i intermediate size, h heads, e = d / h.
"""

import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from condensery.errors import UserError
from condensery.models.checkpoints.metadata import read_about, saved_towers, vector_settings
from condensery.system.files import read_json

WEIGHTS = "model.safetensors"
FAMILIES = {  # tensor-name prefixes of backbone and MLM head in a checkpoint that was saved with its MLM head
    "bert": ("bert.", "cls.predictions."),
    "roberta": ("roberta.", "lm_head."),
    "xlm-roberta": ("roberta.", "lm_head."),
}
STORED = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}  # safetensors' dtypes; NumPy has no bf16

Vector = NDArray[np.float32]
Encode = Callable[[ArrayLike], Vector]  # token ids (n,) of a query, special tokens included -> vector (d,) of the query


def load_query_tower(folder: Path) -> tuple[Encode, int]:
    """Load the query encoder of a retriever's folder.

    Returns:
        the function that encodes a query, and the maximum query length in tokens that was used in training.

    Raises:
        UserError: the folder is not a checkpoint of a retriever.
    """
    length = int(read_about(folder, "query_length")["query_length"])
    passages, queries = saved_towers(folder)
    own = queries or passages
    tower = load_tower(own.folder, length) if vector_settings(folder).plain and not own.behind else None
    return tower.cls if tower else _by_library(folder), length


def _by_library(folder: Path) -> Encode:
    import torch

    from condensery.models.checkpoints.retrievers import load_retriever
    from condensery.tokens.batches import chunks

    encoder = load_retriever(folder).model.query.eval()

    def encode(ids: ArrayLike) -> Vector:
        row = np.asarray(ids)
        (chunk,) = chunks(row, [0, len(row)], budget=len(row), pad_id=0)  # a single row has no padding
        with torch.no_grad():
            return encoder.vectors(chunk)[0].float().numpy()

    return encode


@dataclass(frozen=True)
class Tower:
    """A BERT or RoBERTa backbone in NumPy.

    Attributes:
        weights: weights by their names in transformers.
        layers: number of layers.
        heads: number of attention heads.
        eps: epsilon of LayerNorm.
        offset: index of the first position's embedding in the table of position embeddings.
    """

    weights: Mapping[str, Vector]
    layers: int
    heads: int
    eps: float
    offset: int

    def cls(self, ids: ArrayLike) -> Vector:
        """Return the CLS state (d,) after the last layer for one row of token ids (n,)."""
        words, positions, types = (self.weights[name] for name in EMBEDDINGS)
        row = np.asarray(ids)
        states = words[row] + types[0] + positions[self.offset : self.offset + len(row)]  # (n, d)
        states = self._norm(states, "embeddings.LayerNorm")
        for layer in range(self.layers):  # the last layer is computed at the first token only
            states = self._layer(states, f"encoder.layer.{layer}.", 1 if layer + 1 == self.layers else len(row))
        return states[0]

    def _layer(self, states: Vector, layer: str, read: int) -> Vector:
        """Apply a post-norm layer to states (n, d); return the states (m, d) of the first m = ``read`` tokens."""
        query = self._by_head(states[:read], f"{layer}attention.self.query")  # (h, m, e)
        key, value = (self._by_head(states, f"{layer}attention.self.{name}") for name in ("key", "value"))
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[-1])  # (h, m, n)
        odds = np.exp(scores - scores.max(axis=-1, keepdims=True))  # (h, m, n)
        context = (odds / odds.sum(axis=-1, keepdims=True) @ value).transpose(1, 0, 2).reshape(read, -1)  # (m, d)
        attended = self._linear(context, f"{layer}attention.output.dense") + states[:read]  # (m, d)
        attended = self._norm(attended, f"{layer}attention.output.LayerNorm")
        inner = gelu(self._linear(attended, f"{layer}intermediate.dense"))  # (m, i)
        return self._norm(self._linear(inner, f"{layer}output.dense") + attended, f"{layer}output.LayerNorm")

    def _linear(self, states: Vector, name: str) -> Vector:
        return states @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def _by_head(self, states: Vector, name: str) -> Vector:
        """Project states (m, d) and split them into heads: (h, m, e)."""
        return self._linear(states, name).reshape(len(states), self.heads, -1).transpose(1, 0, 2)

    def _norm(self, states: Vector, name: str) -> Vector:
        centred = states - states.mean(axis=-1, keepdims=True)
        scale = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + self.eps)
        return centred / scale * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]


def gelu(values: Vector) -> Vector:
    """Compute GELU, x (1 + erf(x / sqrt(2))) / 2. For one query, Python's erf is faster than importing SciPy's."""
    erf = np.fromiter(map(math.erf, (values / math.sqrt(2)).ravel().tolist()), np.float32, values.size)
    return values * (0.5 * (1.0 + erf.reshape(values.shape)))


EMBEDDINGS = [f"embeddings.{name}_embeddings.weight" for name in ("word", "position", "token_type")]


def load_tower(folder: Path, length: int) -> Tower | None:
    """Load a folder's backbone for rows of up to ``length`` tokens; None if only transformers can run the backbone."""
    with suppress(UserError, OSError, ValueError, LookupError, TypeError, AttributeError, ZeroDivisionError):
        about = read_json(folder / "config.json")
        offset = 0 if about["model_type"] == "bert" else about["pad_token_id"] + 1  # as in ``families``
        whole = about["hidden_size"] % about["num_attention_heads"] == 0
        if not known(about) or not whole or offset + length > about["max_position_embeddings"]:
            return None
        weights = _of_backbone(read_weights(folder / WEIGHTS), about["model_type"])
        if {name: value.shape for name, value in weights.items()} != shapes(about):
            return None
        return Tower(weights, about["num_hidden_layers"], about["num_attention_heads"], about["layer_norm_eps"], offset)
    return None  # if something is wrong, transformers reports it with a better message


def _of_backbone(weights: Mapping[str, Vector], family: str) -> Mapping[str, Vector]:
    """Return the backbone's weights. If the checkpoint has an MLM head, the prefix of the backbone's names is removed."""
    prefix, head = FAMILIES[family]
    if all(name.startswith((prefix, head)) for name in weights):
        return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    return weights


def known(about: Mapping[str, Any]) -> bool:
    """Return whether ``Tower`` can run the model that a checkpoint's ``config.json`` describes."""
    plain = about.get("hidden_act") == "gelu" and about.get("position_embedding_type", "absolute") == "absolute"
    special = any(about.get(key) for key in ("is_decoder", "add_cross_attention", "quantization_config"))
    return about["model_type"] in FAMILIES and plain and not special


def shapes(about: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of a backbone's weights, according to its ``config.json``."""
    d, i = about["hidden_size"], about["intermediate_size"]
    rows = (about[key] for key in ("vocab_size", "max_position_embeddings", "type_vocab_size"))
    parts: dict[str, tuple[int, ...]] = {"embeddings.LayerNorm": (d,)}
    for layer in (f"encoder.layer.{number}" for number in range(about["num_hidden_layers"])):
        parts |= {
            f"{layer}.attention.{name}": (d, d) for name in ("self.query", "self.key", "self.value", "output.dense")
        }
        parts |= {f"{layer}.intermediate.dense": (i, d), f"{layer}.output.dense": (d, i)}
        parts |= {f"{layer}.attention.output.LayerNorm": (d,), f"{layer}.output.LayerNorm": (d,)}
    by_name = {f"{name}.weight": shape for name, shape in parts.items()}
    by_name |= {f"{name}.bias": shape[:1] for name, shape in parts.items()}
    return by_name | {name: (number, d) for name, number in zip(EMBEDDINGS, rows, strict=True)}


def read_weights(path: Path) -> dict[str, Vector]:
    """Return the tensors of a safetensors file in fp32. Tensors stored in fp32 are memory-mapped and read on demand.

    This function exists because safetensors' own reader for NumPy copies all tensors and does not support bf16. A file holds
    the length of the header in 8 bytes, then the header in JSON, then the tensors. The header gives the offsets at which
    each tensor begins and ends. For a file in another format, NumPy or json raises its own error.
    """
    raw = np.memmap(path, np.uint8, "r")
    start = 8 + int(raw[:8].view("<u8")[0])
    header = json.loads(raw[8:start].tobytes())
    tensors = {}
    for name, about in header.items():
        if name != "__metadata__":
            first, stop = about["data_offsets"]
            stored = raw[start + first : start + stop].view(STORED[about["dtype"]]).reshape(about["shape"])
            if about["dtype"] == "BF16":  # bf16 is the upper half of fp32
                stored = (stored.astype(np.uint32) << 16).view(np.float32)
            tensors[name] = np.asarray(stored, np.float32)
    return tensors
