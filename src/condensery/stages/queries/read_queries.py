"""The stage ``read_queries``: existing queries for the passages (docTTTTTquery, doc2query, your own)."""

from typing import Any

from condensery.stages.base import Context
from condensery.stages.queries.config import ReadQueriesConfig
from condensery.stages.queries.writing import write_queries
from condensery.text.queries import format_of, read_query_files
from condensery.tokens.artifacts import Passages


def read_queries(config: ReadQueriesConfig, context: Context) -> dict[str, Any]:
    """Read the queries and write them in the order of the passages."""
    files = list(config.files())
    kind = format_of(files) if config.format == "auto" else config.format
    pairs = read_query_files(files, kind, Passages(context.input("passages")).table)
    advice = f"add queries to {config.path}, or leave these passages out: {context.place('missing')}=skip"
    counts = write_queries(pairs, context, advice if config.missing == "error" else None)
    return {"files": len(files), "format": kind, **counts}
