"""Run a recipe from a Python program and read its table."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from rich.cells import cell_len, set_cell_size

from condensery.cli import FOLDER_FILE
from condensery.errors import UserError, check_known, shown
from condensery.ranges import check_values
from condensery.reporting.results import Row, read_results
from condensery.text.lines import whole_texts


@dataclass(frozen=True)
class Results(Sequence[Row]):
    """The results of a run, as a sequence of rows.

    Attributes:
        folder: folder of the run, with its tables, its page and links to its artifacts.
        rows: rows of the run's table.
    """

    folder: Path
    rows: list[Row]

    def __getitem__(self, at: Any) -> Any:
        """Return a row by its index, or the metrics of a system (from 0 to 1) by the system's name.

        Raises ``UserError`` if no row has the name.
        """
        if not isinstance(at, str):
            return self.rows[at]
        rows = {row.name: row for row in reversed(self.rows)}  # the first of rows with one name
        check_known(at, rows, f"results: there is no row {shown(at)!r}")
        return dict(rows[at].metrics)

    def __len__(self) -> int:
        return len(self.rows)

    def records(self) -> list[dict[str, Any]]:
        """Return one flat mapping per row, so that ``pandas.DataFrame(results.records())`` is the table."""
        named = ("name", "collection", "split", "seed")
        return [{**{key: getattr(row, key) for key in named}, **row.metrics} for row in self.rows]

    def __str__(self) -> str:
        metrics = list(dict.fromkeys(metric for row in self.rows for metric in row.metrics))
        width = max([cell_len(row.name) for row in self.rows], default=0)
        lines = [" " * width + "".join(f"{metric:>12}" for metric in metrics)]
        for row in self.rows:
            values = (f"{100 * row.metrics[metric]:12.1f}" if metric in row.metrics else " " * 12 for metric in metrics)
            lines.append(set_cell_size(row.name, width) + "".join(values))
        return "\n".join(lines)


def run(
    experiment: str,
    overrides: Sequence[str] = (),
    *,
    recipes: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Results:
    """Run a recipe in a separate process, as ``condensery experiment=NAME ...`` does. Existing artifacts are reused.

    Args:
        experiment: name of the recipe, such as ``quickstart``.
        overrides: config overrides as on the command line, such as ``["seed=2", "output_root=DIR"]``.
        recipes: folder with your own recipes, in addition to the recipes of this package (``--config-dir``).
        environment: environment variables of the process, in addition to those of this program.

    Returns:
        The rows of the recipe's table.

    Raises:
        UserError: the run failed or was a dry run; or an override is not a string, or is an option such as ``-m`` for a
            sweep. If the run failed, the message is the error that the run printed.
    """
    check_values(run, locals())
    overrides = whole_texts(overrides, "run: override")
    whole_texts((environment or {}).values(), "run: value of environment")
    if wrong := [one for one in overrides if one.startswith("-")]:
        raise UserError(f"run: {wrong[0]}: give only key=value; for a sweep, use `condensery -m experiment=...`")
    with NamedTemporaryFile("r", prefix="condensery-", encoding="utf-8") as file:
        command = [sys.executable, "-m", "condensery", f"experiment={experiment}", *overrides]
        command += ["--config-dir", str(recipes)] if recipes else []
        given = {**os.environ, **(environment or {}), FOLDER_FILE: file.name}
        last = ""
        with subprocess.Popen(command, env=given, stderr=subprocess.PIPE, text=True, errors="replace") as process:
            for line in process.stderr or ():
                last = line.strip() or last
                sys.stderr.write(line)
        folder = file.read()
    if process.returncode or not folder:
        raise UserError("run: " + (last.removeprefix("error: ") or f"no results, exit code {process.returncode}"))
    return Results(Path(folder), read_results(Path(folder) / "results.json"))
