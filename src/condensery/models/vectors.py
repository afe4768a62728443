"""The settings with which the vector of a text is computed: prefix, pooling, truncation and normalisation.

This file imports no torch.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, Self, TypedDict, cast

from condensery.keys import Keys
from condensery.ranges import Count

Pooling = Literal["cls", "mean", "max", "last", "weighted_mean", "mean_sqrt_len"]
POOLED: dict[str, str] = {  # pooling -> its description in cards and messages
    "cls": "the state of [CLS]",
    "mean": "the mean of all states",
    "max": "the maximum of all states in each dimension",
    "last": "the state of the last token",
    "weighted_mean": "the mean of all states, weighted by their positions",
    "mean_sqrt_len": "the sum of all states divided by the square root of their number",
}


class VectorOptions(TypedDict, total=False):
    """Settings that replace a checkpoint's own settings; None = the checkpoint's own setting."""

    pooling: Pooling | None
    normalise: bool | None
    truncate_dim: Count | None
    query_prefix: str | None
    passage_prefix: str | None


@dataclass(frozen=True)
class VectorSettings:
    """The settings with which a bi-encoder computes vectors. The defaults are those of the papers' retrievers.

    Attributes:
        pooling: how a row's token states after the last layer are reduced to one vector. [CLS], [SEP] and the tokens of the
            prefix are included, padding is not. ``cls``: the state of [CLS]. ``mean``: the mean of all states. ``max``: the
            maximum of all states in each dimension. ``last``: the state of the last token. ``weighted_mean``: the mean of all
            states with the weights 1, 2, 3, ... from the first token on (SGPT, Muennighoff 2022). ``mean_sqrt_len``: the sum
            of all states divided by the square root of their number.
        normalise: whether vectors are divided by their L2 norm, so that inner products are cosines.
        truncate_dim: number of leading dimensions that are kept (Matryoshka, Kusupati et al. 2022). Vectors are truncated
            before they are normalised. None = all dimensions.
        query_prefix: string put before a query, such as E5's "query: ".
        passage_prefix: string put before a passage, and before the passage's title if there is one.
    """

    pooling: Pooling = "cls"
    normalise: bool = False
    query_prefix: str = ""
    passage_prefix: str = ""
    truncate_dim: int | None = None

    def replaced(self, options: VectorOptions | Mapping[str, Any]) -> Self:
        """Return a copy in which the ``options`` that are not None replace the settings."""
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        return replace(self, **given)

    @property
    def plain(self) -> bool:
        """Whether a vector is the unchanged state of [CLS]."""
        return self.pooling == "cls" and not self.normalise and self.truncate_dim is None

    def own(self) -> dict[str, Any]:
        """Return the settings that differ from the defaults, as they are stored in ``condensery.json``."""
        return {name: value for name, value in asdict(self).items() if value != getattr(VectorSettings, name)}


@dataclass(frozen=True)
class DenseShape:
    """The shape of a linear layer after pooling, from ``inputs`` to ``outputs`` dimensions.

    ``activation`` is the name of a class in ``torch.nn``, one of ``ACTIVATIONS``.
    """

    inputs: int
    outputs: int
    bias: bool = True
    activation: str = "Tanh"


@dataclass(frozen=True)
class NormShape:
    """The shape of a layer normalisation after pooling, with a learned scale and offset for each of its ``inputs``."""

    inputs: int
    outputs: int  # equal to ``inputs``


LayerShape = DenseShape | NormShape
# classes of torch.nn that need no arguments -> the module of torch that defines them
ACTIVATIONS: dict[str, str] = {
    "Identity": "torch.nn.modules.linear",
    **dict.fromkeys(
        ("Tanh", "ReLU", "GELU", "SiLU", "Sigmoid", "ELU", "LeakyReLU", "Mish", "Softplus", "Softsign", "SELU"),
        "torch.nn.modules.activation",
    ),
}

NAMES = tuple(field.name for field in fields(VectorSettings))


class VectorConfig(Keys):
    """The vector settings as keys of a recipe. The default of each key is null, which means the checkpoint's own setting.

    An artifact id does not depend on a key that is null. So artifact ids from before these keys existed stay valid.
    """

    pooling: Pooling | None = None
    normalise: bool | None = None
    truncate_dim: Count | None = None
    query_prefix: str | None = None
    passage_prefix: str | None = None

    def vector_options(self) -> VectorOptions:
        """Return the keys as ``VectorOptions``."""
        return cast(VectorOptions, {name: getattr(self, name) for name in NAMES})

    def not_given(self) -> set[str]:
        """Return the names of the keys that are null."""
        return {name for name, value in self.vector_options().items() if value is None}
