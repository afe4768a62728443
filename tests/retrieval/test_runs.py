"""Run files: what is written reads back, to the last bit where no scores tie; what others wrote is checked."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from condensery.errors import UserError
from condensery.retrieval import runs
from condensery.retrieval.ranking import strictly_falling
from condensery.retrieval.runs import Run, rankings_of, read_run, write_run
from condensery.text.collection import Collection


@pytest.fixture
def run() -> Run:
    random = np.random.default_rng(0)
    rows = np.stack([random.permutation(60)[:9] for _ in range(5)]).astype(np.int64)
    scores = np.sort(random.normal(size=(5, 9)).astype(np.float32), axis=1)[:, ::-1].copy()
    scores[0, 3:6] = scores[0, 3]  # ties keep their order
    rows[2, 4:], scores[2, 4:] = -1, -np.inf
    return Run(np.array([0, 2, 3, 7, 11]), rows, scores)


@pytest.mark.parametrize("name", ["run.txt", "run.txt.gz"])
def test_a_run_reads_back_exactly(tmp_path: Path, collection: Collection, run: Run, name: str) -> None:
    write_run(tmp_path / name, run, collection)
    read = read_run(tmp_path / name, collection)
    np.testing.assert_array_equal(read.query_rows, run.query_rows)
    np.testing.assert_array_equal(read.passage_rows, run.passage_rows)
    found = run.passage_rows >= 0
    np.testing.assert_array_equal(read.scores, np.where(found, strictly_falling(run.scores), -np.inf))
    tied = np.zeros(run.scores.shape, bool)
    tied[0, 4:6] = True  # behind the first of them
    np.testing.assert_array_equal(read.scores[~tied], run.scores[~tied])
    np.testing.assert_allclose(read.scores[tied], run.scores[tied], rtol=3e-7)
    write_run(tmp_path / f"again.{name}", read, collection)
    assert (tmp_path / f"again.{name}").read_bytes() == (tmp_path / name).read_bytes()


def test_lines_are_those_of_trec(tmp_path: Path, collection: Collection, run: Run) -> None:
    write_run(tmp_path / "run.txt.gz", run, collection, tag="bm25")
    lines = gzip.decompress((tmp_path / "run.txt.gz").read_bytes()).decode().splitlines()
    assert len(lines) == 4 * 9 + 4
    first = lines[0].split(" ")
    assert (first[0], first[1], first[2], first[3], first[5]) == ("q0", "Q0", f"p{run.passage_rows[0, 0]}", "1", "bm25")
    assert np.float32(first[4]) == run.scores[0, 0]


@pytest.mark.parametrize("score", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_is_not_written(score: float, tmp_path: Path, collection: Collection) -> None:
    run = Run(
        np.array([2, 5]), np.array([[1, 2, -1], [3, 4, 5]]), np.array([[1, 0, -np.inf], [3, score, 1]], np.float32)
    )
    with pytest.raises(UserError, match=r"run\.gz: a score of query 'q5' is not finite"):
        write_run(tmp_path / "run.gz", run, collection)
    assert not list(tmp_path.iterdir())


def test_the_same_run_gives_the_same_bytes(tmp_path: Path, collection: Collection, run: Run) -> None:
    for name in ("a.gz", "b.gz"):
        write_run(tmp_path / name, run, collection)
    packed = (tmp_path / "a.gz").read_bytes()
    assert packed == (tmp_path / "b.gz").read_bytes()
    assert packed[3:8] == bytes(5)  # neither a name nor the time in the header


def test_a_run_of_another_tool_is_sorted_by_score(tmp_path: Path, collection: Collection) -> None:
    path = tmp_path / "run.txt"
    path.write_text("q5 Q0 p1 1 0.5 x\nq5\tQ0\tp2\t2\t0.9\tx\nq1 Q0 p3 2 1e0 x\nq1 Q0 p4 1 1.0 x\n")
    read = read_run(path, collection)
    assert read.query_rows.tolist() == [1, 5]
    assert read.passage_rows.tolist() == [[4, 3], [2, 1]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q1 Q0 p3 1 1.0", "6 columns"),
        ("q1 Q0 p3 first 1.0 x", 'the rank must be a whole number, not "first"'),
        ("q1 Q0 p3 99999999999999999999 1.0 x", "the rank must be a whole number"),
        ("q1 Q0 p3 1 high x", "the score must be a finite number of 32 bits, not 'high'"),
        ("q1 Q0 p3 1 nan x", "the score must be a finite number of 32 bits, not 'nan'"),
        ("q1 Q0 p3 1 inf x", "the score must be a finite number of 32 bits, not 'inf'"),
        ("q1 Q0 p3 1 1e999 x", "the score must be a finite number of 32 bits, not '1e999'"),
        ("q1 Q0 p3 1 -1e39 x", "the score must be a finite number of 32 bits, not '-1e39'"),
        ("q1 Q0 p3 1 0_1 x", "the score must be a finite number of 32 bits, not '0_1'"),
        ("q1 Q0 p3 1 １ x", "the score must be a finite number of 32 bits, not '１'"),
        (f"q1 Q0 {'9' * 4000} 1 1 x", f"passage '{'9' * 60}… [(]4,000 characters[)]' is unknown"),
        ("q1 Q0 p3 1 \udcff x", "not valid UTF-8"),
        ("q99 Q0 p3 1 1.0 x", "query 'q99' is unknown"),
        ("q1 Q0 p99 1 1.0 x", "passage 'p99' is unknown"),
        ("q0 Q0 p1 2 0.5 x", "twice"),
    ],
)
def test_a_fault_names_its_line(tmp_path: Path, collection: Collection, line: str, message: str) -> None:
    path = tmp_path / "run.txt"
    path.write_text(f"q0 Q0 p1 1 1.0 x\n{line}\n", errors="surrogateescape")
    with pytest.raises(UserError, match=message) as caught:
        read_run(path, collection)
    assert f"{path}:2: " in str(caught.value)


@pytest.mark.parametrize("block", [1, 7, 100, 1 << 20])
def test_the_rankings_of_a_few_queries_are_those_of_the_whole_run(
    block: int, tmp_path: Path, collection: Collection, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the file is cut, and though one id is the beginning of another."""
    monkeypatch.setattr(runs, "BLOCK", block)
    write_run(tmp_path / "run.trec.gz", run, collection)
    found = rankings_of(tmp_path / "run.trec.gz", ["q11", "q0", "q3", "q1"])
    passages = {f"q{row}": run.passage_rows[at] for at, row in enumerate(run.query_rows.tolist())}
    for query in ("q11", "q0", "q3"):
        assert found[query] == [f"p{row}" for row in passages[query] if row >= 0]
    assert found["q1"] == [], "it is not in the run"


def test_a_run_that_is_cut_short_is_named(tmp_path: Path, collection: Collection, run: Run) -> None:
    path = tmp_path / "run.trec.gz"
    write_run(path, run, collection)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"run.trec.gz: not a whole gzip file"):
        rankings_of(path, ["q0"])
    with pytest.raises(UserError, match=r"none.gz: no such file"):
        rankings_of(tmp_path / "none.gz", ["q0"])


def test_an_empty_file_is_no_run(tmp_path: Path, collection: Collection) -> None:
    (tmp_path / "run.trec").write_text("\n")
    with pytest.raises(UserError, match=r"run\.trec: no scores, the file is empty"):
        read_run(tmp_path / "run.trec", collection)


def test_blank_lines_end_a_run_and_are_a_fault_within_it(tmp_path: Path, collection: Collection) -> None:
    path = tmp_path / "run.txt"
    path.write_text("q1 Q0 p3 1 2 x\n\n \n")
    assert read_run(path, collection).passage_rows.tolist() == [[3]]
    path.write_text("q1 Q0 p3 1 2 x\n\nq1 Q0 p4 2 1 x\n")
    with pytest.raises(UserError, match=r"run.txt:2: expected 6 columns \(.*\), found 0"):
        read_run(path, collection)
