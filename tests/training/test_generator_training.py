"""A query generator learns its pairs, exactly the same after an interruption, and loads as any other model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trainings
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from condensery.losses.gradient_cache import backpropagate
from condensery.models.generator import Generator, Sampling, load_generator, save_generator, small_generator
from condensery.text.table import TableWriter, TextTable
from condensery.tokens.tokenizer import train_wordpiece
from condensery.training.data.data_module import StepDataModule
from condensery.training.loop import fit
from condensery.training.modules.generator import IGNORED, GeneratorBatches, GeneratorModule, PairBatch

PASSAGES = [f"{word} is known near the {other}" for word, other in zip(["stone", "river", "water"], "abc", strict=True)]
QUERIES = [f"what is {word}" for word in ["stone", "river", "water"]]


@pytest.fixture
def words(tmp_path: Path) -> Path:
    train_wordpiece([*PASSAGES, *QUERIES, "query: a title"] * 5, 130, tmp_path / "words")
    return tmp_path / "words"


def _table(path: Path, texts: list[str], titles: list[str]) -> TextTable:
    with TableWriter(path, ("id", "title", "text")) as table:
        for number, row in enumerate(zip(titles, texts, strict=True)):
            table.add((f"{number}", *row), 1)
    return TextTable(path)


def _generator(words: Path, dropout: float = 0.1) -> Generator:
    return small_generator(words, layers=1, hidden=32, heads=2, intermediate=64, dropout=dropout, seed=1)


def _batches(folder: Path, generator: Generator, **changes: Any) -> GeneratorBatches:
    """8 pairs of 3 passages and 3 queries, 5 a step."""
    passages = _table(folder / "passages.arrow", PASSAGES, ["", "a title", ""])
    queries = _table(folder / "queries.arrow", QUERIES, [""] * 3)
    pairs = np.array([[0, 0], [1, 1], [2, 2], [0, 0], [1, 1], [2, 2], [0, 0], [1, 1]])
    options = {"prefix": "query: ", "titles": True, "batch_size": 5, "max_input_tokens": 20, "max_tokens": 6}
    given = {**options, "budget": 60, "seed": 1, **changes}
    return GeneratorBatches(pairs, passages, queries, generator.tokenizer, **given)


def _gradient(generator: Generator, batch: PairBatch) -> tuple[dict[str, torch.Tensor], float]:
    module = GeneratorModule(generator.model.eval(), **trainings.optimiser())
    module.zero_grad()
    encoder, _ = module.objective(batch)
    losses = backpropagate(encoder, batch.chunks, None)
    found = {name: value.grad.clone() for name, value in module.named_parameters() if value.grad is not None}
    return found, float(losses["query"])


def test_the_loss_is_the_mean_over_the_tokens_of_the_batch_whatever_the_chunks(words: Path, tmp_path: Path) -> None:
    generator = _generator(words, dropout=0.0)
    whole, cut = (_batches(tmp_path, generator, budget=budget).batch(0) for budget in (10_000, 30))
    assert (len(whole.chunks), len(cut.chunks)) == (1, 3)
    (gradient, loss), (other, same) = _gradient(generator, whole), _gradient(generator, cut)
    assert same == pytest.approx(loss, rel=1e-5)
    assert gradient.keys() == other.keys()
    for name, value in gradient.items():
        assert torch.allclose(value, other[name], atol=1e-6), name
    chunk = whole.chunks[0]
    assert chunk.labels is not None
    read = {"input_ids": chunk.input_ids, "attention_mask": chunk.attention_mask}
    library = generator.model(**read, labels=chunk.labels).loss.detach()
    assert float(library) == pytest.approx(loss, rel=1e-5)
    assert whole.targets == int((chunk.labels != IGNORED).sum())


def test_batches_hold_prefix_title_passage_and_query_with_the_token_that_ends_them(words: Path, tmp_path: Path) -> None:
    generator = _generator(words)
    tokenizer = generator.tokenizer
    batch = _batches(tmp_path, generator, budget=10_000, batch_size=8, max_tokens=30, max_input_tokens=60).batch(0)
    (chunk,) = batch.chunks
    assert chunk.labels is not None
    seen = set()
    for ids, length, labels in zip(chunk.input_ids, chunk.lengths, chunk.labels, strict=True):
        kept = labels[labels != IGNORED]
        assert int(ids[length - 1]) == int(kept[-1]) == tokenizer.eos_token_id
        seen.add((tokenizer.decode(ids[: length - 1]), tokenizer.decode(kept[:-1])))
    titled = [PASSAGES[0], f"a title {PASSAGES[1]}", PASSAGES[2]]
    assert seen == {(f"query : {passage}", query) for passage, query in zip(titled, QUERIES, strict=True)}
    assert batch.tokens == int(chunk.lengths.sum()) + batch.targets


def _train(words: Path, root: Path, name: str, steps: int, stop: int | None = None, rate: float = 1e-3) -> Generator:
    generator = _generator(words)
    module = GeneratorModule(generator.model.train(), **trainings.optimiser(learning_rate=rate))
    data = StepDataModule(_batches(root, generator))
    loggers: list[Any] = [] if stop is None else [trainings.Stop(root, stop)]
    fit(module, data, trainings.loop(steps=steps, validate_every=0), root / name, name, loggers=loggers)  # type: ignore[arg-type]
    return generator


@pytest.mark.slow
def test_a_run_that_was_interrupted_ends_bit_identical(words: Path, tmp_path: Path) -> None:
    whole = _train(words, tmp_path, "whole", 12)
    with pytest.raises(trainings.InterruptionError):
        _train(words, tmp_path, "parts", 12, stop=8)
    assert [path.name for path in (tmp_path / "parts" / "checkpoints").iterdir()] == ["step=5.ckpt"]
    resumed = _train(words, tmp_path, "parts", 12)
    weights = resumed.model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in whole.model.state_dict().items())


def test_it_learns_to_write_the_query_of_each_passage_and_loads_anywhere(words: Path, tmp_path: Path) -> None:
    trained = _train(words, tmp_path, "run", 60, rate=2e-2)
    save_generator(trained, tmp_path / "saved")
    assert (tmp_path / "saved" / "model.safetensors").is_file()
    sampling = Sampling(1, 1, 1.0, 8, 20, "query: ", 1)
    loaded = load_generator(tmp_path / "saved", "generator")
    assert loaded.sample(PASSAGES[:1] + PASSAGES[2:], [0, 1], sampling) == [[QUERIES[0]], [QUERIES[2]]]
    model, tokenizer = (
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "saved"),
        AutoTokenizer.from_pretrained(tmp_path / "saved"),
    )
    made = model.generate(**tokenizer([f"query: {PASSAGES[2]}"], return_tensors="pt"), max_new_tokens=8)
    assert tokenizer.batch_decode(made, skip_special_tokens=True) == [QUERIES[2]]
