"""How a text becomes a vector, besides the weights: what is put before it, which states are pooled, the vector's length.

Imports no torch.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, Self, TypedDict

from pydantic import BaseModel

Pooling = Literal["cls", "mean"]


class VectorOptions(TypedDict, total=False):
    """What a caller may set in place of what a checkpoint says; None = as it says."""

    pooling: Pooling | None
    normalise: bool | None
    query_prefix: str | None
    passage_prefix: str | None


@dataclass(frozen=True)
class VectorSettings:
    """How the vectors of a bi-encoder are made. The defaults are those of the papers' retrievers.

    Attributes:
        pooling: ``cls``: the state of [CLS] after the last layer. ``mean``: the mean of the states of all tokens of the
            row, [CLS], [SEP] and the prefix included, padding left out.
        normalise: divide the vector by its length, so that inner products are cosines.
        query_prefix: put before the text of a query, as E5's "query: ".
        passage_prefix: put before a passage, and before its title where it has one.
    """

    pooling: Pooling = "cls"
    normalise: bool = False
    query_prefix: str = ""
    passage_prefix: str = ""

    def replaced(self, options: VectorOptions | Mapping[str, Any]) -> Self:
        """The same with those of ``options`` that are not None."""
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        return replace(self, **given)

    def own(self) -> dict[str, Any]:
        """The entries that differ from the defaults, as ``condensery.json`` holds them."""
        return {name: value for name, value in asdict(self).items() if value != getattr(VectorSettings, name)}


NAMES = tuple(field.name for field in fields(VectorSettings))


class VectorConfig(BaseModel):
    """The same as keys of a recipe; null, the default of each, takes what the checkpoint says.

    A key at null does not enter artifact ids, so that those of before there were such keys stay what they were.
    """

    pooling: Pooling | None = None
    normalise: bool | None = None
    query_prefix: str | None = None
    passage_prefix: str | None = None

    def vector_options(self) -> VectorOptions:
        """The keys by themselves."""
        return VectorOptions(
            pooling=self.pooling,
            normalise=self.normalise,
            query_prefix=self.query_prefix,
            passage_prefix=self.passage_prefix,
        )

    def not_given(self) -> set[str]:
        """The keys that are null."""
        return {name for name, value in self.vector_options().items() if value is None}
