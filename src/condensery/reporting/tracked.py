"""Logs the results of a study as a separate W&B run in the study's group: tables, figures, and every number."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from condensery.reporting.formats import markdown, records
from condensery.reporting.plain import one_line
from condensery.reporting.results import Row
from condensery.reporting.table import Table
from condensery.training.tracking import Tracked, close, logged, start


def log_results(tracked: Tracked, tables: Sequence[Table], figures: Sequence[Path], rows: Sequence[Row]) -> bool:
    """Log tables, figures (PNG) and the rows behind them. Returns whether a run was written.

    The id of the run is ``tracked.run_id`` and a hash of group, tables and figures, so the same results are logged once.
    """
    content = hashlib.blake2b(tracked.group.encode(), digest_size=4)
    for table in tables:
        content.update(markdown(table).encode())
    for path in figures:
        content.update(path.read_bytes())
    tracked = replace(tracked, run_id=f"{tracked.run_id}-{content.hexdigest()}")
    if not (tables or figures) or logged(tracked):
        return False
    run = start(tracked)
    if run is None:
        return False
    import wandb

    try:
        for table in tables:
            header, lines = records(table)
            columns: list[str | int] = [*header]
            run.log({one_line(table.title): wandb.Table(columns=columns, data=lines)})
        for path in figures:
            run.log({path.stem: wandb.Image(str(path))})
        named: list[str | int] = ["system", "collection", "split", "seed", "metric", "value", "artifact"]
        numbers = [
            [one_line(row.name), one_line(row.collection), row.split, row.seed, metric, value, row.artifact]
            for row in rows
            for metric, value in row.metrics.items()
        ]
        if numbers:
            run.log({"numbers": wandb.Table(columns=named, data=numbers)})
    finally:
        close()
    return True
