"""Stages that several processes share: when they do, and that what they make is what one process makes, byte by byte."""

import os
import shutil
import signal
from pathlib import Path

import pytest
from killed_runs import alive, kill, start, wait
from small_runs import Done, artifact_files, run_command

from condensery.stages.sharing import searched_together
from condensery.system.files import read_json, write_json

SHARED = [
    "encode",
    "rerank",
    "denoise",
    "pseudo_label",
    "generate_queries",
]  # mine and evaluate have one shard of queries here
TWO = ["trainer.devices=2", "trainer.threads=2"]
WRITTEN = [
    "stages.passages={stage: passages, grouping: collection, workers: 1}",
    "stages.writer={stage: finetune_generator, layers: 1, hidden: 32, heads: 2, intermediate: 64, steps: 4,"
    " epochs: null, batch_size: 8, log_every: 1}",
    "stages.queries={stage: generate_queries, model: null, generator: writer, max_tokens: 8, number: 2,"
    " batch_size: 4, shard_size: 8}",
]


@pytest.mark.parametrize(
    ("about", "queries", "shared"),
    [
        ({"method": "dense"}, 16_385, True),
        ({"method": "dense"}, 16_384, False),
        ({"method": "dense", "passages": 2**20 + 1}, 1, True),
        ({"method": "dense", "passages": 2**20 + 1, "windows": 2**22}, 1, False),
        ({"method": "dense", "passages": 2**20 + 1, "windows": 2**22}, 16_385, True),
        ({"method": "bm25", "passages": 10**8}, 10**6, False),
        ({"method": "approximate", "passages": 10**8}, 10**6, False),
    ],
)
def test_a_search_is_shared_where_it_is_exact_and_of_many_queries_or_passages(
    about: dict[str, str | int], queries: int, shared: bool, tmp_path: Path
) -> None:
    write_json(tmp_path / "index.json", {"passages": 2**20, **about})
    assert searched_together(tmp_path, queries) == shared


@pytest.fixture(scope="module")
def recipe(on_beir: list[str]) -> list[str]:
    return ["experiment=reranked", *on_beir, *WRITTEN]


@pytest.fixture(scope="module")
def on_one(recipe: list[str], tmp_path_factory: pytest.TempPathFactory) -> Done:
    return run_command(*recipe, f"output_root={tmp_path_factory.mktemp('one')}").sound()


def without(kinds: list[str], made: Done, folder: Path) -> Path:
    """What was made, but for some kinds of stages: an output_root in ``folder``."""
    shutil.copytree(made.folder.parents[1], folder / "out", symlinks=True)
    for kind in kinds:
        shutil.rmtree(folder / "out" / "artifacts" / kind)
    return folder / "out"


def same(run: Done, other: Done) -> None:
    mine, wanted = artifact_files(run.folder), artifact_files(other.folder)
    assert mine.keys() == wanted.keys()
    assert [name for name in wanted if mine[name] != wanted[name]] == []


@pytest.mark.slow
def test_two_processes_make_the_bytes_of_one(on_one: Done, recipe: list[str], tmp_path: Path) -> None:
    on_two = run_command(*recipe, *TWO, f"output_root={without(SHARED, on_one, tmp_path)}").sound()
    manifests = {path.name: read_json(path / "manifest.json") for path in (on_two.folder / "stages").iterdir()}
    several = {manifest["kind"] for manifest in manifests.values() if manifest["machine"].get("processes") == "2"}
    assert several == {*SHARED}
    assert {"bm25.evaluation", "round1.index"} <= manifests.keys()
    metrics = {name: manifest["metrics"] for name, manifest in manifests.items()}
    before = {path.name: read_json(path / "manifest.json") for path in (on_one.folder / "stages").iterdir()}
    assert metrics == {name: manifest["metrics"] for name, manifest in before.items()}
    same(on_two, on_one)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
@pytest.mark.parametrize("kind", ["encode", "generate_queries"])
def test_killed_they_go_on_and_end_with_the_same_bytes(
    kind: str, on_one: Done, recipe: list[str], tmp_path: Path
) -> None:
    root = without([kind], on_one, tmp_path)
    shards = {"encode": "passages/*.npy", "generate_queries": "generated/*.jsonl"}[kind]
    arguments = [*recipe, *TWO, f"output_root={root}"]
    process = start(str(tmp_path), *arguments)
    wait(process, lambda: bool([*root.glob(f"artifacts/{kind}/*.partial/{shards}")]))
    kill(process, str(tmp_path))
    assert [*root.glob(f"artifacts/{kind}/*.partial/{shards}")], "the kill came when all was done"
    same(run_command(*arguments).sound(), on_one)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_a_process_that_dies_is_one_line_and_the_rest_ends(on_one: Done, recipe: list[str], tmp_path: Path) -> None:
    root = without(["generate_queries"], on_one, tmp_path)
    process = start(str(tmp_path), *recipe, *TWO, f"output_root={root}")
    wait(process, lambda: bool([*root.glob("artifacts/generate_queries/*.partial/generated/*.jsonl")]))
    second = next(
        one for one in alive(str(tmp_path)) if b"RANK=1" in Path(f"/proc/{one}/environ").read_bytes().split(b"\0")
    )
    os.kill(second, signal.SIGKILL)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    assert out.splitlines()[-1].startswith("error: stage queries: process 1 of 2 died (killed by signal 9"), out
    assert "Traceback" not in out
    assert not alive(str(tmp_path))
