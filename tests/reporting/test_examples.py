"""The questions of a page: which are chosen, and what is read of them."""

from pathlib import Path

import numpy as np
import pytest

from condensery.errors import UserError
from condensery.evaluation.metrics import Evaluation, evaluate
from condensery.randomness import hash64
from condensery.reporting.examples import (
    CLOSE,
    EVERY,
    LOST,
    NONE,
    WON,
    EvaluatedRow,
    beginning,
    choose,
    compared,
    examples,
)
from condensery.retrieval.runs import Run, write_run
from condensery.text.collection import Collection
from condensery.text.records import Passage, Query
from condensery.text.writer import CollectionWriter

QUERIES, PASSAGES, DEPTH = 30, 120, 20


def of_mean(*values: float) -> Evaluation:
    return Evaluation(["a", "b"], {"MRR@10": np.array(values), "NDCG@10": 1 - np.array(values)})


def test_the_best_row_is_compared_with_bm25() -> None:
    weak, strong, even = of_mean(0.1, 0.1), of_mean(0.9, 0.9), of_mean(0.9, 0.9)
    assert compared([strong, weak, even], [True, False, False]) == ("MRR@10", 2, 0)
    assert compared([weak, even, strong], [False, False, True]) == ("MRR@10", 1, 2)
    assert compared([weak, strong, even], [False] * 3) == ("MRR@10", 2, 0), "of equal ones the later"
    assert compared([strong, weak], [False] * 2) == ("MRR@10", 0, 1)
    assert compared([strong, weak], [True] * 2) == ("MRR@10", 0, 1)
    assert compared([strong], [True]) == ("MRR@10", 0, None)


def test_the_questions_with_the_largest_differences_are_chosen() -> None:
    names = [f"q{i}" for i in range(16)]
    other = np.array([0, 0.1, 0, 0.5, 0, 0, 1, 1, 0.2, 0, 1, 0.3, 0, 0.5, 0.5, 0.25])
    best_ = np.array([1, 0.2, 0.5, 1.0, 0, 0.25, 0, 0.5, 0, 0, 0.1, 0, 0.2, 0.5, 0.5, 0.25])
    found = choose(names, np.stack([other, best_]), best=1, other=0)
    by_kind = {kind: [i for i, one in found if one == kind] for kind in (WON, LOST, EVERY, NONE, CLOSE)}
    assert by_kind[WON][0] == 0
    assert sorted(by_kind[WON]) == [0, 2, 3, 5]
    assert by_kind[LOST] == [6, 10, 7, 11]
    assert by_kind[EVERY] == [min((1, 13, 14, 15), key=lambda i: hash64(names[i]))], "ahead, but four are further"
    assert by_kind[NONE] == [min((4, 9), key=lambda i: hash64(names[i]))]
    assert by_kind[CLOSE] == []


def test_equal_questions_are_not_taken_in_the_order_of_their_names() -> None:
    names = [f"q{i:03d}" for i in range(200)]
    values = np.stack([np.zeros(200), np.ones(200)])
    won = [names[i] for i, kind in choose(names, values, 1, 0) if kind == WON]
    assert won == sorted(names, key=hash64)[:4]
    assert won != names[:4]
    turned = [names[::-1][i] for i, kind in choose(names[::-1], values, 1, 0) if kind == WON]
    assert turned == won, "nor does the order of the file count"


def test_what_is_left_is_filled_with_small_differences() -> None:
    names = [f"q{i}" for i in range(12)]
    gains = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.1, 0.2, 0.3, 0.4, 0.45, 0.55, 0.57])
    found = choose(names, np.stack([np.zeros(12), gains]), 1, 0)
    assert len(found) == 10
    assert [i for i, kind in found if kind == WON] == [0, 1, 2, 3]
    assert [i for i, kind in found if kind == CLOSE] == [5, 6, 7, 8, 9, 4]
    assert choose(["a", "b"], np.ones((2, 2)), 1, 0) == [
        (min((0, 1), key=lambda i: hash64("ab"[i])), EVERY),
        (max((0, 1), key=lambda i: hash64("ab"[i])), CLOSE),
    ]


def test_one_row_is_compared_with_its_mean() -> None:
    found = choose([f"q{i}" for i in range(20)], np.linspace(0, 1, 20)[None], 0, None)
    assert [i for i, kind in found if kind == WON] == [19, 18, 17, 16]
    assert [i for i, kind in found if kind == LOST] == [0, 1, 2, 3]
    assert len(found) == 10


def test_long_texts_end_with_a_word() -> None:
    assert beginning("short and whole") == "short and whole"
    assert beginning(" a\n\tb  c ") == "a b c"
    words = "seven letters " * 40
    cut = beginning(words, 30)
    assert cut == "seven letters seven letters …"
    assert beginning("x" * 200) == "x" * 200
    assert beginning("x" * 201) == "x" * 200 + " …"
    assert beginning("seven letters here", 13) == "seven letters …", "a word that just fits"


def test_texts_without_blanks_are_cut_between_letters() -> None:
    assert beginning("信息检索" * 100, 10) == "信息检索信息检索信息 …"
    accented = "e\u0301" * 100
    assert beginning(accented, 11) == "e\u0301" * 5 + " …", "a letter keeps its marks"
    assert beginning("\u0301" * 100, 11), "and marks without a letter are cut somewhere"


def test_characters_that_nobody_sees_are_dropped() -> None:
    assert beginning("a\x00b\x1b[31mc\x7f\x9b\u202ed\u2067e") == "ab[31mcde"
    assert beginning("می\u200cخواهم") == "می\u200cخواهم", "those that some writings need are not"


