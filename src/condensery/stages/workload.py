"""What a stage will have to do, as far as its config and the sizes of what it reads tell: for ``dry_run``.

A stage's config says it in ``StageConfig.work``. Sizes go from stage to stage along the recipe, and are those of the
artifact where it is at hand. What nobody can know before is None, and is shown as unknown.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from condensery.models.checkpoints.config import BackboneConfig
from condensery.models.flops import EncoderSize, Step
from condensery.system.files import expanded, read_json
from condensery.text.sizes import CollectionSizes, SentenceSizes

QUESTION = 12.0  # tokens of a query, [CLS] and [SEP] included: MS MARCO's have 8 without them, Natural Questions' 10

Read = Mapping[str, Sequence["Sizes"]]
"""By field of a config that names stages: the sizes of what these make."""


@dataclass(frozen=True)
class Sizes:
    """What is known of an artifact and of what it was made from.

    Attributes:
        collection: the texts.
        vocabulary: entries of the tokenizer.
        encoder: sizes of the encoder.
        passage_length: tokens of the longest passage that the encoder reads.
        same_passages: whether of a training only the tower of queries has changed since.
        dimensions: of an index's vectors; 0 = it is searched by words.
        members: of an index that joins others.
        negatives: that were mined for all queries together.
        sentences: examples of a sentence task.
    """

    collection: CollectionSizes = field(default_factory=CollectionSizes)
    vocabulary: int | None = None
    encoder: EncoderSize | None = None
    passage_length: int | None = None
    same_passages: bool | None = None
    dimensions: int | None = None
    members: "tuple[Sizes, ...] | None" = None
    negatives: float | None = None
    sentences: SentenceSizes | None = None

    @property
    def text_tokens(self) -> float | None:
        """Of a text that is pre-trained on, the mean."""
        texts = self.collection
        return texts.passage_tokens if texts.documents is None else texts.document_tokens

    @property
    def tokens(self) -> float | None:
        """Of all texts that are pre-trained on."""
        texts = self.collection
        return product(texts.passages if texts.documents is None else texts.documents, self.text_tokens)


def over(first: Any, second: Any) -> Any:
    """Two records of one kind joined: what ``second`` knows, and otherwise ``first``."""
    values = {}
    for each in fields(first):
        old, new = getattr(first, each.name), getattr(second, each.name)
        if isinstance(new, CollectionSizes):
            values[each.name] = over(old, new)
        else:
            values[each.name] = old if new is None or new == {} else new
    return replace(first, **values)


def known(read: Read, *names: str) -> Sizes:
    """All that is known of what the fields ``names``, by default all, read; of two that differ the later counts."""
    merged = Sizes()
    for name in names or read:
        for sizes in read.get(name, ()):
            merged = over(merged, sizes)
    return merged


def product(*numbers: float | None) -> float | None:
    """Their product; None where one is not known."""
    result = 1.0
    for number in numbers:
        if number is None:
            return None
        result *= number
    return result


def total(numbers: Iterable[float | None]) -> float | None:
    """Their sum; None where one is not known."""
    result = 0.0
    for number in numbers:
        if number is None:
            return None
        result += number
    return result


@dataclass(frozen=True)
class Work:
    """What a stage does.

    Attributes:
        makes: the sizes of its artifact.
        steps: how often ``step`` is done; of training its steps.
        step: matrix products of an encoder; None = there are none, or they are not known.
        products: operations of large products besides, as those of exact search.
        seconds: on one core, of all that is no matrix product; about, measured on an EPYC (Zen 5).
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
        """Whether all of it is known."""
        return None not in (self.seconds, self.products) and (self.step is None) == (self.steps is None)

    @property
    def tokens(self) -> float | None:
        """That the encoder reads in all, padding not counted."""
        return None if self.step is None else product(self.steps, self.step.tokens)

    @property
    def flops(self) -> float | None:
        """Operations of all matrix products."""
        if not self.known:
            return None
        return (self.products or 0.0) + (self.step.flops * (self.steps or 0.0) if self.step else 0.0)


def encoder_size(backbone: BackboneConfig, vocabulary: int | None) -> EncoderSize:
    """The sizes of a backbone: of a folder by its config.json, otherwise as its config says."""
    shape = {name: getattr(backbone, name) for name in ("layers", "hidden", "intermediate", "heads")}
    words = vocabulary or backbone.vocab_size
    path = expanded(backbone.name) / "config.json" if backbone.name else Path()
    if path.is_file():
        about = read_json(path)
        theirs = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads")
        shape = {name: int(about.get(key, shape[name])) for name, key in zip(shape, theirs, strict=True)}
        words = int(about.get("vocab_size", words))
    return EncoderSize(**shape, vocabulary=words, dropout=0.1 if backbone.dropout is None else backbone.dropout)


def released_size(folder: str | Path) -> EncoderSize | None:
    """The sizes of a checkpoint by its config.json; None where that is not here, or does not say them."""
    path = expanded(str(folder)) / "config.json"
    about = read_json(path) if path.is_file() else {}
    names = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
    if not all(isinstance(about.get(name), int) for name in names):
        return None
    layers, hidden, intermediate, heads, words = (about[name] for name in names)
    return EncoderSize(
        layers=layers, hidden=hidden, intermediate=intermediate, heads=heads, vocabulary=words, dropout=0.1
    )


def with_encoder(sizes: Sizes, backbone: BackboneConfig, passage_length: int | None = None) -> Sizes:
    """``sizes`` of a stage that makes an encoder on this backbone, where no stage before it has made one."""
    size = sizes.encoder or encoder_size(backbone, sizes.vocabulary)
    return replace(sizes, encoder=size, passage_length=passage_length)


def checkpoint_bytes(sizes: Sizes, further_layers: int = 0) -> float | None:
    """Of a checkpoint in fp32."""
    size = sizes.encoder
    if size is None:
        return None
    return 4.0 * (size.parameters + further_layers * size.hidden * (4 * size.hidden + 2 * size.intermediate))


class Search(NamedTuple):
    """What searching takes: the two fields of ``Work``."""

    products: float | None
    seconds: float | None


def search(index: Sizes, queries: float | None, depth: int) -> Search:
    """Of the ``depth`` best passages of so many queries.

    By vectors every query meets every passage; by words those that share one. What is found is sorted and written.
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
    """One search after the other."""
    products, seconds = zip(*searches, strict=True)
    return Search(total(products), total(seconds))
