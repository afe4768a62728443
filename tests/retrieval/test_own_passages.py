"""A query that is a passage itself does not find itself, by id and text; everything that ranks keeps to it."""

import unicodedata
from pathlib import Path

import numpy as np
import pytest
from in_row_order import InRowOrder

from condensery import BM25, evaluate
from condensery.retrieval.cross_encoders import search_candidates
from condensery.retrieval.indexes.bm25 import build_bm25
from condensery.retrieval.indexes.fusion import FusedIndex, measure_grid, weight_grid
from condensery.retrieval.indexes.opening import open_index
from condensery.retrieval.indexes.own_passages import WithoutOwn, own_passages, own_passages_left_out
from condensery.retrieval.indexes.sampled import SampledCandidates
from condensery.sharing import SINGLE_PROCESS
from condensery.system.progress import progress
from condensery.text.collection import Collection
from condensery.text.records import Passage, Query
from condensery.text.writer import CollectionWriter

TOPICS = ["solar roofs für alle", "old trams", "school coats", "wild bees"]
NFD = unicodedata.normalize("NFD", TOPICS[0])


@pytest.fixture
def arguments(tmp_path: Path) -> Collection:
    """Query a<i> is passage a<i>, written a little differently, and passage b<i> answers it; c<i> has the text of a<i>.

    Of a2 the title alone is the query, as of the questions of a forum. Query a3 is judged relevant to itself. The query "0"
    has a passage's id and not its text.
    """
    with CollectionWriter(tmp_path / "arguments", "arguments") as writer:
        for number in range(4):
            writer.add_judgement("test", f"a{number}", f"b{number}", 1)
        writer.add_judgement("test", "a3", "a3", 1)
        writer.add_judgement("test", "a2", "a2", 0)
        writer.add_judgement("test", "0", "b0", 1)
        texts = [("", f" {NFD} "), ("old", "trams"), ("school coats", "are they warm"), ("", "wild\tbees")]
        for number, (title, text) in enumerate(texts):
            writer.add_passage(Passage(f"a{number}", title, text))
            writer.add_passage(Passage(f"b{number}", "", f"{TOPICS[number]} in winter {number}"))
            writer.add_passage(Passage(f"c{number}", "", TOPICS[number]))
        writer.add_passage(Passage("0", "", "roofs"))
        for number, topic in enumerate(TOPICS):
            writer.add_query(Query(f"a{number}", topic))
        writer.add_query(Query("0", "solar"))
    return Collection(tmp_path / "arguments")


@pytest.fixture
def bm25(arguments: Collection, tmp_path: Path) -> Path:
    build_bm25(arguments, tmp_path / "bm25", 0.9, 0.4, "none", "none")
    return tmp_path / "bm25"


def names(collection: Collection, rows: np.ndarray) -> list[str]:
    return collection.passages.ids_at(rows[rows >= 0])


def test_own_is_what_has_the_id_and_the_text_and_is_not_judged_relevant(arguments: Collection) -> None:
    rows = own_passages(arguments, np.arange(5))
    assert names(arguments, rows) == ["a0", "a1", "a2"]
    assert rows[3] == rows[4] == -1
    assert names(arguments, own_passages(arguments, np.arange(5), by_id=True)) == ["a0", "a1", "a2", "a3", "0"]


def test_rankings_are_as_deep_as_asked_for(arguments: Collection) -> None:
    order = InRowOrder(13)
    index = WithoutOwn(order, arguments)
    scores, rows = index.search(np.arange(5), 4)
    assert rows.tolist() == [[1, 2, 3, 4], [0, 1, 2, 4], [0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert scores[0].tolist() == [-1, -2, -3, -4]
    index.search(np.array([3, 4]), 4)
    assert order.asked == [5, 4], "nothing is searched deeper where no query has a passage of its own"
    assert index.search(np.arange(1), 13)[1][0].tolist() == [*range(1, 13), -1]
    assert index.scores == "its own"
    assert not hasattr(index, "search_texts")


def test_it_is_counted(arguments: Collection, capsys: pytest.CaptureFixture[str]) -> None:
    assert own_passages_left_out(arguments, np.arange(5), "stage") == {"own_passages_left_out": 3}
    assert "[stage] 3 of 5 queries are passages" in capsys.readouterr().out
    own_passages_left_out(arguments, np.array([0, 3]), "stage")
    assert "[stage] 1 of 2 queries is a passage, too (same id and text)" in capsys.readouterr().out
    assert own_passages_left_out(arguments, np.array([3, 4]), "stage") == {}
    assert capsys.readouterr().out == ""


def test_an_index_fusion_and_candidates_do_without(arguments: Collection, bm25: Path, tmp_path: Path) -> None:
    index = open_index(bm25, arguments)
    assert names(arguments, index.search(np.arange(1), 2)[1][0]) == ["c0", "b0"]
    by_id = open_index(bm25, arguments, own_by_id=True)
    assert "a3" in names(arguments, index.search(np.array([3]), 3)[1][0])
    assert "a3" not in names(arguments, by_id.search(np.array([3]), 3)[1][0])
    found = search_candidates(index, np.arange(5), 13, tmp_path / "candidates.npy", "x", SINGLE_PROCESS)
    assert not (found == own_passages(arguments, np.arange(5))[:, None])[:3].any()
    fused = FusedIndex([index, index], [0.5, 0.5], 10)
    assert fused.search(np.arange(1), 1)[0][0, 0] == 1.0, "min-max of what is left"
    with progress("x", 1, "queries") as task:
        grid = weight_grid(2, 2)
        values = measure_grid(fused, np.arange(3), grid, lambda _, rows: (rows[:, 0] % 3 == 2).astype(float), 1, task)
    assert values.tolist() == [1, 1, 1], "c<i> is first with all weights"
    positives = {0: np.array([1])}
    drawn = SampledCandidates(index, index, positives, 10, 10).candidates(np.arange(1))  # type: ignore[arg-type]
    assert 0 not in drawn[0].tolist()


def test_evaluate_leaves_the_query_out(arguments: Collection, capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluate(BM25(stopwords="none", stemmer="none"), arguments, ["MRR@10", "Recall@2"])
    # c<i> is first and b<i> second for a0 to a2; a3 finds itself; query 0 finds b0 behind c0 and a0
    assert found["MRR@10"] == pytest.approx((0.5 + 0.5 + 0.5 + 1 + 1 / 3) / 5)
    assert "[evaluate] 3 of 5 queries" in capsys.readouterr().out
