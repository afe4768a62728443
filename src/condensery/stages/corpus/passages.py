"""Stage ``passages``: splits documents into passages for query-as-context pre-training (Wu et al. 2023, §3.1, 4.1)."""

from array import array
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from condensery.stages.base import Context
from condensery.stages.corpus.config import PassagesConfig
from condensery.system.progress import progress
from condensery.text.collection import Collection
from condensery.text.writer import IndexedWriter
from condensery.tokens.artifacts import Passages, pretraining_texts, unknown_words
from condensery.tokens.grouping import DocumentTexts, group_documents
from condensery.tokens.store import tokenise
from condensery.tokens.tokenizer import load_tokenizer
from condensery.tokens.vocabulary import Vocabulary
from condensery.tokens.workers import in_order

BLOCK = 256  # texts per task of a worker
Row = tuple[str, str, str, str]  # id, document, title, text


def passages(config: PassagesConfig, context: Context) -> dict[str, Any]:
    """Write passages.arrow and, in the same order, the token stores of texts and titles; return counts for the manifest."""
    collection, folder = Collection(context.input("corpus")), context.input("tokenizer")
    Vocabulary.of(load_tokenizer(folder)).save(context.folder)
    starts, empty = _write(config, context, collection)
    written = Passages(context.folder)
    how: Any = {"language": config.sentence_language, "documents": starts, "workers": config.workers}
    stores = {}
    for name, column in {"texts": "text", "titles": "title"}.items() if config.titles else [("texts", "text")]:
        texts, label = written.table.column(column), f"{context.stage_name}: {name}"
        stores[name] = tokenise(texts, folder, context.folder / name, sentences=name == "texts", label=label, **how)
    tokens = {f"tokens_of_{name}": store.token_count for name, store in stores.items()}
    counts = {"passages": len(written.table), "documents": len(starts) - 1, "empty_documents": empty, **tokens}
    return {**counts, **unknown_words(stores, folder)}


def _write(config: PassagesConfig, context: Context, collection: Collection) -> tuple[np.ndarray, int]:
    """Write the table of passages and the index of its ids.

    Returns:
        the first row of each document, (documents + 1,), and the number of empty documents.

    Raises:
        UserError: no document contains a word.
    """
    own = config.grouping == "collection"
    rows = _as_they_are(collection, config.titles) if own else _grouped(config, context, collection)
    starts, empty = array("q", [0]), 0
    writer = IndexedWriter(context.folder, "passages", ("id", "document", "title", "text"))
    for document in rows:
        for row in document:
            writer.add(row, len(row[2]) + len(row[3]), row[0])
        if document:
            starts.append(writer.table.count)
        else:
            empty += 1
    if not writer.table.count:
        raise context.error("", f"no document of {collection.name} contains a word; add documents")
    writer.close()
    return np.frombuffer(starts, np.int64), empty


def _as_they_are(collection: Collection, with_titles: bool) -> Iterator[list[Row]]:
    """Yield the rows of each document, with the collection's own passages."""
    table, starts = collection.passages, collection.document_starts
    columns = [table.column(name) for name in ("id", "document", "title", "text")]
    for first, last in pairwise(starts.tolist()):
        ids, documents, titles, texts = (column[first:last] for column in columns)
        yield list(zip(ids, documents, titles if with_titles else [""] * len(ids), texts, strict=True))


def _grouped(config: PassagesConfig, context: Context, collection: Collection) -> Iterator[list[Row]]:
    """Yield the rows of each document, with sentences grouped into passages; each worker processes a block of documents."""
    number = len(collection.document_starts) - 1 if collection.documents is None else len(collection.documents)
    work = partial(group_documents, length=config.length, language=config.sentence_language)
    blocks = _blocks(collection, config.titles)
    with progress(f"{context.stage_name}: group", number, "documents") as task:
        for grouped in in_order(work, blocks, context.input("tokenizer"), config.workers):
            for name, of_document in grouped:
                yield [(f"{name}#{at}", name, one.title, one.text) for at, one in enumerate(of_document)]
            task.advance(len(grouped))


def _blocks(collection: Collection, with_titles: bool) -> Iterator[list[DocumentTexts]]:
    """Yield the documents for pre-training, in blocks of about ``BLOCK`` texts."""
    texts, starts = pretraining_texts(collection)
    first = 0
    while first < len(starts) - 1:
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + BLOCK, side="right")) - 1)
        edges, rows = starts[first : last + 1] - starts[first], slice(int(starts[first]), int(starts[last]))
        if collection.documents is None:
            ids, titles = (collection.passages.column(name)[rows] for name in ("document", "title"))
            names = [ids[edge] for edge in edges[:-1]]
        else:
            names, of_documents = (collection.documents.column(name)[first:last] for name in ("id", "title"))
            titles = [title for title, size in zip(of_documents, np.diff(edges), strict=True) for _ in range(size)]
        block = texts[rows], titles if with_titles else [""] * int(edges[-1])
        yield [
            DocumentTexts(name, *(part[a:b] for part in block))
            for name, (a, b) in zip(names, pairwise(edges.tolist()), strict=True)
        ]
        first = last
