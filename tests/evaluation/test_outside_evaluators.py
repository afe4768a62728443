"""Who scores our run files with other tools finds the numbers of the table, ties or not."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from damage import FEW
from hypothesis import given
from hypothesis import strategies as st
from outside_evaluators import check, read_lines

from condensery.evaluation.metrics import evaluate
from condensery.retrieval.ranking import pack, top, unpack
from condensery.retrieval.runs import Run, write_run
from condensery.text.collection import Collection
from condensery.text.records import Passage, Query
from condensery.text.writer import CollectionWriter

METRICS = ["MRR@10", "MRR", "MRR@3", "NDCG@10", "NDCG@5", "Recall@1", "Recall@100", "MAP", "MAP@3", "P@5", "Success@2"]


def collection_of(
    folder: Path, judged: dict[str, dict[str, int]], passages: list[str], queries: list[str]
) -> Collection:
    with CollectionWriter(folder, "made") as writer:
        for query, grades in judged.items():
            for passage, grade in grades.items():
                writer.add_judgement("test", query, passage, grade)
        for passage in passages:
            writer.add_passage(Passage(passage, "", f"text of {passage}"))
        for query in queries:
            writer.add_query(Query(query, f"question {query}"))
    return Collection(folder)


def agrees(folder: Path, run: Run, collection: Collection) -> None:
    write_run(folder / "run.trec.gz", run, collection)
    check(read_lines(folder / "run.trec.gz"), evaluate(run, collection, "test", METRICS), collection, "test")


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """Two queries over 1,000 passages; the first passages and one in the middle are relevant."""
    judged = {"q0": {"p0": 3, "p1": 1, "p500": 1, "p7": 0, "p8": -1}, "q1": {"p999": 1, "p2": 2}}
    passages = [f"p{number}" for number in range(1000)]
    return collection_of(tmp_path_factory.mktemp("tied"), judged, passages, ["q0", "q1", "q2"])


@pytest.mark.parametrize(
    "scores",
    [
        [2.5] * 1000,
        [0.0] * 500 + [-0.0] * 500,
        [1e-45] * 3 + [0.0] * 997,
        [np.finfo(np.float32).max] * 10 + [np.finfo(np.float32).min] * 990,
        [np.finfo(np.float32).min] * 1000,
        [-7.0] * 1000,
        [16777216.0] * 400 + [16777215.0] * 600,
        [1.0] * 5 + [float(np.nextafter(np.float32(1), np.float32(0)))] * 995,  # more ties than numbers between them
    ],
    ids=["all", "zeros", "tiny", "extremes", "lowest", "negative", "whole", "neighbours"],
)
def test_tied_scores_rank_as_in_the_table(scores: list[float], tied: Collection, tmp_path: Path) -> None:
    order = np.random.default_rng(0).permutation(1000)  # of the passages: ids and ranks say different things
    rows = np.stack([np.arange(1000), order])
    agrees(tmp_path, Run(np.array([0, 1]), rows, np.array([scores, scores], np.float32)), tied)


ids = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=6)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[dict[str, dict[str, int]], list[str], list[str], list[list[float]]]:
    """Judgements, passages, queries, and a score of each passage for each query: few different ones, so many tie."""
    passages = draw(st.lists(ids, unique=True, min_size=2, max_size=30))
    queries = draw(st.lists(ids, unique=True, min_size=1, max_size=4))
    grades = st.dictionaries(st.sampled_from(passages), st.integers(-2, 4), min_size=1, max_size=8)
    judged = {query: {**draw(grades), draw(st.sampled_from(passages)): draw(st.integers(1, 3))} for query in queries}
    number = st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-45, 3.4e38]) | st.floats(width=32, allow_nan=False)
    few = draw(st.lists(number.filter(np.isfinite), min_size=1, max_size=4))
    each = st.lists(st.sampled_from(few), min_size=len(passages), max_size=len(passages))
    return judged, passages, queries, [draw(each) for _ in queries]


@FEW
@given(world=worlds(), depth=st.integers(1, 40), missing=st.integers(0, 2))
def test_any_run_has_the_numbers_that_others_read_off_it(
    world: tuple[dict[str, dict[str, int]], list[str], list[str], list[list[float]]], depth: int, missing: int
) -> None:
    judged, passages, queries, scores = world
    with tempfile.TemporaryDirectory() as name:
        collection = collection_of(Path(name) / "made", judged, passages, queries)
        searched = np.arange(len(queries))[missing:]  # the first have no results
        found, rows = unpack(top(pack(np.array(scores, np.float32)[missing:], np.arange(len(passages))), depth))
        agrees(Path(name), Run(searched, rows, found), collection)
