"""Validation on the way: a query that is a passage does not find itself."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from condensery.baselines.late_interaction.model import interaction_scores
from condensery.models.biencoder import PASSAGE, QUERY
from condensery.retrieval.searchers.bm25 import BM25
from condensery.text.collection import Collection
from condensery.text.records import Passage, Query
from condensery.text.writer import CollectionWriter
from condensery.tokens.artifacts import Tokens, text_readers, tokenise_collection
from condensery.tokens.tokenizer import load_tokenizer, train_wordpiece
from condensery.training.validation import (
    CandidateSample,
    ValidationSample,
    bm25_scores,
    candidate_sample,
    mean_reciprocal_rank,
    mean_reciprocal_ranks,
    pair_sample,
    reciprocal_ranks,
    sample_of,
)


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
    made = sample_of(found, text_readers(Tokens(folder / "tokens"), (16, 16)))
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


def test_bm25_beside_the_vectors_is_that_of_the_texts_and_weighs_what_it_is_told(tmp_path: Path) -> None:
    found = collection(tmp_path / "c", own=False)
    made = sample(found, tmp_path)
    scores = bm25_scores(made, load_tokenizer(tmp_path / "tokenizer"))
    texts = list(found.passages.column("text"))
    asked = np.array([int(np.flatnonzero(row)[0]) // 2 for row in made.relevant])  # b<i> is row 2 i + 1
    queries = [found.queries.column("text")[int(number)] for number in asked]
    wanted = BM25().index(texts).score(queries, np.tile(np.arange(len(texts)), (len(queries), 1)))
    np.testing.assert_allclose(scores, np.nan_to_num(wanted), atol=1e-5)
    vectors = torch.randn(len(queries) + len(texts), 8, generator=torch.Generator().manual_seed(0))
    sides = vectors[: len(queries)], vectors[len(queries) :]
    alone, all_bm25 = (reciprocal_ranks(*sides, made, scores, weight) for weight in (0.0, 1.0))
    assert torch.equal(alone, reciprocal_ranks(*sides, made))
    by_bm25 = reciprocal_ranks(torch.eye(len(queries)), scores.T, made)  # whose inner products are the scores
    assert torch.equal(all_bm25, by_bm25)
    assert not torch.equal(alone, all_bm25)


def test_candidates_are_ranked_by_themselves_the_positive_first(tmp_path: Path) -> None:
    found = collection(tmp_path / "c", own=False)
    sample(found, tmp_path)  # writes the tokens
    rows = np.array([[1, 3, 5, 7], [3, 1, -1, -1], [5, 7, 9, 11], [7, 0, 2, -1], [9, 1, 3, 5], [11, 1, 1, 1]])

    def drawn(queries: np.ndarray) -> np.ndarray:
        return rows[queries]

    tokens = Tokens(tmp_path / "tokens")
    made = candidate_sample(found, text_readers(tokens, (16, 16)), 100, drawn, budget=64)
    vectors = {True: torch.randn(6, 8), False: torch.randn(12, 8)}

    def encode(chunk: Any) -> torch.Tensor:
        asks = chunk.tower == QUERY
        return vectors[asks][chunk.rows]

    known = np.unique(rows[rows >= 0])
    assert sum(len(chunk.rows) for chunk in made.passages) == len(known), "a passage of several queries is encoded once"
    expected = []
    for number, own in enumerate(made.candidates):
        scores = [float(vectors[True][number] @ vectors[False][row]) for row in own if row >= 0]
        expected.append(1 + sum(score >= scores[0] for score in scores[1:]))
    found_rows = np.where(made.candidates < 0, -1, known[made.candidates])
    assert sorted(map(tuple, found_rows.tolist())) == sorted(map(tuple, rows.tolist()))
    means = mean_reciprocal_ranks(encode, made, (1, 2, 100))
    for cutoff, mean in zip((1, 2, 100), means, strict=True):
        wanted = np.mean([1 / rank if rank <= cutoff else 0.0 for rank in expected])
        assert mean == pytest.approx(wanted, abs=1e-6)
    same = {True: torch.ones(6, 8), False: torch.ones(12, 8)}
    assert mean_reciprocal_ranks(lambda chunk: same[chunk.tower == QUERY][chunk.rows], made, (100,))[
        0
    ] == pytest.approx(np.mean([1 / 4, 1 / 2, 1 / 4, 1 / 3, 1 / 4, 1 / 4])), "a tie counts against the positive"


def test_a_run_in_bf16_ranks_by_scores_in_fp32() -> None:
    """In bf16 these passages have one score."""
    passages = 1 + torch.arange(12)[:, None] / 4096
    queries, vectors = torch.ones(1, 1), {True: torch.ones(1, 1), False: passages}
    parts: Any = [
        [SimpleNamespace(tower=tower, rows=torch.arange(len(vectors[tower == QUERY])))] for tower in (QUERY, PASSAGE)
    ]
    candidates = CandidateSample(*parts, np.array([[11, *range(11)]]))
    with torch.autocast("cpu", torch.bfloat16):
        assert float(reciprocal_ranks(queries, passages, ValidationSample([], [], np.eye(12)[-1:] > 0))) == 1.0
        assert mean_reciprocal_ranks(lambda chunk: vectors[chunk.tower == QUERY], candidates, (10,)) == [1.0]
        keyed = (torch.nn.functional.pad(part, (0, 1))[:, None] for part in (queries, passages))
        assert len(set(interaction_scores(*keyed)[0].tolist())) == 12


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
