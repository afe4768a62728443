"""Inverted lists on disk: results of the same index in memory, less memory, and a folder that can be moved."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from simulated_processes import in_parts

from condensery.errors import UserError
from condensery.retrieval.indexes.ann import ApproximateIndex, build_approximate, write_approximate
from condensery.retrieval.indexes.dense import DenseIndex
from condensery.retrieval.indexes.interface import recall_of
from condensery.retrieval.indexes.on_disk import FILE, LISTS
from condensery.sharing import ProcessGroup

WriteDense = Callable[..., Path]
PASSAGES, QUERIES, DIM = 2_000, 30, 16
SMALL = 30_000  # bytes, so that the vectors are added in dozens of parts


@pytest.fixture
def exact(write_dense: WriteDense) -> DenseIndex:
    random = np.random.default_rng(0)
    return DenseIndex(write_dense(random.normal(size=(PASSAGES, DIM)), random.normal(size=(QUERIES, DIM)), 700))


def build(exact: DenseIndex, folder: Path, factory: str = "IVF20,Flat", on_disk: bool = True, **further: Any) -> Path:
    folder.mkdir(exist_ok=True)
    build_approximate(exact, folder, factory, 1_200, 1, on_disk=on_disk, **{"memory": SMALL, **further})
    write_approximate(folder, exact, "encode/x", {"nprobe": 4, "ef_search": 32}, QUERIES)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("factory", ["IVF20,Flat", "IVF20,SQ8", "RR8,IVF20,PQ4x4", "IVF20_HNSW8,Flat"])
def test_lists_on_disk_give_what_lists_in_memory_give(factory: str, exact: DenseIndex, tmp_path: Path) -> None:
    whole, parts = (build(exact, tmp_path / str(on_disk), factory, on_disk) for on_disk in (False, True))
    assert contents(parts).keys() == {FILE, LISTS, "index.json"}, "nothing of the parts is left"
    assert contents(whole).keys() == {FILE, "index.json"}
    (scores, rows), (wanted_scores, wanted) = (
        ApproximateIndex(folder, exact).search(np.arange(QUERIES), 50) for folder in (parts, whole)
    )
    np.testing.assert_array_equal(rows, wanted)
    np.testing.assert_array_equal(scores, wanted_scores)


def test_the_folder_says_nothing_of_its_place_and_can_be_moved(
    exact: DenseIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build(exact, tmp_path / "here")
    wanted = ApproximateIndex(folder, exact).search(np.arange(QUERIES), 10)[1]
    assert not any(str(tmp_path).encode() in content for content in contents(folder).values())
    before = contents(folder)
    (tmp_path / "elsewhere").mkdir()
    moved = Path(shutil.move(folder, tmp_path / "elsewhere" / "there"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    for path in (moved, Path("there")):
        np.testing.assert_array_equal(ApproximateIndex(path, exact).search(np.arange(QUERIES), 10)[1], wanted)
    assert contents(moved) == before, "a search changes no file"


def test_recall_against_exact_search_is_printed(
    exact: DenseIndex, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = ApproximateIndex(build(exact, tmp_path / "index"), exact)
    rows, wanted = index.search(np.arange(QUERIES), 10)[1], exact.search(np.arange(QUERIES), 10)[1]
    share = np.mean([len(np.intersect1d(a, b)) / 10 for a, b in zip(rows, wanted, strict=True)])
    assert 0.3 < share < 1
    capsys.readouterr()
    assert recall_of(index, "x") == pytest.approx({"recall_of_exact": share, "recall_of_exact@10": share})
    assert f"found {100 * share:.1f} % of what exact search finds" in capsys.readouterr().out


@pytest.mark.parametrize("after", [0, 1, 3, 7])
def test_an_interrupted_attempt_is_continued_to_the_same_bytes(
    after: int, exact: DenseIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = contents(build(exact, tmp_path / "whole"))
    blocks, read = DenseIndex.blocks, list[slice]()

    def until(index: DenseIndex, size: int, rows: slice | None = None) -> Iterator[Any]:
        assert rows is not None
        if len(read) == after:
            raise KeyboardInterrupt
        read.append(rows)
        return blocks(index, size, rows)

    monkeypatch.setattr(DenseIndex, "blocks", until)
    with pytest.raises(KeyboardInterrupt):
        build(exact, tmp_path / "index")
    done = list(read)
    monkeypatch.setattr(DenseIndex, "blocks", lambda *given: read.append(given[2]) or blocks(*given))
    monkeypatch.setattr(exact, "passage_vectors", _once(exact.passage_vectors))
    assert contents(build(exact, tmp_path / "index")) == wanted
    assert len(read) == len({rows.start for rows in read}), "no part was made twice"
    assert {rows.start for rows in read} > {rows.start for rows in done}
    assert max(rows.stop for rows in read) == PASSAGES


def _once(read: Callable[..., Any]) -> Callable[..., Any]:
    """Reading vectors, but for the sample that trains the index, which an attempt that is continued needs no more."""

    def few(rows: np.ndarray) -> Any:
        assert len(rows) < 1_200, "the index was trained again"
        return read(rows)

    return few


def test_after_the_last_file_nothing_is_computed_again(exact: DenseIndex, tmp_path: Path) -> None:
    before = contents(build(exact, tmp_path / "index"))
    (tmp_path / "index" / "parts").mkdir()
    exact.shards = [(0, PASSAGES)]  # a part that were read would fail: no such shard
    exact.passage_vectors = lambda rows: np.zeros((len(rows), DIM), np.float32)  # type: ignore[method-assign]
    assert contents(build(exact, tmp_path / "index")) == before
    assert not (tmp_path / "index" / "parts").exists()


@pytest.mark.parametrize("processes", [2, 3])
def test_several_processes_make_the_bytes_of_one(processes: int, exact: DenseIndex, tmp_path: Path) -> None:
    wanted = contents(build(exact, tmp_path / "one"))
    folder = tmp_path / "several"
    folder.mkdir()

    def part(group: ProcessGroup) -> None:
        build_approximate(exact, folder, "IVF20,Flat", 1_200, 1, on_disk=True, group=group, memory=SMALL)

    in_parts(processes, part)
    write_approximate(folder, exact, "encode/x", {"nprobe": 4, "ef_search": 32}, QUERIES)
    assert contents(folder) == wanted


@pytest.mark.parametrize("change", [lambda data: data[:-8], lambda data: data + b"12345678", lambda data: b""])
def test_lists_of_another_size_are_one_line_and_no_crash(
    change: Callable[[bytes], bytes], exact: DenseIndex, tmp_path: Path
) -> None:
    folder = build(exact, tmp_path / "index")
    (folder / LISTS).write_bytes(change((folder / LISTS).read_bytes()))
    with pytest.raises(UserError, match=r"lists\.bin: does not belong to passages\.faiss beside it") as caught:
        ApproximateIndex(folder, exact)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("on_disk", [True, False])
def test_lists_that_are_missing_or_too_many_are_one_line(on_disk: bool, exact: DenseIndex, tmp_path: Path) -> None:
    folder = build(exact, tmp_path / "index", on_disk=on_disk)
    (folder / LISTS).unlink() if on_disk else (folder / LISTS).write_bytes(b"")
    with pytest.raises(UserError, match=r"passages\.faiss: not a FAISS index") as caught:
        ApproximateIndex(folder, exact)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("factory", ["Flat", "HNSW16", "IVF20,PQ8x4fs", "IVF20,PQ4x4,RFlat", "PQ4x4", "OPQ8,PQ4x4"])
def test_what_has_no_lists_for_a_disk_is_refused(factory: str, exact: DenseIndex, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"^factory: '{factory}' keeps vectors outside of lists that can lie on disk"):
        build(exact, tmp_path / "index", factory)
    assert not list((tmp_path / "index").iterdir())


LARGE, WIDE = 150_000, 64  # vectors of 38 MB
ROOM = 24 * 2**20  # bytes of memory that may be added to what a process has
PROGRAM = """
import resource, sys
from pathlib import Path
import faiss
import numpy as np
from condensery.retrieval.indexes import ann
from condensery.retrieval.indexes.dense import DenseIndex

