"""Approximate search: every kind of FAISS's indexes that a recipe may name, and what it misses is said."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from condensery.errors import UserError
from condensery.retrieval.indexes.ann import ApproximateIndex, build_approximate, stand_ins, write_approximate
from condensery.retrieval.indexes.dense import DenseIndex
from condensery.retrieval.indexes.interface import recall_of
from condensery.retrieval.indexes.on_disk import FILE

WriteDense = Callable[..., Path]
PASSAGES, QUERIES, DIM = 2_000, 30, 16


def clustered(seed: int, number: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(40, DIM))
    return (centres[random.integers(40, size=number)] + 0.3 * random.normal(size=(number, DIM))).astype(np.float32)


@pytest.fixture
def exact(write_dense: WriteDense) -> DenseIndex:
    return DenseIndex(write_dense(clustered(1, PASSAGES), clustered(2, QUERIES), 700), device="cpu")


def built(
    exact: DenseIndex, folder: Path, factory: str, nprobe: int = 4, compared: int = 20, gpu: bool = False
) -> ApproximateIndex:
    folder.mkdir()
    build_approximate(exact, folder, factory, 1_500, 1, 1, gpu)
    write_approximate(folder, exact, "encode/x", {"nprobe": nprobe, "ef_search": 32}, compared)
    return ApproximateIndex(folder, exact)


@pytest.mark.parametrize("factory", ["Flat", "IVF20,Flat", "HNSW16", "IVF20,PQ4x4", "IVF20,PQ4x4,RFlat"])
def test_it_says_how_much_of_the_exact_results_it_finds(factory: str, exact: DenseIndex, tmp_path: Path) -> None:
    index = built(exact, tmp_path / "index", factory)
    assert index.recall is None, "nothing was searched yet"
    scores, rows = index.search(np.arange(QUERIES), 10)
    assert (np.diff(scores, axis=1) <= 0).all()
    wanted = exact.search(np.arange(20), 10)[1]
    share = np.mean([len(np.intersect1d(a, b)) / 10 for a, b in zip(rows, wanted, strict=False)])
    assert index.recall == pytest.approx(share)
    assert share == 1.0 if factory == "Flat" else share > (0.05 if "PQ" in factory else 0.3)
    index.search(np.arange(20, 30), 10)
    assert index.recall == pytest.approx(share), "only the first queries are compared"


def test_more_effort_finds_more_and_only_exact_scores_are_equal(exact: DenseIndex, tmp_path: Path) -> None:
    little, much = (built(exact, tmp_path / str(nprobe), "IVF40,Flat", nprobe) for nprobe in (1, 40))
    for index in (little, much):
        index.search(np.arange(QUERIES), 50)
    assert little.recall is not None
    assert little.recall < 0.9
    assert much.recall == 1.0
    scores, rows = much.search(np.arange(3), 5)
    np.testing.assert_allclose(scores, exact.search(np.arange(3), 5)[0], rtol=1e-5)
    np.testing.assert_allclose(scores, much.score(np.arange(3), rows), rtol=1e-5)


def test_a_passage_of_the_same_score_is_as_good_as_the_exact_one(write_dense: WriteDense, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    few = draw.integers(-2, 3, (300, 4))  # whole numbers: every score is exact, and most are shared by many
    tied = DenseIndex(write_dense(np.concatenate([few, few]), draw.integers(-2, 3, (QUERIES, 4)), 250), device="cpu")
    index = built(tied, tmp_path / "index", "IVF8,Flat", nprobe=8, compared=QUERIES)
    rows = index.search(np.arange(QUERIES), 10)[1]
    assert (rows != tied.search(np.arange(QUERIES), 10)[1]).any(), "of those of one score it finds others"
    assert index.recall == 1.0


@pytest.mark.parametrize(
    ("found", "share"),
    [
        ([0, 1, 2], 3 / 3),
        ([0, 1, 3], 3 / 3),  # 3 scores as 1 and 2 do
        ([0, 3, 4], 3 / 3),  # 4 but for rounding as well
        ([0, 1, 5], 2 / 3),  # 5 scores less
        ([1, 2, 3], 2 / 3),  # the best is missed, though all three score as the third
        ([0, 3, -1], 2 / 3),  # each stands in for one
        ([5, 6, -1], 0 / 3),
        ([-1, -1, -1], 0 / 3),
    ],
)
def test_each_exact_result_counts_once_and_what_scores_less_does_not(
    found: list[int], share: float, write_dense: WriteDense, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = np.array([9, 5, 5, 5, np.nextafter(np.float32(5), np.float32(0)), 5 - 1e-4, 1], np.float32)
    exact = DenseIndex(write_dense(scores[:, None] * [1, 0, 0], np.array([[1, 0, 0]]), 4), device="cpu")
    assert exact.search(np.array([0]), 3)[1].tolist() == [[0, 1, 2]]
    index = built(exact, tmp_path / "index", "Flat")
    rows = np.array([found])
    monkeypatch.setattr(index.index, "search", lambda vectors, k: (scores[rows], rows))
    index.search(np.array([0]), 3)
    assert index.recall == pytest.approx(share)


@pytest.mark.parametrize("dim", [2, 768])
@pytest.mark.parametrize(("less", "equal"), [(0, True), (1e-7, True), (1e-4, False)])
def test_rounding_is_measured_by_the_lengths_of_the_vectors(less: float, equal: bool, dim: int) -> None:
    random = np.random.default_rng(0)
    query, passage = 3 * random.normal(size=dim), 1_000 * random.normal(size=dim)
    passage -= (passage @ query) / (query @ query) * query  # a score of 0, where one relative to it would say nothing
    lower = passage - less * np.linalg.norm(passage) * query / np.linalg.norm(query)
    query, passage, lower = (vector.astype(np.float32) for vector in (query, passage, lower))
    assert stand_ins(query, passage[None], lower[None]) == equal
    assert stand_ins(query, lower[None], passage[None]) == 1, "what scores more is as good"


def test_it_is_judged_by_the_ten_best_as_well_as_by_all(exact: DenseIndex, tmp_path: Path) -> None:
    index = built(exact, tmp_path / "index", "IVF40,Flat", nprobe=2)
    assert index.recall_of_top is None
    rows, wanted = index.search(np.arange(QUERIES), 200)[1], exact.search(np.arange(QUERIES), 200)[1]
    shares = [
        np.mean([len(np.intersect1d(a[:k], b[:k])) / k for a, b in zip(rows[:20], wanted[:20], strict=True)])
        for k in (10, 200)
    ]
    assert [index.recall_of_top, index.recall] == pytest.approx(shares)
    assert shares[0] > shares[1] + 0.1, "the two say different things"


def test_both_are_printed_and_so_is_that_too_few_were_found(
    exact: DenseIndex, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = built(exact, tmp_path / "index", "IVF40,Flat", nprobe=1)
    index.search(np.arange(QUERIES), 1_000)
    assert index.recall is not None
    assert index.recall_of_top is not None
    assert recall_of(index, "x") == {"recall_of_exact": index.recall, "recall_of_exact@10": index.recall_of_top}
    first, second = capsys.readouterr().out.splitlines()
    of_all, of_top = 100 * index.recall, 100 * index.recall_of_top
    assert (
        first
        == f"[x] approximate search found {of_all:.1f} % of what exact search finds, and {of_top:.1f} % of the 10 best"
    )
    assert second.startswith(f"[x] for {QUERIES} queries approximate search found fewer passages than it was asked for")
    assert "; raise stage.ann_index.nprobe (of an IVF), or stage.ann_index.ef_search (" in second
    index = built(exact, tmp_path / "flat", "Flat")
    index.search(np.arange(QUERIES), 5_000)
    assert index.short == 0, "all that there are is enough"


@pytest.mark.parametrize(
    ("factory", "unit", "said"),
    [
        ("L2norm,Flat", False, "ranks by cosine"),
        ("L2norm,Flat", True, None),
        ("PCA8,Flat", True, "subtracts the mean"),
        ("IVF20,Flat", False, None),
    ],
)
def test_what_changes_the_order_is_told(
    factory: str, unit: bool, said: str | None, write_dense: WriteDense, tmp_path: Path
) -> None:
    vectors = clustered(1, PASSAGES)
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if unit else vectors
    exact = DenseIndex(write_dense(vectors, clustered(2, QUERIES), 700), device="cpu")
    does = build_approximate(exact, tmp_path, factory, 1_500, 1, 1)
    assert (does is None) if said is None else (said in str(does))


@pytest.mark.parametrize(
    "factory", ["IDMap,Flat", "HNSW16_PQ4x4", "HNSW1", "PQ4x0", "LSH", "NSG4", "ZnLattice4x10_6", "PCA200,Flat"]
)
def test_what_cannot_be_searched_by_inner_product_leaves_nothing(
    factory: str, exact: DenseIndex, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"^factory: ") as caught:
        built(exact, tmp_path / "index", factory)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "index").iterdir())


def test_query_vectors_that_are_not_finite_are_refused(exact: DenseIndex, tmp_path: Path) -> None:
    index = built(exact, tmp_path / "index", "IVF20,Flat")
    for bad in (np.nan, np.inf):
        with pytest.raises(UserError, match="the vector of query 1 is not finite"):
            index.search_vectors(np.array([[0.0] * DIM, [bad] * DIM]), 3)


def test_where_fewer_are_found_than_asked_for_the_rest_is_empty(exact: DenseIndex, tmp_path: Path) -> None:
    scores, rows = built(exact, tmp_path / "index", "IVF40,Flat", nprobe=1).search(np.arange(2), 1_000)
    assert (rows[:, -1] == -1).all()
    assert np.isneginf(scores[:, -1]).all()


def test_the_same_vectors_give_the_same_index(exact: DenseIndex, tmp_path: Path) -> None:
    for name in ("a", "b"):
        built(exact, tmp_path / name, "IVF20,SQ8")
    assert (tmp_path / "a" / FILE).read_bytes() == (tmp_path / "b" / FILE).read_bytes()


@pytest.mark.parametrize(
    ("factory", "why"), [("IVF20,Nix", "could not parse"), ("IVF5000,Flat", "training points"), ("PQ7", "")]
)
def test_what_faiss_cannot_build_is_one_line(factory: str, why: str, exact: DenseIndex, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"^factory: FAISS cannot make '{factory}' of these vectors .*{why}") as caught:
        built(exact, tmp_path / "index", factory)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "index" / FILE).exists()


@pytest.mark.parametrize("works", [True, False])
def test_with_a_gpu_it_is_made_there_or_else_here_and_kept_as_a_cpus(
    works: bool, exact: DenseIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(exact, tmp_path / "here", "IVF20,Flat")
    calls = []

    def to_gpu(resources: str, device: int, index: Any) -> Any:
        calls.append((resources, device))
        if not works:
            raise RuntimeError("Error: This index type is not implemented on GPU.")
        return index

    def to_cpu(index: Any) -> Any:
        calls.append(("back", index.ntotal))
        return index

    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
    for name, stand_in in (
        ("StandardGpuResources", lambda: "resources"),
        ("index_cpu_to_gpu", to_gpu),
        ("index_gpu_to_cpu", to_cpu),
    ):
        monkeypatch.setattr(faiss, name, stand_in, raising=False)
    built(exact, tmp_path / "cpu alone", "IVF20,Flat")
    assert not calls
    built(exact, tmp_path / "there", "IVF20,Flat", gpu=True)
    trained, filled = ([("resources", 0), *([("back", number)] if works else [])] for number in (0, PASSAGES))
    assert calls == [*trained, *filled]
    assert (tmp_path / "there" / FILE).read_bytes() == (tmp_path / "here" / FILE).read_bytes()


class OnGpu:
    """A copy of an index as on a GPU: it takes no more results than FAISS does there, and orders ties as it likes."""

    MOST = 100

    def __init__(self, index: Any) -> None:
        self.index, self.searched = index, 0

    def search(self, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        if k > self.MOST:
            raise RuntimeError(
                "Error: 'k <= getMaxKSelection()' failed: GPU index only supports min/max-K selection up to"
            )
        self.searched += len(vectors)
        scores, rows = self.index.search(vectors, k)
        return scores[:, ::-1], rows[:, ::-1]


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> list[OnGpu]:
    """FAISS as on a machine with a GPU, and the copies that it has made."""
    copies: list[OnGpu] = []

    def to_gpu(resources: str, device: int, index: Any) -> OnGpu:
        if not isinstance(faiss.downcast_index(index), faiss.IndexIVF):
            raise RuntimeError("Error: This index type is not implemented on GPU.")
        copies.append(OnGpu(index))
        return copies[-1]

    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
    monkeypatch.setattr(faiss, "StandardGpuResources", lambda: "resources", raising=False)
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", to_gpu, raising=False)
    return copies


def test_with_a_gpu_it_is_searched_there_in_the_order_of_rankings(
    write_dense: WriteDense, tmp_path: Path, with_gpu: list[OnGpu]
) -> None:
    draw = np.random.default_rng(0)
    few = draw.integers(-2, 3, (300, 4))  # whole numbers: most scores are shared by many
    here = DenseIndex(write_dense(np.concatenate([few, few]), draw.integers(-2, 3, (QUERIES, 4)), 250), device="cpu")
    index = built(here, tmp_path / "index", "IVF8,Flat", nprobe=8, compared=QUERIES)
    wanted = index.search(np.arange(QUERIES), 10)
    assert not with_gpu, "exact search is on the CPU, so this is, too"
    there = DenseIndex(here.folder, device="cpu")
    there.device = "cuda"
    gpu = ApproximateIndex(tmp_path / "index", there)
    (copy,) = with_gpu
    there.device = "cpu"  # the exact search that it is compared with
    found = gpu.search(np.arange(QUERIES), 10)
    assert copy.searched == QUERIES
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert (gpu.recall, gpu.recall_of_top) == (index.recall, index.recall_of_top)
    deeper = gpu.search(np.arange(QUERIES), OnGpu.MOST + 1)
    assert copy.searched == QUERIES, "what a GPU does not take is searched here"
    np.testing.assert_array_equal(deeper[1], index.search(np.arange(QUERIES), OnGpu.MOST + 1)[1])


@pytest.mark.parametrize(("factory", "on_disk"), [("HNSW16", False), ("IVF8,Flat", True)])
def test_what_cannot_lie_on_a_gpu_is_searched_here(
    factory: str, on_disk: bool, exact: DenseIndex, tmp_path: Path, with_gpu: list[OnGpu]
) -> None:
    build_approximate(exact, tmp_path, factory, 1_500, 1, 1, on_disk=on_disk)
    write_approximate(tmp_path, exact, "encode/x", {"nprobe": 4, "ef_search": 32}, 20)
    exact.device = "cuda"
    index = ApproximateIndex(tmp_path, exact)
    exact.device = "cpu"
    assert (index.search(np.arange(QUERIES), 10)[1] >= 0).all()
    assert not with_gpu


def test_a_broken_index_is_named(exact: DenseIndex, tmp_path: Path) -> None:
    built(exact, tmp_path / "index", "Flat")
    (tmp_path / "index" / FILE).write_bytes(b"not an index")
    with pytest.raises(UserError, match=r"passages\.faiss: not a FAISS index"):
        ApproximateIndex(tmp_path / "index", exact)


def test_an_exact_retriever_has_no_recall_to_tell(exact: DenseIndex) -> None:
    assert recall_of(exact, "x") == {}
