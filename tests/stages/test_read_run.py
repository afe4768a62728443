"""Stage ``read_run``: another system's run file is a row of the table, can be fused, and is refused in one line."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_lines import names
from single_stage import inputs, run_stage
from small_runs import Done, run_command, some_text, splits_of, write

from condensery.errors import UserError
from condensery.evaluation.metrics import Evaluation
from condensery.retrieval.indexes.opening import open_index
from condensery.stages.base import Artifact
from condensery.stages.negatives.config import ReadNegativesConfig
from condensery.stages.rankings.config import ReadRunConfig
from condensery.stages.scoring.config import ScorePairsConfig
from condensery.system.files import read_json, write_json
from condensery.text.collection import Collection

LEXICAL = [
    *("trainer=cpu", "logger=csv", "stages.corpus={stage: corpus}", "stages.bm25={stage: bm25}"),
    "stages.long={stage: bm25, b: 1, k1: 90, stopwords: none}",
    *("+table.rows.BM25=bm25", "+table.rows.long=long", "table.baseline=BM25"),
]


def stage(done: Done, name: str) -> Artifact:
    return Artifact((done.folder / "stages" / name).resolve())


@pytest.fixture(scope="module")
def lexical(on_beir: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [*LEXICAL, *on_beir, f"output_root={tmp_path_factory.mktemp('runs')}"]


@pytest.fixture(scope="module")
def run_file(lexical: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of the row ``long``, as another system would hand it over."""
    done = run_command(*lexical).sound()
    path = tmp_path_factory.mktemp("elsewhere") / "long.trec.gz"
    path.write_bytes((stage(done, "long.evaluation").path / "run.trec.gz").read_bytes())
    return path


@pytest.fixture(scope="module")
def done(lexical: list[str], run_file: Path) -> Done:
    return run_command(
        *lexical,
        f"stages.run={{stage: read_run, file: {run_file}}}",
        "stages.fused={stage: fuse, retrievers: [bm25, run], weights: [1, 1]}",
        "stages.same={stage: fuse, retrievers: [bm25, long], weights: [1, 1]}",
        *("+table.rows.run=run", "+table.rows.fused=fused", "+table.rows.same=same"),
    ).sound()


def test_a_run_file_is_a_row_with_the_numbers_and_the_tests_of_the_system_that_wrote_it(done: Done) -> None:
    rows = {row["row"]: row for row in read_json(done.folder / "results.json")}
    assert rows["run"]["metrics"] == rows["long"]["metrics"]
    assert rows["run"]["metrics"] != rows["BM25"]["metrics"]
    saved = [Evaluation.load(stage(done, f"{name}.evaluation").path / "evaluation.npz") for name in ("run", "long")]
    for metric, values in saved[0].per_query.items():
        np.testing.assert_array_equal(values, saved[1].per_query[metric])
    lines = (done.folder / "table.md").read_text().splitlines()
    ours, theirs = (
        [line.split("|")[2:] for line in lines if line.startswith(f"| {name} ")] for name in ("run", "long")
    )
    assert ours == theirs
    assert len(ours) == 1 + 3, "the numbers, and for each metric a difference from BM25 with its p"


def test_the_ranking_is_the_files_own(done: Done, run_file: Path) -> None:
    with (
        gzip.open(run_file, "rt") as given,
        gzip.open(stage(done, "run.evaluation").path / "run.trec.gz", "rt") as ours,
    ):
        wanted = [line.split()[:5] for line in given]
        assert [line.split()[:5] for line in ours] == wanted
    assert len(wanted) > 20


def test_it_is_fused_like_the_system_that_wrote_it(done: Done) -> None:
    rows = {row["row"]: row for row in read_json(done.folder / "results.json")}
    assert rows["fused"]["metrics"] == rows["same"]["metrics"]
    assert rows["fused"]["metrics"] not in (rows["BM25"]["metrics"], rows["long"]["metrics"])


def test_it_cannot_be_asked_and_says_so(done: Done, lexical: list[str], run_file: Path) -> None:
    asked = run_command(
        *lexical, f"stages.run={{stage: read_run, file: {run_file}}}", "table.rows={run: run}", "ask=what is near",
        "table.baseline=null",
    )  # fmt: skip
    assert asked.code == 1
    names(asked.err, "run files", "own queries")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return inputs(tmp_path)["corpus"]


def lines_of(collection: Collection, number: int, score: str = "1.5") -> list[str]:
    """Two lines for each of the first ``number`` train queries, both with the same score."""
    queries = [collection.queries.ids[row] for row in collection.questions("train")[:number].tolist()]
    passages = collection.passages.ids
    return [f"{query} Q0 {passages[7 - rank]} {rank} {score} other" for query in queries for rank in (1, 2)]


def test_ties_keep_the_order_of_the_rank_column(corpus: Path, tmp_path: Path) -> None:
    collection = Collection(corpus)
    queries = collection.questions("train")
    path = write(tmp_path / "run.trec", lines_of(collection, len(queries)))
    found = run_stage("read_run", tmp_path / "made", {"corpus": corpus}, file=path, split="train")
    assert found == {"queries": len(queries), "depth": 2}
    scores, rows = open_index(tmp_path / "made", collection).search(queries, 3)
    assert rows.tolist() == [[6, 5, -1]] * len(queries)
    assert scores[0, 0] == np.float32(1.5) > scores[0, 1] > 1.4999


