"""Answers of a run: who answers, that nothing is done twice for it, and several questions in a row."""

import io
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from toy_commands import Compose

from condensery.errors import UserError
from condensery.pipeline import asking
from condensery.pipeline.artifact_store import Store
from condensery.pipeline.graph import build
from condensery.pipeline.reports.study import Job
from condensery.pipeline.run import run, run_all
from condensery.reporting.results import Row
from condensery.retrieval.query_encoder import query_encoder
from condensery.stages.base import Artifact

JOB = Job("sweep", ["seed=1"])
NO_ROWS = ["~table.rows.BM25", "~table.rows.plain", "~table.rows.better", "~table.rows.round2", "table.baseline=null"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is asked, as (text, index folder, collection folder); the toys' indexes hold nothing to search."""
    found: list[Any] = []

    def ask(text: str, search: Any, collection: Any, k: int) -> list[Any]:
        assert k == 5
        found.append((text, search, collection.folder))
        return []

    monkeypatch.setattr("condensery.pipeline.asking.Collection", lambda folder: SimpleNamespace(folder=folder))
    monkeypatch.setattr("condensery.pipeline.asking._search", lambda index, collection, store: index.path)
    monkeypatch.setattr("condensery.pipeline.asking.ask", ask)
    return found


def test_of_equal_rows_the_later_is_the_best() -> None:
    rows = [
        Row(name, "toys", "test", {"MRR@10": value}) for name, value in (("a", 0.5), ("b", 0.7), ("c", 0.7), ("d", 0.1))
    ]
    assert asking.best_row(rows) == "c"
    with pytest.raises(UserError, match="ask: no row of the table could be measured"):
        asking.best_row([])


def test_the_folders_behind_a_row_are_found_through_the_manifests(composed: Compose, tmp_path: Path) -> None:
    run(composed())
    graph, store = build(composed()), Store(tmp_path / "out")
    index, corpus = asking.searched(Artifact(store.path(graph.nodes[graph.rows["round2"]])), "round2")
    assert index.path == store.path(graph.nodes["round2.index"])
    assert corpus.path == store.path(graph.nodes["corpus"])
    with pytest.raises(UserError, match="'corpus' has no index"):
        asking.searched(corpus, "corpus")


def test_ask_searches_with_the_best_row(composed: Compose, tmp_path: Path, asked: list[Any]) -> None:
    finished = run(composed("ask=read a json file"))
    graph, store = build(composed()), Store(tmp_path / "out")
    best = asking.best_row(finished.rows)
    index, corpus = asking.searched(Artifact(store.path(graph.nodes[graph.rows[best]])), best)
    assert asked == [("read a json file", index.path, corpus.path)]


def test_a_finished_run_answers_without_writing_anything_again(
    composed: Compose, tmp_path: Path, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(composed())
    assert first.folder is not None
    before = {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")}
    monkeypatch.setattr(
        "condensery.pipeline.reports.report.write", lambda *_: pytest.fail("the report is written again")
    )
    again = run(composed("ask=what"))
    assert (again.folder, again.rows) == (first.folder, first.rows)
    assert {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")} == before
    moved = (tmp_path / "out").rename(tmp_path / "moved")
    again = run(composed("ask=where", f"output_root={moved}"))
    assert (again.folder, again.rows) == (moved / "runs" / first.folder.name, first.rows)
    assert [text for text, *_ in asked] == ["what", "where"]


@pytest.mark.parametrize("jobs", [[JOB], [None, JOB]], ids=["a job", "a run, then a job"])
def test_after_a_sweep_its_run_answers_without_writing_anything_again(
    composed: Compose, asked: list[Any], jobs: list[Job | None]
) -> None:
    folder = [run_all(composed(), job).folder for job in jobs][-1]
    assert folder is not None
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    run_all(composed("ask=what"))
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert [text for text, *_ in asked] == ["what"]


@pytest.mark.parametrize("change", ["force=[round2]", "table.title=Another", "logger.wandb.project=other"])
def test_a_run_with_other_settings_is_written_before_it_answers(
    composed: Compose, asked: list[Any], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    from condensery.pipeline.reports import report

    run(composed())
    written: list[Path] = []
    write = report.write

    def noted(*arguments: Any, **more: Any) -> Any:
        written.append(arguments[2])
        return write(*arguments, **more)

    monkeypatch.setattr(report, "write", noted)
    run(composed("ask=what", change))
    assert len(written) == len(asked) == 1


@pytest.mark.parametrize("lost", ["table.md", "results.json", asking.FINISHED])
def test_what_is_missing_in_the_folder_is_written_again(composed: Compose, asked: list[Any], lost: str) -> None:
    folder = run(composed()).folder
    assert folder is not None
    (folder / lost).unlink()
    run(composed("ask=what"))
    assert (folder / lost).is_file()
    (folder / "results.json").write_text("[]\n")
    run(composed("ask=what"))
    assert len(asked) == 2


def test_a_run_that_was_interrupted_is_not_taken_for_finished(
    composed: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run(composed()).folder
    assert folder is not None
    monkeypatch.setattr(
        "condensery.pipeline.reports.report.write", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        run(composed())
    assert not (folder / asking.FINISHED).exists()


def test_without_a_table_the_last_index_answers_and_is_named(
    composed: Compose, tmp_path: Path, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    graph = build(composed(*NO_ROWS, "ask=what"))
    assert graph.answers is not None
    made = [name for name in graph.nodes if name in (graph.answers, "bm25") or name.endswith(".index")]
    assert graph.answers == made[-1]
    run(composed(*NO_ROWS, "ask=what"))
    assert f"the stage {graph.answers} answers" in capsys.readouterr().out
    assert asked[0][1] == Store(tmp_path / "out").path(graph.nodes[graph.answers])


def test_it_answers_though_a_stage_failed_that_the_answer_does_not_need(
    composed: Compose, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    broken = "stages.broken={stage: toy_train, init: backbone, fail: user}"
    with pytest.raises(UserError, match="not to be trained on"):
        run(composed(*NO_ROWS, "ask=what", broken))
    assert [text for text, *_ in asked] == ["what"]


def test_without_any_index_the_last_encoder_gets_one(composed: Compose) -> None:
    only = [*NO_ROWS, *(f"~stages.{name}" for name in ("bm25", "mined", "round2"))]
    graph = build(composed(*only, "ask=what"))
    assert graph.answers is not None
    assert graph.answers.endswith(".index")
    assert graph.answers not in build(composed(*only)).nodes
    assert build(composed(*only)).answers is None


def test_several_questions_end_at_an_empty_line(
    composed: Compose, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("first\n  second \n\nnever"))
    run(composed("ask='-'"))
    assert [text for text, *_ in asked] == ["first", "second"]


def test_questions_end_with_the_input_and_bytes_that_are_no_text_do_not_stop_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one\ntw\xffo"), encoding="utf-8"))
    assert list(asking.questions()) == ["one", "tw\ufffdo"]
    assert capsys.readouterr().out == "ask: warning: the next question is not valid UTF-8; give questions in UTF-8\n"
    monkeypatch.setattr("sys.stdin", None)
    assert list(asking.questions()) == []


def test_a_byte_order_mark_is_no_part_of_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\ufeff北京\r\nשלום\r\n".encode()), encoding="utf-8"))
    assert list(asking.questions()) == ["北京", "שלום"]


def test_a_terminal_sees_a_prompt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO("one\n")
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", stream)
    assert list(asking.questions()) == ["one"]
    assert capsys.readouterr().out.count("ask, or press return to end: ") == 2


def test_ctrl_c_ends_the_questions_and_sigterm_still_ends_the_program() -> None:
    outside = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
    try:
        _interrupted_and_ended(signal.default_int_handler)
    finally:
        signal.signal(signal.SIGINT, outside)


def _interrupted_and_ended(before: object) -> None:
    with asking.ended_by_interrupt():
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("it went on")
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt), asking.ended_by_interrupt():  # as SIGTERM arrives, see `cli`
        raise KeyboardInterrupt


@pytest.mark.parametrize("separate", [False, True])
def test_a_query_is_encoded_as_transformers_does(tmp_path: Path, separate: bool) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel

    from condensery.models.biencoder import BiEncoder
    from condensery.models.checkpoints.retrievers import SavedRetriever, save_retriever
    from condensery.models.encoder import Encoder
    from condensery.tokens.tokenizer import train_wordpiece

    train_wordpiece(["read a json file", "write a file of text", "parse json text"] * 20, 120, tmp_path / "words")
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=len(AutoTokenizer.from_pretrained(tmp_path / "words")), **size)
    towers = [Encoder(BertModel(config, False)) for _ in range(1 + separate)]
    save_retriever(SavedRetriever(BiEncoder(*towers), 12, 12), tmp_path / "model", tmp_path / "words")
    folder = tmp_path / "model" / "query_encoder" if separate else tmp_path / "model"
    tokens = AutoTokenizer.from_pretrained(folder)("read a json file", return_tensors="pt")
    with torch.no_grad():
        wanted = AutoModel.from_pretrained(folder, add_pooling_layer=False)(**tokens).last_hidden_state[0, 0]
    found, long = query_encoder(tmp_path / "model")(["read a json file", "read a json file " * 20])
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-6)
    assert long.shape == found.shape  # cut to the length of queries
