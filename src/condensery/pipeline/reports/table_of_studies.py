"""A table without a recipe: rows with published numbers, and rows that runs and sweeps of its studies have measured."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig

from condensery.errors import UserError, close_to
from condensery.pipeline.config import RootConfig
from condensery.pipeline.reports import report
from condensery.pipeline.reports.page_content import run_number
from condensery.reporting.results import Row, read_results


def write(root: RootConfig) -> Path | None:
    """Print the table and write it into ``outputs/tables/NAME``; a dry run writes nothing.

    Returns:
        the folder of the table; None for a dry run.

    Raises:
        UserError: there are neither measured rows nor rows with published numbers.
    """
    config = root.table
    rows_of = {study: measured(root.output_root, study) for study in config.studies}
    rows = of_studies(rows_of)
    if config.rows:  # a selection of rows
        rows = [row for label in config.rows for row in rows if (row.system or row.name) == label]
    if not rows and not config.columns:
        near = close_to(config.studies[0], _studies(root.output_root)) if len(config.studies) == 1 else ""
        raise UserError(
            f"table.studies: nothing is measured yet of {', '.join(config.studies)} in {root.output_root}{near}"
        )
    folder = None if root.dry_run else root.output_root / "tables" / _name()
    report.show_table(report.table_of(config, rows, _name()), folder)
    if all(row.failed for row in rows) and config.command:
        print(f"nothing is measured yet; to measure it, run: {config.command}", flush=True)
    elif missing := [study for study, own in rows_of.items() if not own]:
        print(f"nothing is measured yet of {', '.join(missing)} in {root.output_root}", flush=True)
    if folder:
        print(f"\n{folder}", flush=True)
    return folder


def of_studies(rows_of: Mapping[str, Sequence[Row]]) -> list[Row]:
    """Return the rows of all studies; a row that two studies measured identically appears once.

    The name of a study is put before its row ``X``, and before rows that build on ``X`` (``X + hard negatives``), in two
    cases. In the first case, an earlier study has a row ``X`` of another system, so the two rows are not seeds of one system.
    In the second case, only one of two studies swept over the settings of a system.
    """
    lines: dict[tuple[str, str], dict[tuple[str, int | None], Row]] = {}  # (name, collection) -> (split, seed) -> row
    systems: dict[tuple[str, str], list[Row]] = {}  # (system, collection) -> rows of earlier studies
    for study, rows in rows_of.items():
        own: dict[tuple[str, str], dict[tuple[str, int | None], Row]] = {}
        otherwise: set[tuple[str, str]] = set()
        for row in rows:
            key, before = (row.name, row.collection), systems.get((row.system or row.name, row.collection), [])
            if key in lines and (row.split, row.seed) in lines[key]:
                before = []
            if row.artifact and any((one.artifact, one.split) == (row.artifact, row.split) for one in before):
                continue  # the same measurement under another seed or name
            if key not in lines and any(bool(one.settings) != bool(row.settings) for one in before):
                otherwise.add(_first_step(key))
            own.setdefault(key, {})[row.split, row.seed] = row
        otherwise |= {_first_step(key) for key, placed in own.items() if not _agree(lines.get(key, placed), placed)}
        for (name, collection), placed in own.items():
            if _first_step((name, collection)) in otherwise:
                system = next(iter(placed.values())).system or name
                placed = {place: replace(row, name=f"{study} · {name}", system=system) for place, row in placed.items()}
                name = f"{study} · {name}"
            line = lines.setdefault((name, collection), {})
            for place, row in placed.items():
                line[place] = max(line.get(place, row), row, key=lambda one: len(one.metrics))
        for row in rows:
            systems.setdefault((row.system or row.name, row.collection), []).append(row)
    return [row for line in lines.values() for row in line.values()]


def _first_step(line: tuple[str, str]) -> tuple[str, str]:
    """Return ``X`` for a row ``X + hard negatives``, with the collection."""
    return line[0].partition(" + ")[0], line[1]


def _agree(known: Mapping[Any, Row], placed: Mapping[Any, Row]) -> bool:
    """Whether two lines of the same name belong to one system, in all splits and seeds that both have measured."""
    common = known.keys() & placed.keys()
    return bool(common) and all(_same(known[place], placed[place]) for place in common)


def _same(one: Row, other: Row) -> bool:
    """Whether two rows belong to one system: they share the artifact, or all metrics that both have are equal."""
    common = one.metrics.keys() & other.metrics.keys()
    return one.artifact == other.artifact or (bool(common) and all(one.metrics[m] == other.metrics[m] for m in common))


def measured(output_root: Path, study: str) -> list[Row]:
    """Return the rows of a study; an empty list if it was never run.

    The rows come from the sweep or run whose folder is called ``study``, or else from the last run of this name.
    """
    runs = output_root.glob(f"runs/{study}-{8 * '[0-9a-f]'}/results.json")  # no run whose name only begins with `study`
    paths = [output_root / kind / study / "results.json" for kind in ("sweeps", "runs")]
    last = sorted(runs, key=lambda path: (run_number(path.parent), path.stat().st_mtime))[-1:]
    paths = [path for path in paths if path.is_file()][:1] or last
    return report.with_values([row for path in paths for row in read_results(path)], output_root)


def _studies(output_root: Path) -> list[str]:
    """Return the names of the sweeps and runs in the output root."""
    runs = (path.name for path in output_root.glob("runs/*-????????"))
    return sorted({*(path.name for path in output_root.glob("sweeps/*")), *(name[:-9] for name in runs)})


def _name() -> str:
    """Return the option that ``table=`` selects."""
    chosen = HydraConfig.get().runtime.choices.get("table") if HydraConfig.initialized() else None
    if ".." in Path(chosen or "").parts:
        raise UserError(f"table={chosen}: must be the name of an option, as in conf/table")
    return str(chosen or "table")
