"""Training queries that share a relevant passage with a dev query: not trained on, and chosen by."""

from pathlib import Path

import pytest

from condensery.errors import UserError
from condensery.text.collection import Collection
from condensery.text.records import Passage, Query
from condensery.text.writer import CollectionWriter
from condensery.tokens.artifacts import Tokens, text_readers, tokenise_collection
from condensery.tokens.tokenizer import train_wordpiece
from condensery.training.data.triple_batches import TripleBatches
from condensery.training.data.triples import TripleDataModule
from condensery.training.dev_passages import apart_from_dev
from condensery.training.validation import sample_of

TRAIN = {"q0": ["p0"], "q1": ["p1"], "q2": ["p2", "p0"], "q3": ["p2"]}


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    """Four passages; the dev query asks for p0, and so do q0 and q2 of train."""
    with CollectionWriter(tmp_path / "c", "shared passages") as writer:
        writer.add_judgement("dev", "d", "p0", 1)
        writer.add_judgement("dev", "d", "p1", 0)  # not relevant
        for query, passages in TRAIN.items():
            for passage in passages:
                writer.add_judgement("train", query, passage, 1)
        for number in range(4):
            writer.add_passage(Passage(f"p{number}", "", f"note number {number}"))
        for query in ("d", *TRAIN):
            writer.add_query(Query(query, f"which note, asks {query}"))
    made = Collection(tmp_path / "c")
    train_wordpiece(made.passages.column("text"), 60, tmp_path / "tokenizer")
    return made


def test_no_query_is_trained_on_that_shares_a_passage_with_a_dev_query(collection: Collection, tmp_path: Path) -> None:
    def trained_on(**options: bool) -> list[str]:
        data = TripleDataModule(collection, tmp_path / "tokenizer", query_length=8, **options)
        data.setup()
        assert isinstance(data.batches, TripleBatches)
        return list(collection.queries.column("id").take(data.batches.training.rows))

    assert trained_on() == ["q0", "q1", "q2", "q3"]
    assert trained_on(leave_out_dev_passages=True) == ["q1", "q3"]


def test_those_queries_fill_up_the_sample_to_choose_by(collection: Collection, tmp_path: Path) -> None:
    tokenise_collection(collection, tmp_path / "tokenizer", tmp_path / "tokens", titles=False)
    readers = text_readers(Tokens(tmp_path / "tokens"), (12, 12))
    for left_out, most, number in ((False, 9, 1), (True, 9, 3), (True, 2, 2), (True, 1, 1)):
        sample = sample_of(collection, readers, most, left_out=left_out)
        assert sample is not None
        assert len(sample.relevant) == number
        assert sample.relevant[:, 0].all(), "all ask for p0"
        assert sample.relevant[0].sum() == 1, "the dev query is the first"


def test_a_training_that_would_have_no_query_is_one_line(collection: Collection) -> None:
    of_dev = collection.qrels("dev").positives()
    with pytest.raises(UserError, match="here: true, but each training query shares a relevant passage"):
        apart_from_dev(of_dev, collection, "here")
