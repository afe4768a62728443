"""Generated queries are a function of seed and passage: not of processes, interruptions or batches."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from single_stage import run_stage
from small_t5 import save_small_t5

from condensery.errors import UserError
from condensery.models.generator import Generator, Sampling
from condensery.sharing import NotRankZero, ProcessGroup
from condensery.stages.queries import generate_queries
from condensery.tokens.artifacts import Queries

SETTINGS = {"number": 3, "max_tokens": 10, "batch_size": 4, "shard_size": 8}
FILES = ("queries.jsonl", "first.npy", "examples.md", "queries/tokens.bin", "queries/starts.npy")


@pytest.fixture(scope="module")
def t5(made: dict[str, Path]) -> Path:
    return save_small_t5(made["tokenizer"].parent / "t5", made["tokenizer"])


@pytest.fixture(scope="module")
def whole(made: dict[str, Path], t5: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "out"
    about = run_stage("generate_queries", folder, made, model=str(t5), **SETTINGS)
    assert about["queries"] > 3 * 41 * 0.9
    return folder


def same(one: Path, other: Path) -> bool:
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in FILES)


class InterruptionError(Exception):
    """What a test stops the work with."""


def _stop_after(calls: int, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Let the generator sample so many batches; the rows that it was asked for."""
    asked: list[list[int]] = []
    sample = Generator.sample

    def counted(self: Generator, texts: Sequence[str], rows: Sequence[int], sampling: Sampling) -> list[list[str]]:
        if len(asked) == calls:
            raise InterruptionError
        asked.append(list(rows))
        return sample(self, texts, rows, sampling)

    monkeypatch.setattr(Generator, "sample", counted)
    return asked


def test_the_artifact_holds_the_queries_of_every_passage_and_nothing_of_the_work(whole: Path) -> None:
    queries = Queries(whole)
    assert len(queries.first) == 42
    assert 1 <= queries.counts.min() <= queries.counts.max() == 3
    assert len({query for row in range(41) for query in queries.texts(row)}) > 100
    assert {path.name for path in whole.iterdir()} == {
        "queries.jsonl", "queries.arrow", "queries", "first.npy", "examples.md",
    }  # fmt: skip


def test_an_interrupted_stage_goes_on_behind_its_last_whole_shard(
    made: dict[str, Path], t5: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """41 passages are 11 batches in 6 shards; stopped in the third batch, then in the sixth."""
    run: dict[str, Any] = {"model": str(t5), **SETTINGS}
    seen: list[int] = []
    for batches in (3, 3):
        with monkeypatch.context() as patch:
            asked = _stop_after(batches, patch)
            with pytest.raises(InterruptionError):
                run_stage("generate_queries", tmp_path / "out", made, **run)
        seen += [row for rows in asked[:2] for row in rows]  # the third batch begins a shard that is not whole
        assert len([*(tmp_path / "out" / "generated").glob("*.jsonl")]) == len(seen) // 8
        assert not [*(tmp_path / "out" / "generated").glob("*.tmp")]
    assert len(seen) == len(set(seen)) == 16
    with monkeypatch.context() as patch:
        asked = _stop_after(100, patch)
        run_stage("generate_queries", tmp_path / "out", made, **run)
    assert sorted(seen + [row for rows in asked for row in rows]) == list(range(41)), "nothing is done twice"
    assert same(tmp_path / "out", whole)


def test_two_processes_that_go_on_where_one_stopped_make_the_same(
    made: dict[str, Path], t5: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other here; of the six shards the first is there already, so that each of them has what it waits for."""
    run: dict[str, Any] = {"model": str(t5), **SETTINGS}
    with monkeypatch.context() as patch:
        _stop_after(3, patch)
        with pytest.raises(InterruptionError):
            run_stage("generate_queries", tmp_path / "out", made, **run)
    left = [1, 2, 3, 4, 5]
    monkeypatch.setattr(
        generate_queries, "process_group", lambda runtime: ProcessGroup(1, 2, lambda value: [left, value])
    )
    asked = _stop_after(100, monkeypatch)
    with pytest.raises(NotRankZero):
        run_stage("generate_queries", tmp_path / "out", made, **run)
    names = sorted(path.name for path in (tmp_path / "out").rglob("*.*"))
    assert names == ["000000.jsonl", "000002.jsonl", "000004.jsonl", "layout.json"], (
        "only the first writes the artifact"
    )
    monkeypatch.setattr(
        generate_queries, "process_group", lambda runtime: ProcessGroup(0, 2, lambda value: [left, value])
    )
    run_stage("generate_queries", tmp_path / "out", made, **run)
    rows = [row for batch in asked for row in batch]
    assert len(rows) == len(set(rows)) == 41 - 8, "nothing is done twice"
    assert same(tmp_path / "out", whole)


@pytest.mark.parametrize("changes", [{"batch_size": 1}, {"batch_size": 64}, {"shard_size": 1}])
def test_the_size_of_batches_and_shards_changes_no_query(
    changes: dict[str, int], made: dict[str, Path], t5: Path, whole: Path, tmp_path: Path
) -> None:
    run_stage("generate_queries", tmp_path / "out", made, model=str(t5), **{**SETTINGS, **changes})
    assert same(tmp_path / "out", whole)


def test_shards_of_another_layout_are_made_anew(
    made: dict[str, Path], t5: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        _stop_after(5, patch)
        with pytest.raises(InterruptionError):
            run_stage("generate_queries", tmp_path / "out", made, model=str(t5), **{**SETTINGS, "shard_size": 4})
    run_stage("generate_queries", tmp_path / "out", made, model=str(t5), **SETTINGS)
    assert same(tmp_path / "out", whole)


def test_the_first_queries_are_the_same_whatever_the_number(
    made: dict[str, Path], t5: Path, whole: Path, tmp_path: Path
) -> None:
    run_stage("generate_queries", tmp_path / "out", made, model=str(t5), **{**SETTINGS, "number": 1})
    one, three = Queries(tmp_path / "out"), Queries(whole)
    assert all(one.texts(row) == three.texts(row)[:1] for row in range(41))


def test_empty_queries_are_dropped_and_the_passage_is_reported(
    made: dict[str, Path], t5: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def empty(self: Generator, texts: Sequence[str], rows: Sequence[int], sampling: Sampling) -> list[list[str]]:
        return [["", " ", ""] if row in (5, 9) else ["a", "", "a"] if row != 7 else ["a\u2028b"] * 3 for row in rows]

    monkeypatch.setattr(Generator, "sample", empty)
    about = run_stage("generate_queries", tmp_path / "out", made, model=str(t5), **SETTINGS)
    assert (about["queries"], about["passages_without_query"]) == (39, 2)
    assert "2 of 41 passages have no query, the first is 'd0#5'" in capsys.readouterr().out
    assert Queries(tmp_path / "out").texts(7) == ["a b"]
    assert Queries(tmp_path / "out").counts.tolist() == [0 if row in (5, 9) else 1 for row in range(41)]
    monkeypatch.setattr(Generator, "sample", lambda self, texts, rows, sampling: [["", " "] for _ in rows])
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(UserError, match="no passage has a query"):
        run_stage("generate_queries", tmp_path / "out", made, model=str(t5), **SETTINGS)