def test_a_metric_that_counts_more_passages_than_the_run_has_is_named(corpus: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "run.trec", lines_of(Collection(corpus), 1000))
    run_stage("read_run", tmp_path / "run", {"corpus": corpus}, file=path, split="train")
    write_json(
        tmp_path / "run" / "manifest.json", {"name": "theirs", "kind": "read_run", "makes": "index", "inputs": {}}
    )
    read = {"corpus": corpus, "index": tmp_path / "run"}
    for metrics, warned in ((["MRR@2", "Recall@3"], True), (["MRR@2"], False)):
        given = {"index": "theirs", "split": "train", "metrics": metrics}
        found = run_stage("evaluate", tmp_path / f"evaluated {warned}", read, **given)
        wanted = "theirs ranks 2 passages of a query, so Recall@3 counts no more"
        assert found.get("warnings", []) == [wanted] * warned


def test_a_query_without_a_line_is_refused_or_has_no_passage(corpus: Path, tmp_path: Path) -> None:
    collection = Collection(corpus)
    queries = collection.questions("train")
    path = write(tmp_path / "run.trec", lines_of(collection, len(queries) - 1))
    with pytest.raises(UserError) as raised:
        run_stage("read_run", tmp_path / "made", {"corpus": corpus}, file=path, split="train")
    missing = collection.queries.ids[int(queries[-1])]
    names(
        str(raised.value),
        str(path),
        f"1 of {len(queries)} queries of the split 'train' has no",
        repr(missing),
        "missing=empty",
    )
    found = run_stage("read_run", tmp_path / "made", {"corpus": corpus}, file=path, split="train", missing="empty")
    assert found["warnings"] == [f"1 of {len(queries)} queries has no line in the run file, so their metrics are 0"]
    index = open_index(tmp_path / "made", collection)
    assert index.search(queries, 2)[1].tolist() == [[6, 5]] * (len(queries) - 1) + [[-1, -1]]
    np.testing.assert_array_equal(index.score(queries[-1:], np.array([[6, 5]])), [[np.nan, np.nan]])


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("q0 Q0 0 1 nan x", "'nan'"),
        ("q0 Q0 0 1 high x", "'high'"),
        ("q0 Q0 nowhere 1 2.0 x", "'nowhere'"),
        ("nobody Q0 0 1 2.0 x", "'nobody'"),
        ("q0 Q0 0 2.0", "6 columns"),
    ],
)
def test_a_faulty_line_is_one_line(line: str, word: str, corpus: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "run.trec", ["q2 Q0 1 1 2.0 x", line])
    with pytest.raises(UserError) as raised:
        run_stage("read_run", tmp_path / "made", {"corpus": corpus}, file=path, split="train")
    names(str(raised.value), f"{path}:2", word)


def test_another_split_and_a_missing_file_are_one_line(tmp_path: Path, lexical: list[str], run_file: Path) -> None:
    dev, _, _ = splits_of(some_text())["dev"][0]
    path = write(tmp_path / "dev.trec", [f"{dev} Q0 3 1 2.0 x"])
    run = "stages.run={{stage: read_run, file: {}{}}}"
    done = run_command(*lexical, run.format(path, ""), "+table.rows.run=run")
    assert done.code == 1
    names(done.err, str(path), "10 of 10 queries of the split 'test'", "missing=empty")
    done = run_command(*lexical, run.format(path, ", missing: empty"), "+table.rows.run=run")
    assert done.code == 1, "not a single query of the split"
    done = run_command(*lexical, run.format(tmp_path / "no.trec", ""), "dry_run=plan")
    assert done.code == 1
    names(done.err, str(tmp_path / "no.trec"), "stage.read_run.file")
    done = run_command(*lexical, run.format(run_file, ""), "stages.fused={stage: fuse, retrievers: [bm25, run]}")
    assert done.code == 1
    names(done.err, "stages.fused.retrievers", "run ranks only for the queries of test", "dev")


def test_a_query_of_another_split_is_one_line(tmp_path: Path, corpus: Path) -> None:
    collection = Collection(corpus)
    path = write(tmp_path / "own.trec", lines_of(collection, len(collection.questions("train"))))
    run_stage("read_run", tmp_path / "made", {"corpus": corpus}, file=path, split="train")
    queries = tmp_path / "made" / "queries.npy"
    np.save(queries, np.load(queries) + 1)
    with pytest.raises(UserError, match=r"was not read \(only those of the split 'train' were\).* reads the run"):
        open_index(tmp_path / "made", collection).search(np.array([0]), 1)


def test_the_id_is_that_of_the_content(lexical: list[str], run_file: Path, tmp_path: Path, done: Done) -> None:
    moved = tmp_path / "moved.trec.gz"
    moved.write_bytes(run_file.read_bytes())
    again = run_command(*lexical, f"stages.run={{stage: read_run, file: {moved}}}", "+table.rows.run=run").sound()
    assert stage(again, "run").id == stage(done, "run").id


@pytest.mark.parametrize("kind", [ReadRunConfig, ScorePairsConfig, ReadNegativesConfig])
def test_a_tilde_in_the_name_of_a_file_is_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "file.txt").write_text("1 2 3\n")
    recipe = {"split": "train", "precision": "fp32", "seed": 1}
    config = kind(file="~/file.txt", **{key: value for key, value in recipe.items() if key in kind.model_fields})
    assert config.file == tmp_path / "file.txt"
    assert config.identity()
