"""Batches for fine-tuning: positives, hard negatives, what is known, each passage once."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import textbook
import torch
import trainings

from condensery import BM25, UserError
from condensery.models.biencoder import PASSAGE, QUERY
from condensery.retrieval.no_negatives import NoNegatives, packed
from condensery.text.collection import Collection
from condensery.text.records import Passage, Query
from condensery.text.same_texts import SameTexts
from condensery.text.writer import CollectionWriter
from condensery.tokens.batches import text_rows
from condensery.tokens.tokenizer import train_wordpiece
from condensery.training.data.steps import Share, items_in_sequence, items_of_step
from condensery.training.data.training_queries import TextQueries, TrainingQueries
from condensery.training.data.triple_batches import TripleBatch, TripleBatches
from condensery.training.data.triples import TripleDataModule

NEGATIVES = 3


def _chosen(batches: TripleBatches, step: int) -> np.ndarray:
    """Which queries the batch of a step is of; the order of queries is the batches' own."""
    return items_of_step(step, batches.batch_size, len(batches.training.rows), batches.seed)[1]


def _drawn(batches: TripleBatches, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries, positives (b,) and hard negatives (b, n) of a step."""
    epoch = step // batches.steps_an_epoch()
    chosen = _chosen(batches, step)
    positive = batches.draw(epoch, chosen)[0]
    return chosen, positive, batches._hard_negatives(epoch, chosen, positive)


def _texts(batch: TripleBatch, tower: int) -> dict[int, list[int]]:
    """Row of the batch -> ids, of one tower."""
    rows: dict[int, list[int]] = {}
    for chunk in batch.chunks:
        if chunk.tower == tower:
            for row, ids, length in zip(chunk.rows.tolist(), chunk.input_ids, chunk.lengths, strict=True):
                rows[row] = ids[:length].tolist()
    return rows


def _positives(training: TrainingQueries, query: int) -> set[int]:
    return set(training.positives[training.starts[query] : training.starts[query + 1]].tolist())


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_batch_is_a_function_of_the_step_for_any_order_and_workers(workers: int, tmp_path: Path) -> None:
    _, data, _ = trainings.run("biencoder", tmp_path, workers=workers)
    data.epoch = 7
    other = trainings.triple_batches(tmp_path)
    for step, batch in reversed(list(enumerate(data.train_dataloader()))):
        again = other.batch(step)
        assert torch.equal(batch.positive, again.positive)
        assert torch.equal(batch.known, again.known)
        for one, two in zip(batch.chunks, again.chunks, strict=True):
            assert torch.equal(one.input_ids, two.input_ids)
            assert torch.equal(one.rows, two.rows)
            assert one.tower == two.tower


def test_every_query_comes_once_an_epoch_and_the_last_batch_is_short(tmp_path: Path) -> None:
    batches = trainings.triple_batches(tmp_path)
    assert batches.steps_an_epoch() == 3
    for epoch in range(2):
        sizes = [len(batches.batch(3 * epoch + step).positive) for step in range(3)]
        assert sizes == [5, 5, 3]
        seen = np.concatenate([_chosen(batches, 3 * epoch + step) for step in range(3)])
        assert sorted(seen) == list(range(13))


def test_queries_may_come_as_they_stand(tmp_path: Path) -> None:
    order = partial(items_in_sequence, batch_size=5, items=13)
    batches = trainings.triple_batches(tmp_path, order=order)
    for step in range(6):
        epoch, chosen = order(step)
        assert (epoch, chosen.tolist()) == (step // 3, [*range(13)][step % 3 * 5 :][:5])
        queries = _texts(batches.batch(step), QUERY)
        for row, query in enumerate(chosen):
            assert queries[row][1:-1] == batches.readers[QUERY].texts.text(batches.training.rows[query])[:5].tolist()


def test_rows_hold_the_queries_and_passages_that_were_drawn_each_passage_once(tmp_path: Path) -> None:
    batches = trainings.triple_batches(tmp_path)
    for step in range(9):
        batch = batches.batch(step)
        chosen, positive, hard = _drawn(batches, step)
        queries, passages = _texts(batch, QUERY), _texts(batch, PASSAGE)
        wanted = sorted({*positive.tolist(), *hard.flatten().tolist()})
        assert sorted(queries) == list(range(len(chosen)))
        assert sorted(passages) == list(range(len(chosen), len(chosen) + len(wanted)))
        for row, query in enumerate(chosen):
            assert queries[row][1:-1] == batches.readers[QUERY].texts.text(batches.training.rows[query])[:5].tolist()
        for row, passage in enumerate(wanted):
            assert passages[len(chosen) + row][1:-1] == batches.readers[PASSAGE].texts.text(passage)[:10].tolist()
        assert [wanted[row] for row in batch.positive.tolist()] == positive.tolist()
        for query, judged in enumerate(_positives(batches.training, q) for q in chosen):
            assert [bool(flag) for flag in batch.known[query]] == [passage in judged for passage in wanted]
        assert batch.tokens == sum(len(ids) for ids in [*queries.values(), *passages.values()])


def test_negatives_are_drawn_from_the_pool_without_replacement_and_short_pools_are_filled(tmp_path: Path) -> None:
    batches = trainings.triple_batches(tmp_path)
    training = batches.training
    seen: dict[int, set[int]] = {}
    for step in range(60):
        for query, _, hard in zip(*_drawn(batches, step), strict=True):
            pool = set(training.negatives[query][training.negatives[query] >= 0].tolist())
            usable = pool - _positives(training, query)
            found = set(hard.tolist())
            assert len(found) == NEGATIVES, "a negative twice"
            assert not found & _positives(training, query), "a positive as hard negative"
            assert len(found & usable) == min(NEGATIVES, len(usable)), "filled up while the pool had more"
            seen.setdefault(query, set()).update(found & usable)
    for query, found in seen.items():
        pool = set(training.negatives[query][training.negatives[query] >= 0].tolist())
        assert found == pool - _positives(training, query), "some of the pool is never drawn"


def test_every_positive_of_a_query_is_drawn_in_some_epoch(tmp_path: Path) -> None:
    batches = trainings.triple_batches(tmp_path)
    seen: dict[int, set[int]] = {}
    for step in range(90):
        for query, positive, _ in zip(*_drawn(batches, step), strict=True):
            seen.setdefault(query, set()).add(int(positive))
    assert seen == {query: _positives(batches.training, query) for query in range(13)}


def test_a_query_whose_passages_are_all_judged_gets_no_negative_of_its_own(tmp_path: Path) -> None:
    everything = np.arange(30)
    training = TrainingQueries(np.arange(1), everything, np.array([0, 30]), np.full((1, 2), -1, np.int32))
    batch = trainings.triple_batches(tmp_path, training).batch(0)
    assert batch.known.shape == (1, 1)


def test_without_hard_negatives_a_batch_holds_the_positives_alone(tmp_path: Path) -> None:
    batches = trainings.triple_batches(tmp_path, negatives=0)
    batch = batches.batch(0)
    assert batch.known.shape == (5, len(set(batches.draw(0, _chosen(batches, 0))[0].tolist())))


def _twins() -> tuple[TrainingQueries, NoNegatives]:
    """Six queries of 30 passages: passage 20 + i has the text of i; queries 0 and 1 have one text; 9 is query 2 itself."""
    judged = {row: np.array([passage]) for row, passage in zip(range(0, 12, 2), (0, 5, 22, 3, 4, 6), strict=True)}
    passages = SameTexts(np.arange(20, 30), np.arange(10))
    queries = SameTexts(np.array([2]), np.array([0]))
    pairs = [(0, 0), (0, 5), (4, 2), (4, 9), (6, 3), (8, 4), (10, 6)]
    known = NoNegatives(queries, passages, np.array([(query << 32) + passage for query, passage in pairs]))
    pools = np.array([[20, 25, 5, 29], [1, 21, 20, 5], [2, 9, 29, 22], [7, 27, 7, -1], [24, 8, 28, 1], [26, 6, -1, -1]])
    return TrainingQueries.of(judged, pools.astype(np.int32), known=known), known


def test_with_each_positive_every_pair_comes_once_an_epoch_and_no_positive_is_a_negative(tmp_path: Path) -> None:
    one = trainings.training_queries()
    numbers = np.diff(one.starts)
    judged = dict(zip(one.rows.tolist(), np.split(one.positives, one.starts[1:-1]), strict=True))
    nothing = SameTexts(np.empty(0, np.int64), np.empty(0, np.int64))
    known = NoNegatives(nothing, nothing, np.sort(packed(np.repeat(one.rows, numbers), one.positives)))
    pools = np.repeat(np.asarray(one.negatives), numbers, axis=0)
    training = TrainingQueries.of(judged, pools, known=known, each=True)
    assert training.by_text == 0
    batches, again = (trainings.triple_batches(tmp_path, training) for _ in range(2))
    later = {step: again.batch(step) for step in reversed(range(15))}
    beside = 0
    for epoch in range(3):
        seen = []
        for step in range(5 * epoch, 5 * epoch + 5):
            batch, (chosen, positive, hard) = batches.batch(step), _drawn(batches, step)
            rows = training.rows[chosen].tolist()
            seen += zip(rows, positive.tolist(), strict=True)
            assert batch.passages[batch.positive].tolist() == positive.tolist()
            assert torch.equal(batch.known, later[step].known)
            assert all(map(torch.equal, *([part.input_ids for part in of.chunks] for of in (batch, later[step]))))
            for row, passages, excluded in zip(rows, hard.tolist(), batch.known, strict=True):
                own = set(judged[row].tolist())
                assert not own & set(passages)
                assert set(batch.passages[excluded].tolist()) == own & set(batch.passages.tolist())
            beside += len(rows) - len(set(rows))
        assert sorted(seen) == [(row, passage) for row, own in judged.items() for passage in own.tolist()]
    assert beside, "no batch had two positives of a query"


def test_what_has_a_known_text_is_no_hard_negative_and_no_text_is_drawn_twice(tmp_path: Path) -> None:
    training, known = _twins()
    assert training.by_text == 12  # 7 pairs stand for 18 passages, of which 6 are judged; queries 0 and 1 share two
    batches = trainings.triple_batches(tmp_path, training, negatives=2, batch_size=6)
    for step in range(20):
        chosen, positive, hard = _drawn(batches, step)
        assert positive.tolist() == known.passages.first(positive).tolist()
        assert not known.among(training.rows[chosen], hard).any()
        for query, drawn in zip(chosen.tolist(), hard.tolist(), strict=True):
            own = {1} if query == 1 else {7} if query == 3 else {8, 1} if query == 4 else {9} if query == 0 else set()
            assert len(own & set(drawn)) == len(own), "what the pool has left is drawn first, copies once"


def test_known_texts_are_known_within_the_batch(tmp_path: Path) -> None:
    training, _ = _twins()
    batch = trainings.triple_batches(tmp_path, training, negatives=0).batch_of(0, np.arange(6))
    assert batch.passages.tolist() == [0, 2, 3, 4, 5, 6], "22 is passage 2"
    known = [set(batch.passages[row].tolist()) for row in batch.known]
    assert known == [{0, 5}, {0, 5}, {2}, {3}, {4}, {6}]


def test_queries_of_whom_nothing_is_known_by_text_are_as_they_were(tmp_path: Path) -> None:
    judged = {row: np.array([row]) for row in range(3)}
    nothing = SameTexts(np.empty(0, np.int64), np.empty(0, np.int64))
    known = NoNegatives(nothing, nothing, np.array([(row << 32) + row for row in range(3)]))
    training = TrainingQueries.of(judged, np.empty((3, 0), np.int32), known=known)
    assert training.known is None
    assert training.by_text == 0
    flat, numbers = training.no_negatives(np.array([2, 0]))
    assert (flat.tolist(), numbers.tolist()) == ([2, 0], [1, 1])


def test_a_data_module_reads_what_is_known_from_the_texts(tmp_path: Path) -> None:
    with CollectionWriter(tmp_path / "c", "arguments") as writer:
        for number in range(4):
            writer.add_judgement("train", f"a{number}", f"b{number}", 1)
        for number in range(4):
            writer.add_passage(Passage(f"a{number}", "", f"claim number {number}"))
            writer.add_passage(Passage(f"b{number}", "", f"no claim is number {number}"))
            writer.add_passage(Passage(f"c{number}", "", f" no claim is  number {number}"))
        for number in range(4):
            writer.add_query(Query(f"a{number}", f"claim number {number}"))
    collection = Collection(tmp_path / "c")
    train_wordpiece(collection.passages.column("text"), 60, tmp_path / "tokenizer")
    given = tmp_path / "negatives.jsonl"
    given.write_text('{"query_id": "a0", "negative_ids": ["a0", "b0", "c0", "c1"]}\n')
    data = TripleDataModule(
        collection, tmp_path / "tokenizer", negatives=given, negatives_per_query=2, batch_size=4, query_length=8
    )
    data.prepare_data()
    data.setup()
    assert isinstance(data.batches, TripleBatches)
    assert data.batches.training.by_text == 8, "each query's own text, and a copy of its positive"
    for epoch in range(5):
        _, hard = data.batches.draw(epoch, np.arange(4))
        for number, drawn in enumerate(collection.passages.ids_at(row) for row in hard):
            assert not {f"a{number}", f"b{number}", f"c{number}"} & set(drawn)
        assert "b1" in collection.passages.ids_at(hard[0]), "c1 is b1"


def test_queries_of_the_text_stand_beside_the_judged_ones_each_with_its_own_passage(tmp_path: Path) -> None:
    made = TextQueries(trainings.store(tmp_path / "made", [3 + n % 4 for n in range(12)], seed=4), *_made(), 4)
    alone, batches = trainings.triple_batches(tmp_path), trainings.triple_batches(tmp_path, text_queries=made)
    seen = list[int]()
    for step in range(3):
        before, batch = alone.batch(step), batches.batch(step)
        judged, own = len(before.positive), made.of_step(step, batches.seed, Share(), False)
        assert len(batch.positive) == judged + len(own)
        assert torch.equal(batch.passages[batch.positive[:judged]], before.passages[before.positive])
        assert batch.passages[batch.positive[judged:]].tolist() == made.passages[own].tolist()
        known = batch.known[judged:]
        assert known.sum(dim=1).tolist() == [1] * len(own), "its own passage and no other"
        assert known.nonzero()[:, 1].tolist() == batch.positive[judged:].tolist()
        texts = _texts(batch, QUERY)
        flat, starts = text_rows(made.store, made.rows[own], textbook.vocabulary(), 7)
        assert [texts[judged + at] for at in range(len(own))] == [
            part.tolist() for part in np.split(flat, starts[1:-1])
        ]
        seen += own.tolist()
    assert sorted(seen) == list(range(9)), "each once an epoch"
    parts = [batches.batch(1, Share(rank, 2)) for rank in range(2)]
    whole = batches.batch(1)
    both = torch.cat([part.passages[part.positive] for part in parts])
    assert both.sort().values.tolist() == whole.passages[whole.positive].sort().values.tolist()


def test_text_queries_with_one_text_have_none_of_their_passages_as_a_negative(tmp_path: Path) -> None:
    with CollectionWriter(tmp_path / "c", "headings") as writer:
        writer.add_judgement("train", "q", "p4", 1)
        for number in range(5):
            writer.add_passage(Passage(f"p{number}", "", f"text {min(number, 3)}"))  # p4 repeats p3
        writer.add_query(Query("q", "asked"))
    collection = Collection(tmp_path / "c")
    train_wordpiece(collection.passages.column("text"), 60, tmp_path / "tokenizer")
    titles = [("Introduction", "p0"), ("Results", "p1"), ("Introduction", "p2"), ("Introduction", "p4")]
    data = TripleDataModule(collection, tmp_path / "tokenizer", text_queries=titles)
    data.prepare_data()
    data.setup()
    assert isinstance(data.batches, TripleBatches)
    batch = data.batches.batch_of(0, np.array([0]), np.arange(4))
    known = [collection.passages.ids_at(batch.passages[row].numpy()) for row in batch.known]
    assert [list(one) for one in known] == [["p3"], ["p0", "p2", "p3"], ["p1"], ["p0", "p2", "p3"], ["p0", "p2", "p3"]]


def test_shared_negatives_are_drawn_of_the_whole_collection_and_what_is_relevant_is_none(tmp_path: Path) -> None:
    vectors = np.random.default_rng(9).normal(size=(30, 16)).astype("f").__getitem__
    few = trainings.triple_batches(tmp_path, negatives=0, shared_negatives=8, vectors=vectors)
    drawn = [set(few.batch(step).passages.tolist()) for step in range(3)]
    assert drawn[0] != drawn[1]
    own = trainings.triple_batches(tmp_path, negatives=0, vectors=vectors)
    for step, passages in enumerate(drawn):
        alone, batch = own.batch(step), few.batch(step)
        assert set(alone.passages.tolist()) <= passages
        assert 0 < len(passages) - len(alone.passages) <= 8
        assert torch.equal(batch.passages[batch.positive], alone.passages[alone.positive])
        assert torch.equal(batch.vectors, torch.from_numpy(vectors(batch.passages.numpy())))
    every = trainings.triple_batches(tmp_path, negatives=0, shared_negatives=100, vectors=vectors).batch(0)
    assert every.passages.tolist() == list(range(30))
    chosen = _chosen(few, 0)
    assert [set(row.nonzero()[:, 0].tolist()) for row in every.known] == [
        _positives(few.training, query) for query in chosen
    ]


def _made() -> tuple[np.ndarray, np.ndarray]:
    """Nine of twelve queries, and the passage of each."""
    return np.arange(3, 12), np.array([1, 1, 4, 7, 9, 12, 20, 25, 29])


def test_a_data_module_has_an_in_batch_teacher_for_texts(tmp_path: Path) -> None:
    with CollectionWriter(tmp_path / "c", "numbers") as writer:
        for number in range(6):
            writer.add_judgement("train", f"q{number}", f"p{number}", 1)
            writer.add_passage(
                Passage(f"p{number}", "", f"passage number {number} of many words {'and more ' * number}")
            )
        for number in range(6):
            writer.add_query(Query(f"q{number}", f"number {number}"))
    collection = Collection(tmp_path / "c")
    train_wordpiece(collection.passages.column("text"), 60, tmp_path / "tokenizer")
    given: Any = {"data": collection, "tokenizer": tmp_path / "tokenizer", "batch_size": 3, "query_length": 8}
    data = TripleDataModule(**given, in_batch_teacher=BM25)
    data.prepare_data()
    data.setup()
    assert isinstance(data.batches, TripleBatches)
    batch = data.batches.batch(0)
    rows = data.batches.training.rows[data.batches.order(0)[1]]
    searcher = BM25().index(list(collection.passages.column("text")))
    wanted = searcher.score(
        [collection.queries.column("text")[row] for row in rows.tolist()],
        np.tile(batch.passages.numpy(), (len(rows), 1)),
    )
    assert batch.in_batch is not None
    assert (batch.in_batch > 0).any()
    np.testing.assert_allclose(batch.in_batch.numpy(), wanted, rtol=1e-6)
    for wrong in ({"pairs": True}, {"workers": 1}):
        with pytest.raises(UserError, match="in_batch_teacher needs texts as `data`, workers=0, and no `pairs`"):
            TripleDataModule(**{**given, **wrong}, in_batch_teacher=BM25)
