"""Estimates of a stage's work from its config and the sizes of its inputs, for ``dry_run``.

``StageConfig.work`` returns the estimate. Sizes are passed from stage to stage along the recipe; a finished artifact gives
its actual sizes. A number that cannot be known in advance is None and is shown as unknown.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from condensery.models.checkpoints.config import BackboneConfig
from condensery.models.flops import EncoderSize, Step
from condensery.system.files import expanded, read_json
from condensery.text.sizes import CollectionSizes, SentenceSizes

QUESTION = 12.0  # tokens of a query with [CLS] and [SEP]; without them, 8 in MS MARCO and 10 in Natural Questions

Read = Mapping[str, Sequence["Sizes"]]
"""Sizes of the input artifacts, by the field of the config that names their stages."""


@dataclass(frozen=True)
class Sizes:
    """The known sizes of an artifact and of its inputs.

    Attributes:
        collection: sizes of the texts.
        vocabulary: vocabulary size of the tokenizer.
        encoder: sizes of the encoder.
        passage_length: maximum tokens of a passage for the encoder.
        same_passages: whether training changed only the query tower, so that passage vectors did not change.
        dimensions: dimensions of an index's vectors; 0 = a lexical index.
        token_numbers, token_vectors: for an encoder of token vectors, the numbers and the vectors that it makes per passage.
        members: the indexes that a fused index combines.
        negatives: total number of mined negatives, over all queries.
        sentences: sizes of the examples of a sentence task.
    """

    collection: CollectionSizes = field(default_factory=CollectionSizes)
    vocabulary: int | None = None
    encoder: EncoderSize | None = None
    passage_length: int | None = None
    same_passages: bool | None = None
    dimensions: int | None = None
    token_numbers: float | None = None
    token_vectors: float | None = None
    members: "tuple[Sizes, ...] | None" = None
    negatives: float | None = None
    sentences: SentenceSizes | None = None

    @property
    def text_tokens(self) -> float | None:
        """Mean tokens of a pre-training text."""
        texts = self.collection
        return texts.passage_tokens if texts.documents is None else texts.document_tokens

    @property
    def tokens(self) -> float | None:
        """Total tokens of all pre-training texts."""
        texts = self.collection
        return product(texts.passages if texts.documents is None else texts.documents, self.text_tokens)


def over(first: Any, second: Any) -> Any:
    """Merge two records of one type: the known values of ``second``, and otherwise the values of ``first``."""
    values = {}
    for each in fields(first):
        old, new = getattr(first, each.name), getattr(second, each.name)
        if isinstance(new, CollectionSizes):
            values[each.name] = over(old, new)
        else:
            values[each.name] = old if new is None or new == {} else new
    return replace(first, **values)


def known(read: Read, *names: str) -> Sizes:
    """Merge the sizes of the inputs in the fields ``names`` (default: all). If two values differ, the later is used."""
    merged = Sizes()
    for name in names or read:
        for sizes in read.get(name, ()):
            merged = over(merged, sizes)
    return merged


def product(*numbers: float | None) -> float | None:
    """Return the product of the numbers; None if one of them is unknown."""
    given = [number for number in numbers if number is not None]
    return math.prod(given, start=1.0) if len(given) == len(numbers) else None


def total(numbers: Sequence[float | None]) -> float | None:
    """Return the sum of the numbers; None if one of them is unknown."""
    given = [number for number in numbers if number is not None]
    return sum(given, 0.0) if len(given) == len(numbers) else None


@dataclass(frozen=True)
class Work:
    """An estimate of a stage's work.

    Attributes:
        makes: the sizes of the stage's artifact.
        steps: number of repetitions of ``step``; for training, the number of steps.
        step: matrix products of an encoder; None = there are none, or they are unknown.
        products: FLOPs of further large matrix products, such as those of exact search.
        seconds: approximate seconds on one core for everything except matrix products, measured on an EPYC (Zen 5).
        disk: bytes of the artifact.
    """

    makes: Sizes = field(default_factory=Sizes)
    steps: float | None = None
    step: Step | None = None
    products: float | None = 0.0
    seconds: float | None = None
    disk: float | None = None

    @property
    def known(self) -> bool:
        """Whether all parts of the estimate are known."""
        return None not in (self.seconds, self.products) and (self.step is None) == (self.steps is None)

    @property
    def tokens(self) -> float | None:
        """Tokens that the encoder reads in all, without padding."""
        return None if self.step is None else product(self.steps, self.step.tokens)

    @property
    def step_flops(self) -> float:
        """FLOPs of all steps; 0 if there are no steps, or their FLOPs are unknown."""
        return self.step.flops * (self.steps or 0.0) if self.step else 0.0

    @property
    def flops(self) -> float | None:
        """FLOPs of all matrix products."""
        return (self.products or 0.0) + self.step_flops if self.known else None


def encoder_size(backbone: BackboneConfig, vocabulary: int | None) -> EncoderSize:
    """Return the sizes of a backbone: from the config.json of its folder, otherwise from the recipe's config."""
    size = released_size(backbone.name) if backbone.name else None
    if size is None:
        words = vocabulary or backbone.vocab_size
        size = EncoderSize(backbone.layers, backbone.hidden, backbone.intermediate, backbone.heads, words)
    return size if backbone.dropout is None else replace(size, dropout=backbone.dropout)


def released_size(folder: str | Path) -> EncoderSize | None:
    """Return the sizes of a checkpoint from its config.json; None if the file is missing or lacks the sizes."""
    path = expanded(str(folder)) / "config.json"
    about = read_json(path) if path.is_file() else {}
    names = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
    if not all(isinstance(about.get(name), int) for name in names):
        return None
    return EncoderSize(*(about[name] for name in names))


def with_encoder(sizes: Sizes, backbone: BackboneConfig, passage_length: int | None = None) -> Sizes:
    """Return ``sizes`` with an encoder: the encoder of an earlier stage, or otherwise ``backbone``."""
    size = sizes.encoder or encoder_size(backbone, sizes.vocabulary)
    return replace(sizes, encoder=size, passage_length=passage_length)


def checkpoint_bytes(sizes: Sizes, further_layers: int = 0) -> float | None:
    """Return the bytes of a checkpoint in fp32, with ``further_layers`` Transformer layers besides the encoder's layers."""
    size = sizes.encoder
    if size is None:
        return None
    return 4.0 * (size.parameters + further_layers * size.hidden * (4 * size.hidden + 2 * size.intermediate))


class Search(NamedTuple):
    """The work of searching.

    Attributes:
        products: FLOPs of large matrix products, as in ``Work``.
        seconds: seconds on one core for the rest, as in ``Work``.
    """

    products: float | None
    seconds: float | None


def search(index: Sizes, queries: float | None, depth: int) -> Search:
    """Return the work of retrieving the ``depth`` best passages for each of ``queries`` queries.

    Vector search compares every query with every passage; lexical search compares pairs that share a word. The retrieved
    passages are sorted and written.
    """
    if index.members is not None:
        return together(search(member, queries, depth) for member in index.members)
    pairs, writing = product(queries, index.collection.passages), product(5e-6 * depth, queries)
    if index.dimensions is None:
        return Search(None, None)
    if index.dimensions == 0:
        return Search(0.0, total([product(4e-9, pairs), writing]))
    return Search(product(2.0 * index.dimensions, pairs), total([product(4e-10, pairs), writing]))


def together(searches: Iterable[Search]) -> Search:
    """Return the total work of several consecutive searches."""
    products, seconds = zip(*searches, strict=True)
    return Search(total(products), total(seconds))
