"""Stage ``expanded_bm25``: a BM25 index of passages with their generated queries (docT5query: Nogueira and Lin 2019)."""

from collections.abc import Iterator, Sequence
from typing import Any

from condensery.baselines.expansion.config import ExpandedBm25Config
from condensery.baselines.expansion.made_for import check_made_for
from condensery.retrieval.indexes.bm25 import index_texts
from condensery.retrieval.indexes.terms import Analyser
from condensery.stages.base import Context
from condensery.text.collection import Collection
from condensery.text.table import with_titles
from condensery.tokens.artifacts import Queries


def expanded_bm25(config: ExpandedBm25Config, context: Context) -> dict[str, Any]:
    """Index title, text and queries of each passage as one text.

    Raises:
        UserError: the queries were made for other passages, or no passage has a word to index.
    """
    check_made_for(context)
    collection, queries = Collection(context.input("corpus")), Queries(context.input("queries"))
    titles, texts = (collection.passages.column(name) for name in ("title", "text"))
    label = context.stage_name
    joined, terms = expanded(with_titles(titles, texts), queries), (config.stopwords, config.stemmer, config.language)
    analyser = Analyser.of(texts, *terms, f"[{label}]", f"stages.{label}.language")
    about = index_texts(
        joined, len(texts), context.folder, config.k1, config.b, analyser, f"collection '{collection.name}'"
    )
    return {**about, "queries": int(queries.counts.sum())}


def expanded(texts: Iterator[str] | Sequence[str], queries: Queries) -> Iterator[str]:
    """Yield each text followed by the queries of its row, separated by spaces."""
    return (" ".join([text, *queries.texts(row)]) for row, text in enumerate(texts))
