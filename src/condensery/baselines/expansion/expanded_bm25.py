"""Stage ``expanded_bm25``: a BM25 index of passages with their generated queries (docT5query: Nogueira and Lin 2019)."""

from collections.abc import Iterator, Sequence
from typing import Any

from condensery.baselines.expansion.config import ExpandedBm25Config
from condensery.baselines.expansion.made_for import check_made_for
from condensery.retrieval.indexes.bm25 import index_texts
from condensery.retrieval.indexes.terms import chosen_language
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
    label, passages = context.stage_name, len(collection.passages)
    language = chosen_language(config.language, config.stemmer, texts, (f"[{label}]", f"stages.{label}.language"))
    joined = expanded(with_titles(titles, texts), queries)
    what, terms = f"collection '{collection.name}'", (config.stopwords, config.stemmer)
    about = index_texts(joined, passages, context.folder, config.k1, config.b, *terms, what, language)
    return {**about, "queries": int(queries.counts.sum())}


def expanded(texts: Iterator[str] | Sequence[str], queries: Queries) -> Iterator[str]:
    """Yield each text followed by the queries of its row, separated by spaces."""
    return (" ".join([text, *queries.texts(row)]) for row, text in enumerate(texts))
