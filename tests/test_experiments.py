"""The studies in experiments/: their tables show the results that lie beside them, each with the artifact it comes from."""

import re
import subprocess
import sys
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


def test_the_sample_of_msmarco_is_split_by_query(tmp_path: Path) -> None:
    judged = [f"q{at // 2}\tp{at}\t1" for at in range(600)]
    (tmp_path / "in" / "qrels").mkdir(parents=True)
    (tmp_path / "in" / "qrels" / "all.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]))
    for stem in ("corpus.jsonl", "queries.jsonl"):
        (tmp_path / "in" / stem).write_text(f"{stem}\n")
    program = RESULTS[0].parents[1] / "msmarco_sample" / "split.py"
    command = [sys.executable, str(program), str(tmp_path / "in"), "all", str(tmp_path / "out")]
    subprocess.run(command, check=True, capture_output=True)
    parts = [(tmp_path / "out" / "qrels" / f"{name}.tsv").read_text().splitlines()[1:] for name in ("train", "test")]
    assert sorted([*parts[0], *parts[1]]) == sorted(judged)
    queries = [{line.partition("\t")[0] for line in part} for part in parts]
    assert not queries[0] & queries[1]
    assert 30 < len(queries[1]) < 80
    assert (tmp_path / "out" / "corpus.jsonl").read_text() == "corpus.jsonl\n"
    missing = subprocess.run([*command[:3], "none", *command[4:]], capture_output=True, text=True)
    assert missing.returncode == 1
    assert missing.stderr == f"error: {tmp_path / 'in' / 'qrels' / 'none.tsv'}: No such file or directory\n"


def test_the_studies_are_found() -> None:
    assert RESULTS
