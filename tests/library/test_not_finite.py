"""A checkpoint of which a weight is NaN, infinite, or too large: whatever makes vectors of it says so in one line."""

import math
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM, AutoTokenizer

from condensery import BM25, BiEncoderModule, Retriever, TripleDataModule, UserError, evaluate
from condensery.training.validation import (
    PairSample,
    ValidationSample,
    mean_reciprocal_rank,
    mean_reciprocal_rank_of_pairs,
)


def checkpoint(world: Path, folder: Path, weight: str, value: float) -> Path:
    """The world's model with one number of one weight of its last layer in place of another."""
    model = AutoModelForMaskedLM.from_pretrained(world / "bert")
    with torch.no_grad():
        model.bert.encoder.layer[-1].get_parameter(weight).view(-1)[5] = value
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(world / "bert").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=[math.nan, math.inf, -math.inf])
def broken(request: pytest.FixtureRequest, world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(world, tmp_path_factory.mktemp("broken") / "checkpoint", "output.dense.weight", request.param)


@pytest.mark.parametrize("options", [{}, {"vectors": {"pooling": "mean"}}, {"windows": 2, "passage_length": 8}])
def test_a_retriever_names_its_checkpoint_and_the_text(options: dict[str, object], broken: Path) -> None:
    retriever = Retriever(broken, device="cpu", **options)  # type: ignore[arg-type]
    passages = ["the first of the texts, which is long enough for two windows", "the second"]
    with pytest.raises(
        UserError, match=r"^Retriever\('.*checkpoint'\): the vector of 'the first.*' is not finite; "
    ) as said:
        retriever.index(passages)
    assert "\n" not in str(said.value)
    assert len(retriever) == 0, "nothing is half indexed"
    with pytest.raises(UserError, match="call index"):
        retriever.search("a query")
    for encode in (retriever.encode_queries, retriever.encode_passages):
        with pytest.raises(UserError, match="the vector of 'a text' is not finite"):
            encode(["a text"])


def test_a_retriever_whose_weights_went_bad_later_finds_nothing(world: Path) -> None:
    retriever = Retriever(world / "bert", device="cpu").index(["one text", "another text"])
    with torch.no_grad():
        next(retriever.model.parameters()).fill_(math.nan)
    for ask in ("a query", ["a query"]):
        with pytest.raises(UserError, match="the vector of 'a query' is not finite"):
            retriever.search(ask)


def test_it_is_neither_evaluated_nor_mined_with(broken: Path, world: Path) -> None:
    with pytest.raises(UserError, match="is not finite"):
        evaluate(Retriever(broken, device="cpu"), world / "scifact")
    with pytest.raises(UserError, match="is not finite"):
        TripleDataModule(world / "scifact", tokenizer=world / "bert", negatives=Retriever(broken, device="cpu")).setup()
    assert evaluate(BM25(), world / "scifact")


def test_scores_that_overflow_are_no_ranking(world: Path, tmp_path: Path) -> None:
    large = checkpoint(world, tmp_path / "large", "output.LayerNorm.bias", 3e30)
    retriever = Retriever(large, device="cpu", precision="fp32").index(
        ["one text", "another text"]
    )  # the vectors are finite
    with pytest.raises(UserError, match="search: a score of query 'a query' is not finite"):
        retriever.search("a query")
    with pytest.raises(UserError, match="is not finite"):
        evaluate(retriever, world / "scifact")


def test_training_from_it_says_that_the_checkpoint_is_to_blame(broken: Path, world: Path, tmp_path: Path) -> None:
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    data = TripleDataModule(world / "scifact", tokenizer=world / "bert", batch_size=4)
    with pytest.raises(
        UserError, match=r"at step 0; .*take another checkpoint, because .*output\.dense\.weight in this one"
    ):
        pl.Trainer(max_steps=2, default_root_dir=tmp_path, num_sanity_val_steps=0, **quiet).fit(
            BiEncoderModule(broken), data
        )
    with pytest.raises(
        UserError, match=r"^val/mrr@10: the vector of validation query 0 is not finite; training diverges"
    ):
        pl.Trainer(max_steps=2, default_root_dir=tmp_path, **quiet).fit(BiEncoderModule(broken), data)
    assert not list(tmp_path.rglob("*.ckpt"))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_validation_gives_no_number(bad: float) -> None:
    class Chunk:
        tower, rows = 1, torch.arange(4)

    def poisoned(chunk: object) -> Tensor:
        vectors = torch.ones(4, 2)
        vectors[2, 1] = bad
        return vectors

    chunks = [Chunk()]
    sample = ValidationSample(chunks, chunks, torch.eye(4).bool().numpy())  # type: ignore[arg-type]
    with pytest.raises(
        UserError, match=r"val/mrr@10: the vector of validation query 2 is not finite; training diverges"
    ):
        mean_reciprocal_rank(poisoned, sample)
    pairs = PairSample(chunks, 2)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"val/mrr@10: a score of validation query 1 is not finite"):
        mean_reciprocal_rank_of_pairs(lambda chunk: poisoned(chunk)[:, 1], pairs)
