"""The drawn pairs are of the kind they say, no pair comes twice, and the seed alone decides which."""

import json
from collections import Counter
from pathlib import Path

import pytest

from condensery.errors import UserError
from condensery.evaluation.pair_audit.pairs import NO_ROW, PASSAGES, QUERIES, Pair, Pairs
from condensery.text.table import TableWriter, TextTable

SIZES = [3, 1, 4, 2, 1, 5]  # passages of each document


def table(folder: Path, sizes: list[int]) -> TextTable:
    with TableWriter(folder / "passages.arrow", ("id", "document", "title", "text")) as writer:
        for document, size in enumerate(sizes):
            for passage in range(size):
                writer.add((f"{document}#{passage}", f"d{document}", "", f"text {passage} of {document}"), 10)
    return TextTable(folder / "passages.arrow")


def queries(folder: Path, of_each: dict[str, list[str]]) -> Path:
    path = folder / "queries.jsonl"
    path.write_text("".join(json.dumps({"id": name, "queries": texts}) + "\n" for name, texts in of_each.items()))
    return path


def some_queries(passages: TextTable) -> dict[str, list[str]]:
    """0 to 3 different queries a passage; one is there twice, and one is empty."""
    made = {name: [f"query {i} of {name}" for i in range(row % 4)] for row, name in enumerate(passages.ids)}
    made["0#1"] += ["query 0 of 0#1", " "]
    return made


@pytest.fixture
def pairs(tmp_path: Path) -> Pairs:
    passages = table(tmp_path, SIZES)
    return Pairs(passages, queries(tmp_path, some_queries(passages)), seed=1)


def passages_of(pair: Pair) -> frozenset[str]:
    return frozenset((pair.id, pair.context_id))


def test_all_pairs_are_there_once_and_of_their_kind(pairs: Pairs) -> None:
    drawn = pairs.draw(PASSAGES, 1000)
    assert len(drawn) == len({passages_of(pair) for pair in drawn}) == pairs.available(PASSAGES) == 3 + 6 + 1 + 10
    for pair in drawn:
        assert pair.id != pair.context_id
        assert pair.id.split("#")[0] == pair.context_id.split("#")[0]
        assert (pair.text, pair.context) == tuple(
            f"text {name.split('#')[1]} of {name.split('#')[0]}" for name in (pair.id, pair.context_id)
        )
        assert pairs.passages.ids[pair.row] == pair.id
        assert pairs.passages.ids[pair.context_row] == pair.context_id
    drawn = pairs.draw(QUERIES, 1000)
    expected = {text for texts in some_queries(pairs.passages).values() for text in texts if text.strip()}
    assert sorted(pair.context for pair in drawn) == sorted(expected)
    assert pairs.available(QUERIES) == len(expected)
    for pair in drawn:
        assert pair.context.endswith(f" of {pair.id}")
        assert pair.context_row == NO_ROW


def test_every_document_comes_once_before_any_comes_again(pairs: Pairs) -> None:
    documents = [pair.id.split("#")[0] for pair in pairs.draw(PASSAGES, 6)]
    assert len(set(documents[:4])) == 4, "the two documents of one passage have no pair"
    assert Counter(documents).most_common(1)[0][1] == 2


def test_both_kinds_begin_with_the_same_passages_in_the_same_order(tmp_path: Path) -> None:
    passages = table(tmp_path, [4] * 30)
    pairs = Pairs(passages, queries(tmp_path, {name: ["a", "b"] for name in passages.ids}), seed=3)
    assert [pair.id for pair in pairs.draw(PASSAGES, 30)] == [pair.id for pair in pairs.draw(QUERIES, 30)]


@pytest.mark.parametrize("kind", [PASSAGES, QUERIES])
def test_the_seed_decides_and_a_longer_draw_begins_with_the_shorter(pairs: Pairs, kind: str) -> None:
    drawn = pairs.draw(kind, 12)
    assert pairs.draw(kind, 12) == drawn
    assert pairs.draw(kind, 5) == drawn[:5]
    other = Pairs(pairs.passages, pairs.queries, seed=2)
    assert other.draw(kind, 12) != drawn


def test_documents_and_passages_are_drawn_evenly(tmp_path: Path) -> None:
    passages = table(tmp_path, [3] * 8)
    first = Counter(Pairs(passages, None, seed).draw(PASSAGES, 1)[0].row for seed in range(2400))
    assert len(first) == 24
    assert all(60 < count < 145 for count in first.values()), "100 each, to five standard deviations"
    second = Counter(Pairs(passages, None, seed).draw(PASSAGES, 1)[0].context_row for seed in range(2400))
    assert all(60 < count < 145 for count in second.values())


def test_without_queries_there_is_one_kind(tmp_path: Path) -> None:
    assert Pairs(table(tmp_path, SIZES), None, 1).kinds == [PASSAGES]


@pytest.mark.parametrize("sizes", [[1, 1, 1], []])
def test_documents_of_one_passage_make_no_pair(tmp_path: Path, sizes: list[int]) -> None:
    with pytest.raises(UserError, match=r"passages.arrow: no document has two passages"):
        Pairs(table(tmp_path, sizes), None, 1)


def test_passages_without_queries_make_no_pair(tmp_path: Path) -> None:
    passages = table(tmp_path, SIZES)
    with pytest.raises(UserError, match=r"queries.jsonl: no passage has a query"):
        Pairs(passages, queries(tmp_path, {name: [""] for name in passages.ids}), 1)


def test_queries_that_are_not_those_of_the_passages_are_refused(tmp_path: Path) -> None:
    passages = table(tmp_path, [2, 2])
    fit = {name: ["q"] for name in passages.ids}
    cases = [
        ({**fit, "more": ["q"]}, r"queries.jsonl:5: id is 'more', but there are no more passages"),
        (dict(list(fit.items())[:3]), r"queries.jsonl: 3 lines for 4 passages"),
        (dict(reversed(list(fit.items()))), r"queries.jsonl:1: id is '1#1', but the passage of this row is '0#0'"),
        ({**fit, "0#1": [1]}, r'queries.jsonl:2: the field "queries" must be a list of strings'),
        ({**fit, "0#1": "q"}, r'queries.jsonl:2: the field "queries" must be a list'),
    ]
    for given, message in cases:
        with pytest.raises(UserError, match=message):
            Pairs(passages, queries(tmp_path, given), 1)  # type: ignore[arg-type]
