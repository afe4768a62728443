"""The benchmarks run, in small: what they measure is not tested here."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from forked import run_script
from released import released
from small_runs import some_text, write_beir

from condensery.tokens.tokenizer import train_wordpiece


def lines_of(project: Path, name: str, *arguments: str, fork: bool = True) -> list[dict[str, Any]]:
    """The JSON lines that a benchmark prints. A benchmark that itself starts processes by spawn cannot run in a fork."""
    command = [project / "experiments" / "benchmarks" / f"{name}.py", *arguments]
    done = run_script(*command) if fork else subprocess.run([sys.executable, *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("pairs", ["folder", pytest.param("synthetic", marks=pytest.mark.slow)])
def test_batches_of_search_are_harder_than_random_ones(project: Path, tmp_path: Path, pairs: str) -> None:
    source = f"root={write_beir(tmp_path, some_text())}" if pairs == "folder" else "synthetic=300"
    random, greedy, beam = lines_of(project, "batch_scheduling", source, "batch=8")
    assert random["pairs"] == greedy["pairs"] == beam["pairs"] > 20
    assert min(greedy["hardness"], beam["hardness"]) > random["hardness"]


def test_attention_of_each_length_is_timed(project: Path) -> None:
    lines = lines_of(project, "attention", "tokens=512", "rounds=1")
    assert [line["length"] for line in lines] == [16, 32, 64, 128, 256, 512]
    assert all(line[way] > 0 for line in lines for way in ("forward", "training", "dropout"))


def test_the_stages_that_a_sweep_shares_are_counted(project: Path) -> None:
    (line,) = lines_of(project, "sweep_reuse")
    assert line["jobs"] == 9, "three sizes, each a mapping with commas, and three seeds"
    assert line["artifacts"] < line["stages"]
    assert line["training_ratio"] > 1


@pytest.mark.slow
def test_encoding_is_compared_with_sentence_transformers(project: Path, tmp_path: Path) -> None:
    text = some_text()
    root = write_beir(tmp_path / "beir", text)
    train_wordpiece([" ".join(passage[1:3]) for passage in text.passages], 400, tmp_path / "words")
    given = (f"checkpoint={released(tmp_path, tmp_path / 'words')}", f"collection={root}")
    long, short = lines_of(project, "encoding", *given, "precision=bf16", "passages=30", "rounds=1")
    assert [long["texts"], short["texts"]] == ["long", "short"]
    for line in (long, short):
        assert line["difference"] < 1e-5, "both libraries read the same tokens"
        assert 0.5 < line["agreement"] <= 1
        assert sum(line["profile"].values()) == pytest.approx(1, abs=0.03)
        assert min(line[way] for way in ("sentence_transformers", "fp32", "bf16", "ratio", "bf16_ratio")) > 0
        assert 0 <= line["share"] < 1
        assert line["tokens"] <= 14


@pytest.mark.slow
def test_the_training_process_spends_little_on_its_batches(project: Path) -> None:
    (pairs,) = lines_of(project, "feed", "kind=pairs", "chunk_tokens=2048", "batches=4")
    assert pairs["chunks"] > 100
    assert pairs["training_cores"] <= 0.1, "at 500,000 tokens a second"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings", "result"),
    [
        ("encoding", ("shape=S", "passages=60", "rounds=1"), "ratio"),
        ("finetuning_step", ("shape=S", "queries=8", "steps=1"), "cached_speedup"),
        ("ingest", ("passages=300", "rounds=1"), "ratio"),
        ("memory", ("shape=S", "spans=4", "times=2"), "ratio"),
        ("pretraining_step", ("shape=S", "steps=1"), "speedup"),
        ("query_as_context_step", ("shape=S", "pairs=4", "steps=1"), "ratio"),
        ("search", ("passages=2000", "queries=20", "rounds=1"), "ratio"),
        ("startup", ("recipe=smoke", "rounds=1"), "dry_run_cpu_s"),
    ],
)
def test_each_program_prints_its_line(project: Path, name: str, settings: tuple[str, ...], result: str) -> None:
    lines = lines_of(project, name, *settings, fork=False)
    assert lines
    assert all(line[result] > 0 for line in lines)
    errors = [line[key] for line in lines for key in ("difference", "gradient_error") if key in line]
    assert all(error < 1e-4 for error in errors), "two ways of computing one thing agree"


@pytest.fixture
def report(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """experiments/gpu/report.py with two parts of a moment each; what it writes lies in ``tmp_path``."""
    spec = importlib.util.spec_from_file_location("gpu_report", project / "experiments" / "gpu" / "report.py")
    assert spec
    assert spec.loader
    monkeypatch.setitem(sys.modules, "gpu_report", module := importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    count = f"open({str(tmp_path / 'done')!r}, 'a').write('x')"
    parts = [
        module.Part("one", "what goes well", ["-c", f"{count}; print('{{\"seconds\": 3}}')"], 1),
        module.Part("other", "what does not", ["-c", "raise SystemExit('a fault of this part')"], 1),
    ]
    for name, value in (("parts", lambda device: parts), ("HERE", tmp_path), ("KEPT", tmp_path / "kept")):
        monkeypatch.setattr(module, name, value)
    return module


def test_the_gpu_report_keeps_what_is_done_and_shows_every_fault(report: ModuleType, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(SystemExit, match="other"):
            report.main(device="cpu")
    assert (tmp_path / "done").read_text() == "x", "done once"
    page = (tmp_path / "README.md").read_text()
    assert "its numbers say nothing of a GPU" in page
    assert "| seconds | 3 |" in page
    assert "a fault of this part" in page
    assert "| what does not | **exit code 1** |" in page


@pytest.mark.slow
def test_a_larger_collection_goes_through_the_stages_for_what_it_costs(project: Path, tmp_path: Path) -> None:
    settings = ("passages=2000,6000", "queries=20", "bm25=true", f"folder={tmp_path}")
    small, _, large, lexical = lines_of(project, "large_collection", *settings)
    assert [(line["passages"], line["row"]) for line in (small, large, lexical)] == [
        (2000, "encoder"),
        (6000, "encoder"),
        (6000, "bm25"),
    ]
    read = ["corpus", "tokenizer", "tokens", "encoder", "encoder.index", "mined", "encoder.evaluation"]
    assert list(small["stages"]) == list(large["stages"]) == read
    assert list(lexical["stages"]) == ["bm25", "mined", "bm25.evaluation"]
    assert small["ratio"] == 1 > large["ratio"]  # most of it is the start
    assert all(stage["peak_mb"] > 50 for stage in large["stages"].values())
    assert large["peak_mb"] < 1.2 * small["peak_mb"]
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_what_every_step_costs_is_measured_by_size(project: Path, tmp_path: Path) -> None:
    script, file = project / "experiments" / "scale" / "cost.py", tmp_path / "costs.json"
    settings = ("passages=300,600", "rounds=1", "steps=1", f"file={file}", f"folder={tmp_path}")
    done = run_script(script, *settings)
    assert done.returncode == 0, done.stderr
    told = json.loads(file.read_text())
    assert list(told["collections"]) == ["300", "600"]
    for cost in told["collections"].values():
        assert len(cost) == 10
        assert all(one["cpu_s"] > 0 for one in cost.values())
        written = {name: one["bytes"] for name, one in cost.items() if not name.startswith("search")}
        assert min(written.values()) > 0
    assert len(told["training"]) == 4
    assert list(tmp_path.iterdir()) == [file], "nothing else is left"


def test_the_page_about_scale_shows_what_the_tables_say(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = project / "experiments" / "scale"
    spec = importlib.util.spec_from_file_location("scale_tables", folder / "tables.py")
    assert spec
    assert spec.loader
    monkeypatch.setitem(sys.modules, "scale_tables", module := importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    module.main(dollars="3.00", core_dollars="0.05", gpus="8", cores="16", disk="2e9", queries="500000")
    page, lines = (folder / "README.md").read_text().splitlines(), capsys.readouterr().out.splitlines()
    assert len(lines) > 40
    assert [line for line in lines if line not in page] == []
