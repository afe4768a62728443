"""The page of a run or a sweep, gathered from what lies in the run folders and artifacts."""

from pathlib import Path

import numpy as np
import pytest
from toy_commands import Compose

from condensery.evaluation.metrics import evaluate
from condensery.pipeline.reports.page_content import page_of_run, write_whole
from condensery.pipeline.run import run
from condensery.reporting.html_page import Page
from condensery.reporting.results import Row, read_results, write_results
from condensery.retrieval.runs import Run, write_run
from condensery.system.files import read_json, write_json
from condensery.text.collection import Collection
from condensery.text.records import Passage, Query
from condensery.text.writer import CollectionWriter

QUERIES = 12


@pytest.fixture
def corpus(tmp_path: Path) -> Collection:
    folder = tmp_path / "artifacts" / "corpus" / "c0"
    folder.mkdir(parents=True)
    with CollectionWriter(folder, "woods") as writer:
        for i in range(QUERIES):
            for split in ("dev", "test"):
                writer.add_judgement(split, f"q{i}", f"p{i}", 1)
            writer.add_query(Query(f"q{i}", f"question {i} <b>"))
            writer.add_passage(Passage(f"p{i}", "", f"passage {i} <b>"))
    return Collection(folder)


def measured(root: Path, corpus: Collection, name: str, first: int, split: str = "test") -> Row:
    """A row as the stage ``evaluate`` leaves it: query i is answered at rank 1 from ``first`` on, else at 2."""
    folder = root / "artifacts" / "evaluate" / f"{name}-{split}"
    folder.mkdir(parents=True)
    order = np.arange(QUERIES)
    ranks = np.stack([order, (order + 1) % QUERIES], axis=1)
    ranks[:first] = ranks[:first, ::-1]
    found = Run(order, ranks, np.tile(np.float32([2, 1]), (QUERIES, 1)))
    write_run(folder / "run.trec.gz", found, corpus)
    evaluation = evaluate(found, corpus, split, ["MRR@10"])
    evaluation.save(folder / "evaluation.npz")
    index = "bm25/i0" if name == "BM25" else "encode/i1"
    manifest = {"config": {"split": split, "depth": 2}, "inputs": {"corpus": ["corpus/c0"], "index": [index]}}
    write_json(folder / "manifest.json", manifest)
    return Row(name, "woods", split, evaluation.metrics, artifact=f"evaluate/{folder.name}")


def job(root: Path, name: str, rows: list[Row]) -> Path:
    folder = root / "runs" / name
    folder.mkdir(parents=True)
    write_json(folder / "study.json", {"command": "python run.py", "about": [], "lost": {}, "turn": 1})
    write_json(folder / "graph.json", {})
    (folder / "config.yaml").write_text("name: study\n")
    write_results(folder / "results.json", rows)
    return folder


def test_the_page_of_a_run_shows_questions_with_what_its_rows_found(tmp_path: Path, corpus: Collection) -> None:
    rows = [measured(tmp_path, corpus, "BM25", 6), measured(tmp_path, corpus, "dense", 3)]
    folder = job(tmp_path, "study-00000000", [*rows, Row("lost", "", "test", {}, failed="it broke")])
    page_of_run(folder, tmp_path, [], [])
    page, found = (folder / "index.html").read_bytes(), read_json(folder / "examples.json")
    assert (found["best"], found["other"], found["split"], found["metric"]) == ("dense", "BM25", "test", "MRR@10")
    assert [item["kind"] for item in found["items"]] == ["won"] * 3 + ["every"] + ["close"] * 6
    assert {item["id"] for item in found["items"][:3]} == {"q3", "q4", "q5"}
    assert [one["row"] for one in found["items"][0]["findings"]] == ["BM25", "dense"]
    assert b"<h3>dense ahead of BM25</h3>" in page
    for item in found["items"]:
        number = item["id"][1:].encode()
        assert b"question %s &lt;b&gt;" % number in page
        assert b"passage %s &lt;b&gt;" % number in page
    numbers = (folder / "examples.json").read_bytes()
    page_of_run(folder, tmp_path, [], [])
    assert (folder / "index.html").read_bytes() == page
    assert (folder / "examples.json").read_bytes() == numbers