@pytest.fixture(scope="module")
def woods(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """Query i is answered by passage i, and query 0 by five; of query 1, passage 50 is judged irrelevant."""
    folder = tmp_path_factory.mktemp("woods")
    with CollectionWriter(folder, "woods") as writer:
        for i in range(QUERIES):
            writer.add_judgement("test", f"q{i}", f"p{i}", 1)
            writer.add_query(Query(f"q{i}", f"question <{i}>", answers=[f"tree{i}"]))
        for i in range(100, 104):
            writer.add_judgement("test", "q0", f"p{i}", 1)
        writer.add_judgement("test", "q1", "p50", 0)
        for i in range(PASSAGES):
            writer.add_passage(Passage(f"p{i}", f"title {i}" if i % 2 else "", f"about tree{i} and " + "more " * 99))
    return Collection(folder)


def system(
    collection: Collection, folder: Path, name: str, ranks: list[int | None], metric: str = "MRR@10"
) -> EvaluatedRow:
    """A row that finds the passage of query i at ``ranks[i]``; one that finds none of them finds nothing at all."""
    rows = np.array([[60 + (i + j) % 40 for j in range(DEPTH)] for i in range(QUERIES)])
    for i, rank in enumerate(ranks):
        if rank is not None:
            rows[i, rank - 1] = i
    scores = np.tile(-np.arange(DEPTH, dtype=np.float32), (QUERIES, 1))
    if not any(ranks):
        rows[:], scores[:] = -1, -np.inf
    run = Run(np.arange(QUERIES), rows, scores)
    folder = folder / name
    folder.mkdir()
    write_run(folder / "run.trec.gz", run, collection)
    evaluate(run, collection, "test", [metric]).save(folder / "evaluation.npz")
    return EvaluatedRow(name, folder, DEPTH, bm25=name == "BM25")


def rows(collection: Collection, folder: Path, metric: str = "MRR@10") -> list[EvaluatedRow]:
    low, high = [5] * 10 + [1] * 10 + [12] * 5 + [None] * 5, [1] * 10 + [2] * 10 + [15] * 5 + [None] * 5
    return [
        system(collection, folder, "BM25", [*low], metric),
        system(collection, folder, "condensed", [*high], metric),
        system(collection, folder, "weaker", [*low[:-1], None], metric),
    ]


def test_what_each_row_found_is_read(woods: Collection, tmp_path: Path) -> None:
    found = examples(rows(woods, tmp_path), woods, "test")
    assert (found.best, found.other, found.metric, found.split) == ("condensed", "BM25", "MRR@10", "test")
    assert [item.kind for item in found.items] == [WON] * 4 + [LOST] * 4 + [EVERY, NONE]
    won, lost, none = found.items[0], found.items[4], found.items[-1]
    number = int(won.id[1:])
    assert won.text == f"question <{number}>"
    assert won.relevant[0].id == f"p{number}"
    assert [finding.rank for finding in won.findings] == [5, 1, 5]
    assert [finding.value for finding in won.findings] == [0.2, 1.0, 0.2]
    assert [finding.relevant for finding in won.findings] == [False, True, False]
    first = won.findings[1].first
    assert first is not None
    assert first.title == (f"title {number}" if number % 2 else "")
    assert first.text.startswith(f"about tree{number} and more")
    assert first.text.endswith("more …")
    assert len(first.text) <= 202
    assert [finding.rank for finding in lost.findings] == [1, 2, 1]
    assert [finding.value for finding in none.findings] == [0, 0, 0]
    assert none.findings[0].rank in (12, None), "the rank is looked for in all that was ranked"
    assert "condensed, the best row by MRR@10 apart from BM25" in found.rule


def test_no_more_than_a_few_relevant_passages_are_shown(woods: Collection, tmp_path: Path) -> None:
    ranks: list[int | None] = [1, *[None] * (QUERIES - 1)]
    (item,) = [
        item for item in examples([system(woods, tmp_path, "only", ranks)], woods, "test").items if item.id == "q0"
    ]
    assert [shown.id for shown in item.relevant] == ["p0", "p100", "p101"]
    assert item.judged == 5


def test_a_row_that_found_nothing_says_so(woods: Collection, tmp_path: Path) -> None:
    found = examples([system(woods, tmp_path, "only", [None] * QUERIES)], woods, "test")
    shown = [finding for item in found.items for finding in item.findings]
    assert len(shown) == 10
    assert all(one.first is None and one.rank is None and not one.relevant for one in shown)


def test_hits_are_counted_by_answers(woods: Collection, tmp_path: Path) -> None:
    found = examples(rows(woods, tmp_path, "Hit@4"), woods, "test")
    assert found.by_answers
    won = found.items[0]
    assert won.answers == [f"tree{won.id[1:]}"]
    assert [finding.rank for finding in won.findings] == [5, 1, 5]
    (tmp_path / "judged").mkdir()
    judged = examples(rows(woods, tmp_path / "judged"), woods, "test")
    assert not judged.by_answers
    assert judged.items[0].answers == []


def test_the_same_rows_give_the_same_examples(woods: Collection, tmp_path: Path) -> None:
    systems = rows(woods, tmp_path)
    assert examples(systems, woods, "test").data() == examples(systems, woods, "test").data()


def test_files_that_do_not_belong_together_are_named(woods: Collection, tmp_path: Path) -> None:
    systems = rows(woods, tmp_path)
    Evaluation(["q0"], {"MRR@10": np.ones(1)}).save(systems[1].folder / "evaluation.npz")
    with pytest.raises(UserError, match=r"condensed/evaluation.npz: has other questions than the table"):
        examples(systems, woods, "test")
