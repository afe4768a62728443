"""The artifact of every stage that makes queries for passages: texts, token ids and examples."""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from condensery.errors import UserError, number_of, shown
from condensery.reporting.plain import one_line
from condensery.reporting.table_formats import escape_markdown
from condensery.stages.base import Context
from condensery.text.queries import Pair, by_passage
from condensery.text.table import TableWriter, TextTable
from condensery.tokens.artifacts import Passages, Queries, unknown_words
from condensery.tokens.store import tokenise

EXAMPLES = 10
WORKERS = 2  # processes that tokenise the queries


def write_queries(
    pairs: Iterable[Pair],
    context: Context,
    missing: str | None = None,
    none: Callable[[], str] = lambda: "the input has none, or all are empty",
) -> dict[str, Any]:
    """Write the artifact: queries.jsonl (a line per passage), queries.arrow, the token ids, first.npy and examples.md.

    Empty queries and duplicates within a passage are dropped. Passages without a query are counted and reported in one line.
    Training leaves such passages out.

    Args:
        pairs: pairs (passage row, query), in any order.
        context: context of a stage whose config is a ``QueryStageConfig``.
        missing: advice for the error message about a passage without a query; None = such passages are allowed.
        none: function that returns the text of the error message if no passage has a query: the reason, and the remedy. It
            is called after all pairs are read.

    Returns:
        the counts for the manifest.

    Raises:
        UserError: no passage has a query, or ``missing`` is given and a passage has no query.
    """
    passages, folder = Passages(context.input("passages")), context.folder
    counts = _write_texts(context, passages, by_passage(pairs, len(passages.table), folder / "unsorted.arrow"))
    total, without = int(counts.sum()), np.flatnonzero(counts == 0)
    if len(without):
        _report(context, passages, without, missing, none)
    np.save(folder / "first.npy", np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))
    texts, tokenizer = TextTable(folder / "queries.arrow").column("text"), context.input("tokenizer")
    how: Any = {"workers": WORKERS if total > 20_000 else 1, "label": f"{context.stage_name}: tokens"}
    store = tokenise(texts, tokenizer, folder / "queries", sentences=False, **how)
    _write_examples(context, passages, counts)
    unknown = unknown_words({"queries": store}, tokenizer)
    lengths = {"mean_query_tokens": round(float(store.lengths.mean()), 2)}
    return {"queries": total, "passages_without_query": len(without), **lengths, **unknown}


def _write_texts(context: Context, passages: Passages, queries: Iterator[list[str]]) -> np.ndarray:
    """Write the queries of every passage; return the number of queries per passage, (passages,)."""
    ids = passages.table.column("id")
    counts = np.zeros(len(ids), dtype=np.int64)
    with (
        TableWriter(context.folder / "queries.arrow", ("text",)) as table,
        open(context.folder / "queries.jsonl", "w", encoding="utf-8") as lines,
    ):
        for row, (identifier, of_passage) in enumerate(zip(ids, queries, strict=True)):
            counts[row] = len(of_passage)
            for query in of_passage:
                table.add((query,), len(query))
            lines.write(json.dumps({"id": identifier, "queries": of_passage}, ensure_ascii=False) + "\n")
    return counts


def _report(
    context: Context, passages: Passages, without: np.ndarray, missing: str | None, none: Callable[[], str]
) -> None:
    number = len(passages.table)
    first = passages.table.column("id")[int(without[0])]
    if len(without) == number:
        raise context.error("", f"no passage has a query: {none()}")
    message = f"{number_of(len(without), f'of {number:,} passages have')} no query, the first is {shown(first)!r}"
    if missing:
        raise UserError(f"{message}; {missing}")
    context.say(f"{message}; training leaves these passages out")


def _write_examples(context: Context, passages: Passages, counts: np.ndarray) -> None:
    """Write ten passages, spread over the collection, with their queries."""

    def plain(text: str) -> str:
        return escape_markdown(one_line(text))

    queries, having = Queries(context.folder), np.flatnonzero(counts)
    chosen = having[np.linspace(0, len(having) - 1, min(EXAMPLES, len(having))).round().astype(np.int64)]
    parts = [f"# Queries of the stage {context.stage_name}\n"]
    for row in chosen.tolist():
        identifier, title, text = (plain(passages.table.column(name)[row]) for name in ("id", "title", "text"))
        parts.append(f"## {identifier}\n")
        parts.append(f"{f'**{title}** ' if title else ''}{text}\n")
        parts.append("".join(f"- {plain(query)}\n" for query in queries.texts(row)))
    (context.folder / "examples.md").write_text("\n".join(parts), encoding="utf-8")
