"""The numbers that the public classes take. An argument of one name means the same, and has one range, wherever it stands.

Stages check the keys of a recipe before; these checks are for programs that use the classes themselves.
"""

import math
import numbers
from collections.abc import Mapping
from typing import Any, NamedTuple

from condensery.errors import UserError, shown


class Range(NamedTuple):
    """Which numbers an argument may have.

    Attributes:
        least: the smallest.
        most: the largest.
        whole: no fractions.
        above: ``least`` itself is too small.
    """

    least: float
    most: float = math.inf
    whole: bool = False
    above: bool = False

    def fault(self, value: Any) -> str | None:
        """What the value must be; None where it is."""
        kind = numbers.Integral if self.whole else numbers.Real
        right = isinstance(value, kind) and not isinstance(value, bool) and math.isfinite(value)
        if right and self.least <= value <= self.most and not (self.above and value == self.least):
            return None
        bounds = [f"{'>' if self.above else '>='} {self.least:g}"] if self.least > -math.inf else []
        bounds += [f"<= {self.most:g}"] if self.most < math.inf else []
        return " ".join(["whole number" if self.whole else "number", *filter(None, [" and ".join(bounds)])])


_COUNT, _COUNT_OR_NONE, _SHARE = Range(1, whole=True), Range(0, whole=True), Range(0, 1)
_POSITIVE, _WEIGHT = Range(0, above=True), Range(0)

RANGES = {
    "b": _SHARE,
    "batch_size": _COUNT,
    "below_margin": _WEIGHT,
    "below_score": Range(-math.inf),
    "below_share": Range(0, 1, above=True),
    "candidates": _COUNT,
    "chunk_tokens": _COUNT,
    "contrast_weight": _WEIGHT,
    "decoder_layers": _COUNT,
    "decoder_mask_rate": _SHARE,
    "depth": _COUNT,
    "dropout": _SHARE,
    "head_layers": _COUNT_OR_NONE,
    "k": _COUNT,
    "k1": _WEIGHT,
    "keep_sentence": _SHARE,
    "layer_decay": Range(0, 1, above=True),
    "learning_rate": _POSITIVE,
    "length": Range(3, whole=True),
    "margin": _WEIGHT,
    "mask_rate": Range(0, 1, above=True),
    "max_grad_norm": _WEIGHT,
    "min_length": _COUNT,
    "mining_depth": _COUNT,
    "mixed_context": _SHARE,
    "mlm_weight": _WEIGHT,
    "negatives_per_query": _COUNT_OR_NONE,
    "passage_length": Range(3, whole=True),
    "query_length": Range(3, whole=True),
    "shared_negatives": _COUNT_OR_NONE,
    "short_probability": _SHARE,
    "skip_from": _COUNT_OR_NONE,
    "teacher_temperature": _POSITIVE,
    "temperature": _POSITIVE,
    "text_batch_size": _COUNT,
    "train_queries": _COUNT,
    "warmup_ratio": _SHARE,
    "weight_decay": _WEIGHT,
    "windows": _COUNT,
    "workers": _COUNT_OR_NONE,
}


def check_numbers(owner: str, given: Mapping[str, Any]) -> None:
    """Raise ``UserError`` for the first number of ``given`` that is not in its range; None and other names are passed over.

    Args:
        owner: the class or function that they were given to.
        given: by name; a mapping among them, such as keywords that are passed on, is looked through as well.
    """
    for value in given.values():
        if isinstance(value, Mapping):
            check_numbers(owner, value)
    if wrong := fault(given):
        raise UserError(f"{owner}: {wrong}")


def fault(given: Mapping[str, Any]) -> str | None:
    """What the first number of ``given`` must be that is not in its range; None where all are."""
    for name, value in given.items():
        wanted = RANGES[name].fault(value) if name in RANGES and value is not None else None
        if wanted:
            return f"{name} must be a {wanted}, not {shown(repr(value))}"
    return None


def no_room(query_length: int, length: int, key: str = "length") -> str | None:
    """What is wrong where the longest query leaves a pair's row of ``length`` tokens no passage; None where it does.

    A passage has four tokens of the row at least, its separators included. ``key``: what the length is called.
    """
    if query_length <= length - 4:
        return None
    return f"query_length={query_length} leaves no room for a passage in {key}={length}; give it {key} - 4 at most"
