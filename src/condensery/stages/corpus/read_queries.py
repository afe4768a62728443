"""Stage ``read_queries``: queries that others made for the passages (docTTTTTquery, doc2query, one's own)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from condensery.stages.base import Context, Operational, stage
from condensery.stages.corpus.query_config import QueryStageConfig
from condensery.system.inputs import look
from condensery.text.hashes import content_hashes


class ReadQueriesConfig(QueryStageConfig):
    """``path`` is a file, a folder of files or a pattern, plain or .gz."""

    path: Annotated[str, Operational()]  # the content counts, not where it lies
    format: Literal["auto", "jsonl", "tsv", "lines"]
    missing: Literal["error", "skip"]

    def files(self) -> Sequence[Path]:
        """The files, sorted. Raises ``UserError`` where there are none."""
        from condensery.text.queries import query_files

        return query_files(self.path)

    def identity(self) -> list[str]:
        """The content of the files. Raises ``UserError`` where there is none to read, before anything is computed."""
        files = list(self.files())
        look(files)
        return content_hashes(files)


@stage("read_queries", version=1, makes="queries")
def read_queries(config: ReadQueriesConfig, context: Context) -> dict[str, Any]:
    """Bring the queries into the order of the passages."""
    from condensery.stages.corpus.queries import write_queries
    from condensery.text.queries import format_of, read_query_files
    from condensery.tokens.artifacts import Passages

    files = list(config.files())
    kind = format_of(files) if config.format == "auto" else config.format
    pairs = read_query_files(files, kind, Passages(context.input("passages")).table)
    advice = f"add them to {config.path}, or leave the passages out: stages.{context.stage_name}.missing=skip"
    counts = write_queries(pairs, context, advice if config.missing == "error" else None)
    return {"files": len(files), "format": kind, **counts}
