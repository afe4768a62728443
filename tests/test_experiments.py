"""The studies in experiments/: their tables show the results that lie beside them, each with the artifact it comes from."""

import re
from pathlib import Path

import pytest

from condensery.reporting.results import read_results
from condensery.reporting.table import build_table

RESULTS = sorted((Path(__file__).resolve().parents[1] / "experiments").glob("**/results*.json"))


def cells_of(text: str) -> dict[str, list[str]]:
    """The lines of all Markdown tables of a page: name -> cells without marks, of all lines that begin so."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("|"):
            name, *cells = (cell.strip().replace("*", "").replace("†", "") for cell in line.strip("| ").split("|"))
            found.setdefault(name, []).extend(cells)
    return found


@pytest.mark.parametrize("results", RESULTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_studys_table_shows_its_results_and_each_has_an_artifact(results: Path) -> None:
    rows = read_results(results)
    assert all(re.fullmatch(r"evaluate(_sentences)?/[0-9a-f]{16}", row.artifact) for row in rows)
    shown, table = cells_of((results.parent / "README.md").read_text(encoding="utf-8")), build_table(rows)
    for name, cells in zip(table.names, table.cells, strict=True):
        assert name in shown
        assert [cell.text for cell in cells if cell.text not in shown[name]] == [], name


def test_the_studies_are_found() -> None:
    assert RESULTS
