"""The tokenised form of a collection: the texts used for pre-training, and the token stores in the folders of stages."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from condensery.errors import shown
from condensery.system.files import load_array, read_json
from condensery.text.collection import Collection
from condensery.text.table import Column, TextTable
from condensery.tokens.coverage import CHARACTERS
from condensery.tokens.pairs import PairReader
from condensery.tokens.prefixes import NO_PREFIXES, Prefixes
from condensery.tokens.store import TokenStore, tokenise
from condensery.tokens.text_reader import Readers, TextReader
from condensery.tokens.tokenizer import load_tokenizer
from condensery.tokens.vocabulary import Vocabulary

SAMPLED_TOKENS, SAMPLED_TEXTS = 1 << 22, 1000  # size of the sample from which a warning names unknown words
MOST_UNKNOWN = 0.05  # a larger share of [UNK] causes a warning; with a suitable tokenizer the share is far below 1 %


def pretraining_texts(collection: Collection) -> tuple[Column[str], np.ndarray]:
    """Return a column of the texts of all documents, and the index of each document's first text (documents + 1,).

    The texts are the passages, grouped by document, unless the collection has separate documents.
    """
    if collection.documents is None:
        return collection.passages.column("text"), collection.document_starts
    passages: pa.ChunkedArray = collection.documents.arrow("passages")
    counts = pc.list_value_length(passages).to_numpy()
    return Column(pc.list_flatten(passages)), np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def tokenise_collection(
    collection: Collection, tokenizer: Path, folder: Path, *, titles: bool, label: str = "tokens", **others: Any
) -> dict[str, TokenStore]:
    """Tokenise a collection and write the artifact ``Tokens``.

    Args:
        collection: collection whose texts are tokenised.
        tokenizer: folder with ``tokenizer.json``.
        folder: folder to which the token stores and the vocabulary are written.
        titles: whether to tokenise titles too, for passages that are read as title [SEP] text.
        label: label of the progress display.
        others: ``language`` and ``workers``, as in ``tokenise``.

    Returns:
        The token stores by name: passages, queries, separate documents if the collection has them, and titles if
        requested.
    """
    Vocabulary.of(load_tokenizer(tokenizer)).save(folder)
    texts, documents = pretraining_texts(collection)
    columns: dict[str, Sequence[str]] = {
        "passages": collection.passages.column("text"),
        "queries": collection.queries.column("text"),
    }
    grouped = "passages" if collection.documents is None else "documents"
    columns[grouped] = texts
    if titles:
        columns["titles"] = collection.passages.column("title")
    stores = {}
    for name, column in columns.items():
        how: dict[str, Any] = {"sentences": name == grouped, "documents": documents if name == grouped else None}
        stores[name] = tokenise(column, tokenizer, folder / name, label=f"{label}: {name}", **how, **others)
    return stores


def _store(name: str) -> "cached_property[TokenStore]":
    """Return the attribute that opens the token store ``name`` of an artifact on first use."""
    return cached_property(lambda artifact: TokenStore(artifact.folder / name))


@dataclass(frozen=True)
class _Stores:
    """A folder with token stores and their common vocabulary. Each store and the vocabulary are opened on first use."""

    folder: Path

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary that all stores share."""
        return Vocabulary.load(self.folder)

    @cached_property
    def titles(self) -> TokenStore | None:
        """The titles of the passages; None if passages are read without titles."""
        return TokenStore(self.folder / "titles") if (self.folder / "titles").is_dir() else None


@dataclass(frozen=True)
class Tokens(_Stores):
    """The artifact of the stage ``tokens``."""

    passages = _store("passages")
    """The passages, in row order, without titles."""
    queries = _store("queries")
    """The queries of all splits, in row order."""

    @cached_property
    def documents(self) -> TokenStore:
        """The texts for pre-training, grouped by document: the separate documents, or else the passages."""
        return TokenStore(self.folder / "documents") if (self.folder / "documents").is_dir() else self.passages


def unknown_words(stores: Mapping[str, TokenStore], folder: Path) -> dict[str, list[str]]:
    """Return the ``warnings`` of a manifest about token stores whose share of [UNK] is above ``MOST_UNKNOWN``.

    A share above this limit shows that the tokenizer is for another language, or has no words. If the stage ``tokenizer``
    found such a share, its own warning is enough.

    Args:
        stores: token stores by name, as ``tokenise`` returns them.
        folder: folder of their tokenizer, the artifact of the stage ``tokenizer``.

    Returns:
        ``{"warnings": [...]}``, or {} if there is nothing to add.
    """
    tokenizer, manifest, warnings = load_tokenizer(folder), folder / "manifest.json", []
    about = read_json(manifest) if manifest.is_file() else {}
    if about.get("metrics", {}).get("unknown_share", 0.0) > MOST_UNKNOWN:
        return {}
    advice = "choose a tokenizer for this language, script and punctuation (backbone.name, backbone.tokenizer)"
    if about and about["config"]["name"] is None:
        advice = "it was trained on the passages of this collection, in which these words are missing or rare"
    for name, store in stores.items():
        share = store.share_of(tokenizer.unk_token_id)
        if share > MOST_UNKNOWN:
            message = f"{share:.0%} of the {store.token_count:,} tokens of {name} are unknown to the tokenizer ([UNK])"
            warnings.append(f"{message}{_most_unknown(store, tokenizer)}; {advice}")
    return {"warnings": warnings} if warnings else {}


