"""A collection as tokens: the choice of its texts for pre-training, and the folders of token stores that stages write."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from condensery.system.files import load_array, read_json
from condensery.text.collection import Collection
from condensery.text.table import Column, TextTable
from condensery.tokens.pairs import PairReader
from condensery.tokens.store import TokenStore, tokenise
from condensery.tokens.tokenizer import load_tokenizer
from condensery.tokens.vocabulary import Vocabulary

MOST_UNKNOWN = 0.05  # share of [UNK] among the tokens of a store; with a tokenizer that fits it is far below 1 %


def pretraining_texts(collection: Collection) -> tuple[Column[str], np.ndarray]:
    """The concatenated texts of all documents, and the index of each document's first text (documents + 1,).

    The texts are the passages, grouped by document, unless the collection has separate documents.
    """
    if collection.documents is None:
        return collection.passages.column("text"), collection.document_starts
    passages: pa.ChunkedArray = collection.documents.arrow("passages")
    counts = pc.list_value_length(passages).to_numpy()
    return Column(pc.list_flatten(passages)), np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def tokenise_collection(
    collection: Collection, tokenizer: Path, folder: Path, *, titles: bool, workers: int = 1, label: str = "tokens"
) -> dict[str, TokenStore]:
    """Tokenise a collection and write the artifact ``Tokens``.

    Args:
        collection: its texts are tokenised.
        tokenizer: folder with ``tokenizer.json``.
        folder: gets the token stores and the vocabulary.
        titles: also tokenise titles, because passages are read as title [SEP] text.
        workers: number of processes.
        label: shown with the progress.

    Returns:
        The token stores by name: passages, queries, separate documents where there are any, and titles if wanted.
    """
    Vocabulary.of(load_tokenizer(tokenizer)).save(folder)
    texts, documents = pretraining_texts(collection)
    separate = collection.documents is not None
    plan: list[tuple[str, Any, bool, Any]] = [
        ("passages", collection.passages.column("text"), not separate, None if separate else documents),
        ("queries", collection.queries.column("text"), False, None),
    ]
    if separate:
        plan.append(("documents", texts, True, documents))
    if titles:
        plan.append(("titles", collection.passages.column("title"), False, None))
    return {
        name: tokenise(
            column,
            tokenizer,
            folder / name,
            sentences=sentences,
            documents=starts,
            workers=workers,
            label=f"{label}: {name}",
        )
        for name, column, sentences, starts in plan
    }


@dataclass(frozen=True)
class _Stores:
    """A folder with token stores and their common vocabulary. Each part is opened on first use."""

    folder: Path

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary that all stores share."""
        return Vocabulary.load(self.folder)

    @cached_property
    def titles(self) -> TokenStore | None:
        """The titles of the passages; None where passages are read without titles."""
        return self._store("titles") if (self.folder / "titles").is_dir() else None

    def _store(self, name: str) -> TokenStore:

        return TokenStore(self.folder / name)


@dataclass(frozen=True)
class Tokens(_Stores):
    """The artifact of the stage ``tokens``."""

    @cached_property
    def passages(self) -> TokenStore:
        """The passages, in row order, without titles."""
        return self._store("passages")

    @cached_property
    def queries(self) -> TokenStore:
        """The queries of all splits, in row order."""
        return self._store("queries")

    @cached_property
    def documents(self) -> TokenStore:
        """The texts for pre-training, grouped by document: the separate documents, or else the passages."""
        return self._store("documents") if (self.folder / "documents").is_dir() else self.passages


def unknown_words(stores: Mapping[str, TokenStore], unknown: int) -> dict[str, list[str]]:
    """The ``warnings`` of a manifest about token stores whose share of [UNK] is above ``MOST_UNKNOWN``.

    Such a store was made with the tokenizer of another language, or with an empty tokenizer.

    Args:
        stores: token stores by name.
        unknown: the id of [UNK].

    Returns:
        ``{"warnings": [...]}``, or {} where no store has too many.
    """
    warnings = []
    for name, store in stores.items():
        share = store.share_of(unknown)
        if share > MOST_UNKNOWN:
            said = f"{share:.0%} of the {store.token_count:,} tokens of {name} are unknown to the tokenizer ([UNK])"
            warnings.append(f"{said}; is it one for this language, writing and punctuation? (backbone.tokenizer)")
    return {"warnings": warnings} if warnings else {}


def pair_reader(tokens: Tokens, query_length: int, length: int, separators: int) -> PairReader:
    """The reader of rows [CLS] query [SEP] passage [SEP] of the collection; the arguments are those of ``PairReader``."""
    stores = (tokens.queries, tokens.passages, tokens.titles)
    return PairReader(*stores, tokens.vocabulary, query_length, length, separators)


@dataclass(frozen=True)
class Passages(_Stores):
    """The artifact of the stage ``passages``: a table and its tokens, row by row."""

    @cached_property
    def table(self) -> TextTable:
        """The columns id, document, title and text; N rows."""
        return TextTable(self.folder / "passages.arrow")

    @cached_property
    def store(self) -> TokenStore:
        """The texts, without titles, with sentences and documents."""
        return self._store("texts")


@dataclass(frozen=True)
class Sentences(_Stores):
    """The artifact of stages that make examples of a sentence task: distinct sentences, and their rows in each example."""

    @cached_property
    def about(self) -> dict[str, Any]:
        """``name`` of the data, and ``task``: similarity = pairs with scores, triplets = anchor, positive, negative."""
        return dict(read_json(self.folder / "sentences.json"))

    @cached_property
    def store(self) -> TokenStore:
        """The tokens of all sentences."""
        return self._store("texts")

    def rows(self, split: str) -> np.ndarray:
        """(n, k) int64 rows in ``store`` of the k = 2 or 3 sentences of each example."""
        return load_array(self.folder / f"rows-{split}.npy")

    def scores(self, split: str) -> np.ndarray:
        """The score of each example: (n,) float32 from 0 to 1; zeros for triplets."""
        return load_array(self.folder / f"scores-{split}.npy")


@dataclass(frozen=True)
class Queries:
    """The artifact of the stages that make queries for passages.

    Attributes:
        store: the tokens of all queries, those of passage 0 first.
        first: (N + 1,) int64, the first query of each passage in ``store``; a passage may have none.
    """

    folder: Path

    @cached_property
    def store(self) -> TokenStore:
        """The tokens of all queries, those of passage 0 first."""
        return TokenStore(self.folder / "queries")

    @cached_property
    def first(self) -> np.ndarray:
        """(N + 1,) int64: the first query of each passage in ``store``."""
        return load_array(self.folder / "first.npy")

    @cached_property
    def counts(self) -> np.ndarray:
        """(N,) number of queries of each passage."""
        return np.diff(self.first)

    @cached_property
    def places(self) -> np.ndarray | None:
        """Where queries that are sentences of their passages stand: (Q, 2) int64; None for queries of other kinds.

        The columns are the first token in the passages' store and the number of tokens; -1 where these are unknown.
        """
        path = self.folder / "places.npy"
        return load_array(path) if path.exists() else None

    def texts(self, row: int) -> list[str]:
        """The queries of one passage."""
        return self._column[int(self.first[row]) : int(self.first[row + 1])]

    def texts_at(self, rows: np.ndarray) -> list[str]:
        """The queries at some rows (n,) of ``store``."""
        return list(self._column.take(rows))

    @cached_property
    def _column(self) -> Column[str]:
        return TextTable(self.folder / "queries.arrow").column("text")
