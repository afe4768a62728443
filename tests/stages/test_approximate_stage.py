"""Approximate search from the command line: a row of its own, mined from and asked, which says what it misses."""

import shutil
from pathlib import Path

import pytest
from small_runs import Done, metrics_of, run_command

from condensery.system.files import read_json

NEAR = "stages.near={stage: ann_index, vectors: round1, sample: 100, factory: 'IVF6,Flat', nprobe: %d}"


@pytest.fixture
def store(finished: Done, tmp_path: Path) -> Path:
    """A copy of the artifacts of the small recipe."""
    shutil.copytree(finished.folder.parents[1], tmp_path / "out", symlinks=True)
    return tmp_path / "out"


def test_a_row_of_its_own_says_how_much_of_exact_search_it_finds(on_beir: list[str], store: Path) -> None:
    extra = ["+table.rows.near=near", "stages.near_mined={stage: mine, retriever: near, depth: 5}", "ask=word"]
    done = run_command("experiment=tiny", *on_beir, f"output_root={store}", NEAR % 6, *extra).sound()
    assert {"near", "near.evaluation", "near_mined"} >= set(done.computed)
    rows = metrics_of(done.folder)
    exact = next(name for name in rows if name not in ("BM25", "near"))
    assert set(rows["near"]) == set(rows[exact])
    for label in ("near.evaluation", "near_mined"):
        recall = read_json(done.folder / "stages" / label / "manifest.json")["metrics"]["recall_of_exact"]
        assert recall == 1.0, "all six lists are looked through"
        assert f"[{label}] approximate search found {100 * recall:.1f} % of what exact search finds" in done.out
    little = run_command("experiment=tiny", *on_beir, f"output_root={store}", NEAR % 1, "+table.rows.near=near").sound()
    found = read_json(little.folder / "stages" / "near.evaluation" / "manifest.json")["metrics"]["recall_of_exact"]
    assert 0 < found < 1


def test_lists_on_disk_find_the_same_and_the_stage_says_how_much(on_beir: list[str], store: Path) -> None:
    near = "stages.%s={stage: ann_index, vectors: round1, sample: 100, factory: 'IVF6,Flat', nprobe: 2%s}"
    stages = [near % ("near", ""), near % ("disk", ", on_disk: true")]
    rows = ["+table.rows.near=near", "+table.rows.disk=disk"]
    done = run_command("experiment=tiny", *on_beir, f"output_root={store}", *stages, *rows).sound()
    near_made, disk_made = (read_json(done.folder / "stages" / name / "manifest.json") for name in ("near", "disk"))
    assert sorted(disk_made["files"]) == ["index.json", "lists.bin", "passages.faiss"]
    assert disk_made["metrics"]["bytes"] == sum(disk_made["files"][name] for name in ("lists.bin", "passages.faiss"))
    assert 0 < disk_made["metrics"]["recall_of_exact"] < 1
    for key in ("recall_of_exact", "recall_of_exact@10"):
        assert disk_made["metrics"][key] == near_made["metrics"][key]
    recall = disk_made["metrics"]["recall_of_exact"]
    assert f"[disk] approximate search found {100 * recall:.1f} % of what exact search finds" in done.out
    moved = shutil.move(store, store.with_name("moved"))
    again = run_command("experiment=tiny", *on_beir, f"output_root={moved}", *stages, *rows, "ask=word").sound()
    assert not again.computed, "the digests hold where the store was moved"
    found = metrics_of(moved / "runs" / done.folder.name)
    assert found["disk"] == found["near"]


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ("{stage: ann_index, vectors: bm25}", "stages.near.vectors: bm25 has no vectors"),
        (
            "{stage: ann_index, vectors: wide}",
            "stages.near.vectors: wide has up to 3 windows of a passage; set its windows to 1",
        ),
        (
            "{stage: ann_index, vectors: round1, factory: 'IVF1q00,Flat'}",
            "stages.near.factory: 'IVF1q00,Flat' is unknown to FAISS's index_factory; give one such as 'IVF1024,Flat'",
        ),
        (
            "{stage: ann_index, vectors: round1, factory: 'IVF9999,Flat'}",
            "stages.near.factory: FAISS cannot make 'IVF9999,Flat' of these vectors (Number of training points",
        ),
        (
            "{stage: ann_index, vectors: round1, factory: HNSW32, on_disk: true}",
            "stages.near.factory: 'HNSW32' keeps vectors outside of lists that can lie on disk; take one such as",
        ),
    ],
)
def test_what_it_cannot_do_is_one_line(stage: str, message: str, on_beir: list[str], store: Path) -> None:
    wide = "stages.wide={stage: encode, model: round1, windows: 3}"
    done = run_command(
        "experiment=tiny", *on_beir, f"output_root={store}", f"stages.near={stage}", wide, "+table.rows.near=near"
    )
    assert done.code == 1
    assert message in done.err
    assert done.err.count("\n") == 1