def _most_unknown(store: TokenStore, tokenizer: Any) -> str:
    """Return the words with which a warning names a sample's most frequent unknown words, such as ``, most often '?'``."""
    places = np.flatnonzero(np.asarray(store.tokens[:SAMPLED_TOKENS]) == tokenizer.unk_token_id)
    rows = np.unique(np.searchsorted(store.starts, places, side="right") - 1)[:SAMPLED_TEXTS].tolist()
    found = Counter[str]()
    for text in (text[:CHARACTERS] for row in rows for text in store.texts[row : row + 1]):
        read = tokenizer(text, add_special_tokens=False, verbose=False).encodings[0]
        pieces = zip(read.ids, read.offsets, strict=True)
        found.update(text[slice(*place)] for one, place in pieces if one == tokenizer.unk_token_id)
    return f", most often {', '.join(repr(shown(word, 20)) for word, _ in found.most_common(3))}" if found else ""


def pair_reader(tokens: Tokens, query_length: int, length: int, separators: int) -> PairReader:
    """Return a reader of encoder inputs [CLS] query [SEP] passage [SEP]; for the other arguments see ``PairReader``."""
    stores = (tokens.queries, tokens.passages, tokens.titles)
    return PairReader(*stores, tokens.vocabulary, query_length, length, separators)


def text_readers(tokens: Tokens, lengths: tuple[int, int], prefixes: Prefixes = NO_PREFIXES) -> Readers:
    """Return the readers of passages and queries. ``lengths``: maximum query length and passage length in tokens."""
    passages = TextReader(tokens.passages, tokens.vocabulary, lengths[1], tokens.titles, prefixes.passage)
    return Readers(passages, TextReader(tokens.queries, tokens.vocabulary, lengths[0], prefix=prefixes.query))


@dataclass(frozen=True)
class Passages(_Stores):
    """The artifact of the stage ``passages``: a table of passages, and the token ids of each row."""

    @cached_property
    def table(self) -> TextTable:
        """The table of N passages, with the columns id, document, title and text."""
        return TextTable(self.folder / "passages.arrow")

    store = _store("texts")
    """The tokens of the texts, without titles, with the starts of sentences and documents."""


@dataclass(frozen=True)
class Sentences(_Stores):
    """The artifact of a sentence task: the distinct sentences, and for each example the rows of its sentences."""

    @cached_property
    def about(self) -> dict[str, Any]:
        """``name`` of the data, and ``task``: similarity (pairs with scores) or triplets (anchor, positive, negative)."""
        return dict(read_json(self.folder / "sentences.json"))

    store = _store("texts")
    """The tokens of all sentences."""

    def rows(self, split: str) -> np.ndarray:
        """Return the indices in ``store`` of each example's k sentences, int64 (n, k); k is 2 for pairs, 3 for triplets."""
        return load_array(self.folder / f"rows-{split}.npy")

    def scores(self, split: str) -> np.ndarray:
        """Return the score of each example, float32 (n,) from 0 to 1; zeros for triplets."""
        return load_array(self.folder / f"scores-{split}.npy")


@dataclass(frozen=True)
class Queries:
    """The artifact of the stages that generate or extract queries for passages."""

    folder: Path

    store = _store("queries")
    """The tokens of all queries, in the order of their passages."""

    @cached_property
    def first(self) -> np.ndarray:
        """The index in ``store`` of each passage's first query, int64 (N + 1,); a passage may have no query."""
        return load_array(self.folder / "first.npy")

    @cached_property
    def counts(self) -> np.ndarray:
        """The number of queries of each passage, (N,)."""
        return np.diff(self.first)

    @cached_property
    def owners(self) -> np.ndarray:
        """The passage of each query, (Q,)."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @cached_property
    def places(self) -> np.ndarray | None:
        """The position of each query in the token store of the passages, int64 (Q, 2).

        The columns are the index of the query's first token and the number of its tokens; -1 if these are unknown. The result
        is None if the queries are not sentences of their passages.
        """
        path = self.folder / "places.npy"
        return load_array(path) if path.exists() else None

    def texts(self, row: int) -> list[str]:
        """Return the queries of the passage ``row``."""
        return self._column[int(self.first[row]) : int(self.first[row + 1])]

    def texts_at(self, rows: np.ndarray) -> list[str]:
        """Return the queries at the rows (n,) of ``store``."""
        return list(self._column.take(rows))

    @cached_property
    def _column(self) -> Column[str]:
        return TextTable(self.folder / "queries.arrow").column("text")