def test_questions_of_one_split_are_shown(tmp_path: Path, corpus: Collection) -> None:
    rows = [measured(tmp_path, corpus, name, 6, split) for split in ("dev", "test") for name in ("BM25", "dense")]
    folder = job(tmp_path, "study-00000000", rows)
    page_of_run(folder, tmp_path, [], [])
    found = read_json(folder / "examples.json")
    assert found["split"] == "dev"
    assert all(len(item["findings"]) == 2 for item in found["items"])


def test_the_page_of_a_sweep_shows_those_of_its_first_job_with_numbers(tmp_path: Path, corpus: Collection) -> None:
    failed = job(tmp_path, "study-00000000", [Row("BM25", "", "test", {}, failed="it broke")])
    first = job(tmp_path, "study-00000001", [measured(tmp_path, corpus, "BM25", 6)])
    second = job(tmp_path, "study-00000002", [measured(tmp_path, corpus, "dense", 3)])
    folder = tmp_path / "sweeps" / "study"
    runs = [("seed=1", failed), ("seed=2", first), ("seed=3", second)]
    write_whole(Page("study", rows=read_results(first / "results.json")), folder, tmp_path, runs)
    found = read_json(folder / "examples.json")
    assert (found["job"], found["best"], found["other"]) == ("seed=2", "BM25", None)
    assert "what the rows of one job found, seed=2" in (folder / "index.html").read_text()


def test_a_run_that_retrieved_nothing_has_no_examples(composed: Compose) -> None:
    """Its evaluations, like those of sentence tasks, hold no rankings. What an earlier run left is removed."""
    finished = run(composed())
    assert finished.folder is not None
    assert not (finished.folder / "examples.json").exists()
    assert 'id="examples"' not in (finished.folder / "index.html").read_text()
    write_json(finished.folder / "examples.json", {})
    run(composed("table.title=Another"))
    assert not (finished.folder / "examples.json").exists()


def test_a_recipe_without_a_table_has_no_examples(composed: Compose) -> None:
    rows = [f"~table.rows.{name}" for name in ("BM25", "plain", "better", "round2")]
    finished = run(composed(*rows, "table.baseline=null"))
    assert finished.folder is not None
    assert not (finished.folder / "examples.json").exists()
    assert "Examples" not in (finished.folder / "index.html").read_text()


def test_the_page_shows_suspected_false_negatives(tmp_path: Path, corpus: Collection) -> None:
    folder = job(tmp_path, "study-00000000", [measured(tmp_path, corpus, "BM25", 6)])
    page_of_run(folder, tmp_path, [], [])
    assert "Suspected false negatives" not in (folder / "index.html").read_text()
    item = {"ids": ["q1", "p2"], "numbers": ["0.9", "0.8", "1.125"], "query": "question <b>", "passage": "p & q"}
    items = [{**item, "positive": "right"}, {**item, "numbers": ["1", "-2", ""], "positive": "other"}]
    audit = tmp_path / "artifacts" / "audit_negatives" / "a0"
    audit.mkdir(parents=True)
    write_json(audit / "suspects.json", {"suspects": 1234, "left_out": True, "items": items})
    node = {"kind": "audit_negatives", "id": "a0", "reads": {}}
    write_json(folder / "graph.json", {"suspected": node, "again": node})
    page_of_run(folder, tmp_path, [], [])
    page = (folder / "index.html").read_text()
    assert page.count("1,234 passages that mining left out") == 1, "an artifact is shown once"
    assert '<section id="suspected-false-negatives">' in page
    assert "<bdi>question &lt;b&gt;</bdi>" in page
    assert "<bdi>p &amp; q</bdi>" in page
    assert '<th scope="row">1.125</th><td>0.9</td><td>0.8</td>' in page