def taken(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))

work, vectors, folder, on_disk, room = *sys.argv[1:4], sys.argv[4] == "True", int(sys.argv[5])
exact, ann.BLOCK, folder = DenseIndex(Path(vectors), device="cpu", memory=8 * 2**20), 4_096, Path(folder)
some, first = np.ones((4_096, 64), np.float32), faiss.index_factory(64, "IVF16,Flat", faiss.METRIC_INNER_PRODUCT)
first.train(some), first.add(some)  # what BLAS takes once
if room:  # VmData is what a process may write to; mapped files do not count, as the system may drop them
    resource.setrlimit(resource.RLIMIT_DATA, (taken("VmData") + room, taken("VmData") + room))
if work == "build":
    folder.mkdir(exist_ok=True)
    ann.build_approximate(exact, folder, "IVF16,Flat", 1_500, 1, on_disk=on_disk, memory=8 * 2**20)
    ann.write_approximate(folder, exact, "encode/x", {"nprobe": 4, "ef_search": 32}, 8)
else:  # RssAnon is what is in memory and in no file
    before, index = taken("RssAnon"), ann.ApproximateIndex(folder, exact)
    found = index.index.search(exact.query_vectors(np.arange(8)), 10)[1]
    print(taken("RssAnon") - before if found.min() >= 0 else "nothing was found")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_what_does_not_fit_into_memory_is_built_and_searched_on_disk(write_dense: WriteDense, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    vectors = write_dense(random.normal(size=(LARGE, WIDE)).astype(np.float32), random.normal(size=(8, WIDE)), 20_000)

    def run(work: str, on_disk: bool, room: int = 0) -> subprocess.CompletedProcess[str]:
        given = [work, vectors, tmp_path / f"on disk {on_disk}", on_disk, room]
        return subprocess.run([sys.executable, "-c", PROGRAM, *map(str, given)], capture_output=True, text=True)

    on_disk, in_memory = run("build", True, ROOM), run("build", False, ROOM)
    assert on_disk.returncode == 0, on_disk.stderr
    assert in_memory.stderr.strip().endswith("of these vectors (too little memory)")
    assert (tmp_path / "on disk True" / LISTS).stat().st_size == LARGE * (4 * WIDE + 8) > ROOM
    assert run("build", False).returncode == 0
    taken = {kept: int(run("search", kept).stdout) for kept in (True, False)}
    assert taken[True] < ROOM / 2 < ROOM < taken[False]


def test_a_part_is_made_on_the_gpu_as_the_whole_is(
    exact: DenseIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, moved = contents(build(exact, tmp_path / "here")), []
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
    monkeypatch.setattr(faiss, "StandardGpuResources", lambda: None, raising=False)
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", lambda resources, number, index: index, raising=False)
    monkeypatch.setattr(faiss, "index_gpu_to_cpu", lambda index: moved.append(index.ntotal) or index, raising=False)
    assert contents(build(exact, tmp_path / "there", gpu=True)) == wanted
    assert sum(moved) == PASSAGES
    assert len(moved) > 10
