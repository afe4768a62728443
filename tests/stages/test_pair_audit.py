"""The pair audit from end to end: sheets out, sheets in, table 5, and BM25's ranks beside it."""

import csv
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_runs import Done, run_command

from condensery.evaluation.pair_audit.bm25_ranks import index_passages
from condensery.evaluation.pair_audit.votes import fleiss_kappa, wilson
from condensery.retrieval.indexes.bm25 import BM25Index, index_texts
from condensery.retrieval.indexes.terms import Analyser
from condensery.stages.evaluation import audit_pairs
from condensery.system.files import read_json
from condensery.text.table import TextTable

KINDS = ["passage-passage", "passage-query"]


@pytest.fixture(scope="module", autouse=True)
def _toys() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.syspath_prepend(str(Path(__file__).parent))
        monkeypatch.setenv("CONDENSERY_STAGES", "audit_toys")
        yield


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all runs of this file write, so that passages and queries are made once."""
    return tmp_path_factory.mktemp("audit")


@pytest.fixture(scope="module")
def first(root: Path) -> Done:
    """The recipe as it is, without filled sheets."""
    return audited(root).sound()


@pytest.fixture(scope="module")
def audit(first: Done) -> Path:
    """The artifact of the first run."""
    return first.folder / "stages" / "audit"


def audited(root: Path, *overrides: str) -> Done:
    return run_command("experiment=audit", f"output_root={root}", *overrides)


def one_line(done: Done) -> str:
    assert done.code == 1, done.out
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    return done.err


def key_of(audit: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (audit / "pairs.jsonl").read_text().splitlines()]


def fill(audit: Path, folder: Path, seed: int = 0) -> dict[int, list[bool]]:
    """Copy the sheets of an audit and fill them in; the votes on each number, sheet by sheet."""
    draw = random.Random(seed)
    votes: dict[int, list[bool]] = {}
    for sheet in sorted(audit.glob("sheet-*.csv")):
        heading, *rows = csv.reader(sheet.read_text(encoding="utf-8-sig").splitlines())
        for row in rows:
            high = draw.random() < 0.6
            votes.setdefault(int(row[0]), []).append(high)
            row[3] = "high" if high else "low"
        folder.mkdir(exist_ok=True)
        with open(folder / sheet.name, "w", newline="") as stream:
            csv.writer(stream).writerows([heading, *rows])
    return votes


def test_a_first_run_writes_empty_sheets_and_their_key_and_ends_without_a_table_of_retrievers(
    first: Done, audit: Path
) -> None:
    done = first
    assert done.err == ""
    names = {path.name for path in audit.iterdir()}
    assert names == {*(f"sheet-{i}.csv" for i in (1, 2, 3)), "pairs.jsonl", "audit.json", "audit.md", "manifest.json"}
    assert not (done.folder / "table.md").exists()
    assert "No judgements yet" in done.out
    assert str(audit.resolve()) in done.out
    key = key_of(audit)
    assert [record["number"] for record in key] == list(range(1, 25))
    assert [sum(record["kind"] == kind for record in key) for kind in KINDS] == [12, 12]
    rows = list(csv.reader((audit / "sheet-1.csv").read_text(encoding="utf-8-sig").splitlines()))[1:]
    assert [row[1:] for row in rows] == [[record["passage_text"], record["context_text"], ""] for record in key]


def test_filled_sheets_become_table_5(root: Path, audit: Path, tmp_path: Path) -> None:
    votes = fill(audit, tmp_path / "filled")
    done = audited(root, f"stages.audit.sheets={tmp_path / 'filled'}").sound()
    assert done.computed == ["audit"]
    judged = done.folder / "stages" / "audit"
    found = read_json(judged / "audit.json")["kinds"]
    for kind in KINDS:
        own = [votes[record["number"]] for record in key_of(judged) if record["kind"] == kind]
        high = sum(sum(vote) >= 2 for vote in own)
        kappa = fleiss_kappa(_counts(own))
        result = found[kind]["judged"]
        assert (result["pairs"], result["annotators"], result["high"]) == (12, 3, high)
        assert result["interval"] == pytest.approx(wilson(high, 12))
        assert result["kappa"] == pytest.approx(kappa)
        published = {"passage-passage": "35.5", "passage-query": "56.6"}[kind]
        (line,) = [line for line in (judged / "audit.md").read_text().splitlines() if f"{high / 0.12:.1f} [" in line
                   and line.startswith(f"| {kind} ")]  # fmt: skip
        assert f"{kappa:.3f}" in line
        assert published in line
        assert f"{kappa:.3f}" in done.out
    for record in key_of(judged):
        assert record["high_votes"] == sum(votes[record["number"]])


def _counts(votes: list[list[bool]]) -> Any:
    import numpy as np

    return np.array([[sum(vote), 3 - sum(vote)] for vote in votes])


def test_the_content_of_the_sheets_decides_what_is_computed_anew(root: Path, audit: Path, tmp_path: Path) -> None:
    fill(audit, tmp_path / "one")
    judged = audited(root, f"stages.audit.sheets={tmp_path / 'one'}").sound()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    os.rename(tmp_path / "two" / "sheet-1.csv", tmp_path / "two" / "zoe.csv")
    files = ",".join(map(str, (tmp_path / "two").iterdir()))
    again = audited(root, f"stages.audit.sheets=[{files}]").sound()
    assert again.computed == []
    assert (again.folder / "stages" / "audit").resolve() == (judged.folder / "stages" / "audit").resolve()
    assert "published" in again.out, "a reused audit is shown too"
    fill(audit, tmp_path / "two", seed=1)
    os.remove(tmp_path / "two" / "zoe.csv")
    assert audited(root, f"stages.audit.sheets={tmp_path / 'two'}").sound().computed == ["audit"]


def test_six_annotators_in_two_groups_as_in_the_paper(root: Path, tmp_path: Path) -> None:
    audit = audited(root, "stages.audit.groups=2", "stages.audit.proxy_pairs=0").sound().folder / "stages" / "audit"
    assert len(list(audit.glob("sheet-*.csv"))) == 6
    assert "proxy" not in read_json(audit / "audit.json")["kinds"][KINDS[0]]
    votes = fill(audit, tmp_path / "filled")
    given = ["stages.audit.groups=2", "stages.audit.proxy_pairs=0", f"stages.audit.sheets={tmp_path / 'filled'}"]
    judged = audited(root, *given).sound().folder / "stages" / "audit"
    assert all(record["high_votes"] == sum(votes[record["number"]]) for record in key_of(judged))


def test_ranks_are_places_in_the_ranking_of_all_passages(first: Done, tmp_path: Path) -> None:
    run = first.folder / "stages"
    table = TextTable(run / "passages" / "passages.arrow")
    texts = list(table.column("text"))
    index_texts(texts, len(texts), tmp_path, 0.9, 0.4, Analyser("english", "porter"), "texts")
    index, checked = BM25Index(tmp_path), 0
    for record in key_of(run / "audit"):
        _, found = index.search_texts([record["context_text"]], len(texts))
        ranking = [table.ids[row] for row in found[0] if row >= 0 and table.ids[row] != record["context"]]
        place = ranking.index(record["passage"]) + 1 if record["passage"] in ranking else None
        assert record["bm25_rank"] == place
        checked += place is not None and place > 1
    assert checked > 3
    ranked = read_json(run / "audit" / "audit.json")["kinds"]
    assert [ranked[kind]["proxy"]["pairs"] for kind in KINDS] == [15, 15]
    for kind in KINDS:
        shares = [ranked[kind]["proxy"][f"rank_{cutoff}"] for cutoff in (1, 10, 100)]
        assert 0 < shares[0] <= shares[1] <= shares[2] <= 1


def test_all_pairs_are_ranked_where_there_are_fewer_than_wanted(root: Path) -> None:
    found = audited(root, "stages.audit.proxy_pairs=5000").sound().folder / "stages" / "audit" / "audit.json"
    counts = [read_json(found)["kinds"][kind]["proxy"]["pairs"] for kind in KINDS]
    assert counts == [3 + 6 + 1 + 10 + 3 + 1 + 6 + 3 + 3, 40]


def test_a_context_is_cut_before_it_searches(root: Path, audit: Path) -> None:
    whole = read_json(audit / "audit.json")
    cut = read_json(audited(root, "stages.audit.context_words=1").sound().folder / "stages" / "audit" / "audit.json")
    assert cut["kinds"][KINDS[0]]["proxy"] != whole["kinds"][KINDS[0]]["proxy"]


def test_the_keys_of_bm25_and_the_number_of_annotators_count(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def watch(passages: TextTable, folder: Path, *settings: Any) -> None:
        seen.extend(settings)
        index_passages(passages, folder, *settings)

    monkeypatch.setattr(audit_pairs, "index_passages", watch)
    given = ["k1=1.5", "b=0.75", "stopwords=none", "stemmer=none", "annotators=1"]
    done = audited(root, *(f"stages.audit.{one}" for one in given)).sound()
    assert seen == [1.5, 0.75, "none", "none"]
    assert [path.name for path in (done.folder / "stages" / "audit").glob("sheet-*")] == ["sheet-1.csv"]


def test_without_queries_only_passage_pairs_are_audited(root: Path) -> None:
    done = audited(root, "stages.audit.queries=null", "~stages.queries").sound()
    assert list(read_json(done.folder / "stages" / "audit" / "audit.json")["kinds"]) == KINDS[:1]
    assert KINDS[1] not in done.out


def test_what_cannot_be_audited_is_said_in_one_line(root: Path, audit: Path, tmp_path: Path) -> None:
    assert "no document has two passages" in one_line(audited(root, "stages.passages.sizes=[1,1,1]"))
    wanted = "stages.audit.pairs: 37 passage-passage pairs are wanted, but the passages make only 36;"
    assert wanted in one_line(audited(root, "stages.audit.pairs=37"))
    nowhere = one_line(audited(root, f"stages.audit.sheets={tmp_path / 'nowhere'}"))
    assert f"{tmp_path / 'nowhere'}: no such file" in nowhere
    assert "stages.audit.groups: 13 groups are more than" in one_line(audited(root, "stages.audit.groups=13"))
    fill(audit, tmp_path / "filled")
    of_another = one_line(audited(root, f"stages.audit.sheets={tmp_path / 'filled'}", "seed=2"))
    assert "sheet-1.csv:2: the texts are not those of pair 1" in of_another
    empty = one_line(audited(root, f"stages.audit.sheets={audit.resolve()}"))
    assert "sheet-1.csv:2: the judgement is empty (number 1); write high or low" in empty
