"""Logs the results of a study as a separate W&B run in the study's group: tables, figures, and every number."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from condensery.reporting.drawing import Figure
from condensery.reporting.plain import one_line
from condensery.reporting.results import Row
from condensery.reporting.table import Table
from condensery.reporting.table_formats import markdown, records
from condensery.stages.base import Wandb
from condensery.training.wandb_run import Tracked, close, logged, start

NUMBERS: list[str | int] = ["system", "collection", "split", "seed", "metric", "value", "artifact"]


def log_results(
    settings: Wandb, root: Path, folder: Path, tables: Sequence[Table], figures: Sequence[Figure], rows: Sequence[Row]
) -> None:
    """Log the results of a run or a sweep, which are in ``folder``, to W&B.

    The id of the W&B run is a hash of group, tables and figures, so the same results are logged once.
    """
    pictures = [path for path in (folder / "curves.png", *(figure.paths["png"] for figure in figures)) if path.exists()]
    if not (tables or pictures):
        return
    content = hashlib.blake2b(folder.name.encode(), digest_size=4)
    for part in (*(markdown(table).encode() for table in tables), *(path.read_bytes() for path in pictures)):
        content.update(part)
    tracked = Tracked(
        **settings.model_dump(),
        group=folder.name,
        name="results",
        job_type="results",
        run_id=f"results-{content.hexdigest()}",
        config={"results": folder.name},
        folder=root,
    )
    run = None if logged(tracked) else start(tracked)
    if run is None:
        return
    import wandb

    try:
        for table in tables:
            header, lines = records(table)
            run.log({one_line(table.title): wandb.Table(columns=[*header], data=lines)})
        for path in pictures:
            run.log({path.stem: wandb.Image(str(path))})
        numbers = [
            [one_line(row.name), one_line(row.collection), row.split, row.seed, metric, value, row.artifact]
            for row in rows
            for metric, value in row.metrics.items()
        ]
        if numbers:
            run.log({"numbers": wandb.Table(columns=NUMBERS, data=numbers)})
    finally:
        close()
