"""Validation on the way: a query that is a passage does not find itself."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from condensery.text.collection import Collection
from condensery.text.records import Passage, Query
from condensery.text.writer import CollectionWriter
from condensery.tokens.artifacts import Tokens, tokenise_collection
from condensery.tokens.tokenizer import train_wordpiece
from condensery.training.validation import ValidationSample, mean_reciprocal_rank, pair_sample, sample_of


def collection(folder: Path, own: bool) -> Collection:
    """Six queries, with a passage b<i> that answers each; with ``own`` query a<i> is passage a<i>, judged itself for a5."""
    with CollectionWriter(folder, "arguments") as writer:
        for number in range(6):
            writer.add_judgement("dev", f"a{number}", f"b{number}", 1)
        if own:
            writer.add_judgement("dev", "a5", "a5", 1)
        for number in range(6):
            text = f"claim number {number}"
            writer.add_passage(Passage(f"a{number}", "", f" {text}" if own else f"another claim {number}"))
            writer.add_passage(Passage(f"b{number}", "", f"no, {text} is wrong"))
        for number in range(6):
            writer.add_query(Query(f"a{number}", f"claim number {number}"))
    return Collection(folder)


def sample(found: Collection, folder: Path) -> ValidationSample:
    train_wordpiece(found.passages.column("text"), 100, folder / "tokenizer")
    tokenise_collection(found, folder / "tokenizer", folder / "tokens", titles=False)
    made = sample_of(found, Tokens(folder / "tokens"), (16, 16))
    assert made is not None
    return made


def lookup(chunk: Any) -> torch.Tensor:
    """Vectors of a bag of words: a query is most like itself."""
    vectors = torch.zeros(len(chunk.rows), 200)
    for row, ids in enumerate(chunk.input_ids):
        vectors[row, ids] = 1.0
    return vectors / vectors.norm(dim=1, keepdim=True)


def test_a_query_does_not_find_itself_unless_it_is_judged_so(tmp_path: Path) -> None:
    made = sample(collection(tmp_path / "c", own=True), tmp_path)
    assert made.own is not None
    assert made.own.sum() == 5
    assert not (made.own & made.relevant).any()
    assert mean_reciprocal_rank(lookup, made) == 1.0
    assert mean_reciprocal_rank(lookup, replace(made, own=None)) < 0.6


def test_a_sample_without_such_queries_masks_nothing(tmp_path: Path) -> None:
    assert sample(collection(tmp_path / "c", own=False), tmp_path).own is None


class Reader:
    """Takes down the pairs."""

    def chunks(self, queries: np.ndarray, passages: np.ndarray, budget: int) -> list[Any]:
        self.queries, self.passages = queries, passages
        return []


@pytest.mark.parametrize("own", [True, False])
def test_a_cross_encoder_is_not_asked_about_a_query_and_itself(own: bool, tmp_path: Path) -> None:
    found, reader = collection(tmp_path / "c", own), Reader()
    made = pair_sample(found, reader, 100, 2000)  # type: ignore[arg-type]
    assert made is not None
    pairs = list(zip(found.queries.ids_at(reader.queries), found.passages.ids_at(reader.passages), strict=True))
    itself = {query for query, passage in pairs if query == passage}
    assert made.size == 10
    assert itself <= {"a5"} if own else itself
