"""How a text becomes a vector, besides the weights: what is put before it, which states are pooled, the vector's length.

Imports no torch.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, Self, TypedDict

from pydantic import BaseModel, Field

Pooling = Literal["cls", "mean", "max", "last", "weighted_mean", "mean_sqrt_len"]
POOLED: dict[str, str] = {  # how cards and messages say it
    "cls": "the state of [CLS]",
    "mean": "the mean of all states",
    "max": "the largest of all states, number by number",
    "last": "the state of the last token",
    "weighted_mean": "the mean of all states, weighted by their places",
    "mean_sqrt_len": "the sum of all states over the root of their number",
}


class VectorOptions(TypedDict, total=False):
    """What a caller may set in place of what a checkpoint says; None = as it says."""

    pooling: Pooling | None
    normalise: bool | None
    truncate_dim: int | None
    query_prefix: str | None
    passage_prefix: str | None


@dataclass(frozen=True)
class VectorSettings:
    """How the vectors of a bi-encoder are made. The defaults are those of the papers' retrievers.

    Attributes:
        pooling: what is taken of the states after the last layer. ``cls``: that of [CLS]. ``mean``: the mean of those of
            all tokens of the row, [CLS], [SEP] and the prefix included, padding left out. ``max``: the largest of them,
            number by number. ``last``: that of the last token. ``weighted_mean``: their mean with the weights 1, 2, 3, ...
            from the first token on (SGPT, Muennighoff 2022). ``mean_sqrt_len``: their sum over the root of their number.
        normalise: divide the vector by its length, so that inner products are cosines.
        truncate_dim: how many of its first numbers a vector keeps, before it is normalised (Matryoshka, Kusupati et al.
            2022); None = all.
        query_prefix: put before the text of a query, as E5's "query: ".
        passage_prefix: put before a passage, and before its title where it has one.
    """

    pooling: Pooling = "cls"
    normalise: bool = False
    query_prefix: str = ""
    passage_prefix: str = ""
    truncate_dim: int | None = None

    def replaced(self, options: VectorOptions | Mapping[str, Any]) -> Self:
        """The same with those of ``options`` that are not None."""
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        return replace(self, **given)

    @property
    def plain(self) -> bool:
        """Whether a vector is the state of [CLS] as it is."""
        return self.pooling == "cls" and not self.normalise and self.truncate_dim is None

    def own(self) -> dict[str, Any]:
        """The entries that differ from the defaults, as ``condensery.json`` holds them."""
        return {name: value for name, value in asdict(self).items() if value != getattr(VectorSettings, name)}


@dataclass(frozen=True)
class DenseShape:
    """A linear layer behind the pooled states, from ``inputs`` numbers to ``outputs``, and its activation: a class in
    ``torch.nn``, see ``ACTIVATIONS``."""

    inputs: int
    outputs: int
    bias: bool = True
    activation: str = "Tanh"


# classes of torch.nn without arguments, and where torch keeps them
ACTIVATIONS: dict[str, str] = {
    "Identity": "torch.nn.modules.linear",
    **dict.fromkeys(
        ("Tanh", "ReLU", "GELU", "SiLU", "Sigmoid", "ELU", "LeakyReLU", "Mish", "Softplus", "Softsign", "SELU"),
        "torch.nn.modules.activation",
    ),
}

NAMES = tuple(field.name for field in fields(VectorSettings))


class VectorConfig(BaseModel):
    """The same as keys of a recipe; null, the default of each, takes what the checkpoint says.

    A key at null does not enter artifact ids, so that those of before there were such keys stay what they were.
    """

    pooling: Pooling | None = None
    normalise: bool | None = None
    truncate_dim: int | None = Field(default=None, ge=1)
    query_prefix: str | None = None
    passage_prefix: str | None = None

    def vector_options(self) -> VectorOptions:
        """The keys by themselves."""
        return VectorOptions(
            pooling=self.pooling,
            normalise=self.normalise,
            truncate_dim=self.truncate_dim,
            query_prefix=self.query_prefix,
            passage_prefix=self.passage_prefix,
        )

    def not_given(self) -> set[str]:
        """The keys that are null."""
        return {name for name, value in self.vector_options().items() if value is None}
