"""What a checkpoint keeps of data: every setting and every text counts, no place and nothing of the machine does."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_generator_training as generators
import test_sentence_training as sentences
import textbook
import torch
import trainings

from condensery.errors import UserError
from condensery.tokens.tokenizer import train_wordpiece
from condensery.training.adaptive.order import AdaptiveOrder
from condensery.training.checkpoint_fingerprint import described, hash_of, settings_of
from condensery.training.data.data_module import StepDataModule
from condensery.training.data.steps import items_in_sequence

generator_words = generators.words


def differing(one: object, other: object) -> set[str]:
    first, second = described(one), described(other)
    return {name for name in first.keys() | second.keys() if first.get(name) != second.get(name)}


@pytest.mark.parametrize("change", [{"seed": 9}, {"batch_size": 3}, {"negatives": 1}], ids=str)
def test_every_setting_of_triples_counts(change: dict[str, int], tmp_path: Path) -> None:
    one = trainings.triple_batches(tmp_path)
    assert next(iter(change)) in differing(one, trainings.triple_batches(tmp_path, **change))
    assert differing(one, trainings.triple_batches(tmp_path, lengths=(6, 12))) == {"readers.queries.length"}
    assert differing(one, trainings.triple_batches(tmp_path, lengths=(7, 9))) == {"readers.passages.length"}
    assert not differing(one, trainings.triple_batches(tmp_path, budget=17))


def test_where_texts_lie_does_not_count_and_what_they_are_does(tmp_path: Path) -> None:
    one = trainings.triple_batches(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert not differing(one, trainings.triple_batches(tmp_path / "two"))
    tokens = np.memmap(tmp_path / "two" / "passages" / "tokens.bin", np.uint16, mode="r+")
    tokens[[3, 4]] = tokens[[4, 3]]
    tokens.flush()
    assert differing(one, trainings.triple_batches(tmp_path / "two")) == {"readers.passages.tokens"}
    other = trainings.training_queries(pool=5)
    assert "training.negatives" in differing(one, trainings.triple_batches(tmp_path / "one", other))


def test_the_order_of_queries_counts(tmp_path: Path) -> None:
    one = trainings.triple_batches(tmp_path)
    in_sequence = trainings.triple_batches(tmp_path, order=partial(items_in_sequence, batch_size=5, items=13))
    assert "order" in differing(one, in_sequence)
    known = trainings.training_queries()
    hard = [
        AdaptiveOrder(
            tmp_path / str(beam), known.positives, known.starts, 5, beam, 1, "encoder", int, partial(int, device="cpu")
        )
        for beam in (2, 2, 3)
    ]
    first, same, other = (trainings.triple_batches(tmp_path, order=order) for order in hard)
    assert not differing(first, same), "another folder"
    assert differing(first, other) == {"order.beam"}


@pytest.mark.parametrize("change", [{"seed": 9}, {"batch_size": 4}, {"length": 5}], ids=str)
def test_sentences(change: dict[str, int], tmp_path: Path) -> None:
    made = partial(sentences.batches_of, "pairs", tmp_path)
    assert not differing(made(), made(budget=31))
    assert differing(made(), made(**change)) == set(change)
    data, other = StepDataModule(made()), StepDataModule(made(**change))
    with pytest.raises(UserError, match=f"checkpoint was saved with other data \\({next(iter(change))} "):
        other.load_state_dict(data.state_dict())
    rows = made()
    rows.scores = rows.scores[::-1].copy()
    assert differing(made(), rows) == {"scores"}


@pytest.mark.parametrize("change", [{"prefix": "ask: "}, {"titles": False}, {"max_tokens": 4}, {"seed": 2}], ids=str)
def test_the_generator(change: dict[str, Any], generator_words: Path, tmp_path: Path) -> None:
    made = generators._generator(generator_words)
    one = generators._batches(tmp_path, made)
    assert differing(one, generators._batches(tmp_path, made, **change)) == set(change)
    one.batch(0)  # which changes how the tokenizer cuts
    assert not differing(one, generators._batches(tmp_path, made, budget=7))
    train_wordpiece(["some other words"] * 9, 40, tmp_path / "other")
    other = generators._batches(tmp_path, generators._generator(tmp_path / "other"))
    assert "tokenizer.vocabulary" in differing(one, other)


@pytest.mark.parametrize("kind", ["cocondenser", "query_as_context", "cotmae", "ict"])
def test_pre_training(kind: str, tmp_path: Path) -> None:
    _, data, _ = trainings.run(kind, tmp_path)
    _, same, _ = trainings.run(kind, tmp_path)
    same.load_state_dict(data.state_dict())
    same.batches.mask_rate = 0.4  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"checkpoint was saved with other data .mask_rate"):
        StepDataModule(same.batches).load_state_dict(data.state_dict())
    torch.save(data.state_dict(), tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == data.state_dict()


def test_a_large_array_is_hashed_in_blocks_all_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condensery.training.checkpoint_fingerprint._WHOLE", 1 << 17)
    large = np.zeros(1 << 18, np.uint8)
    hashes = [hash_of(large)]
    for place in (0, len(large) - 1):
        large[place] += 1
        hashes.append(hash_of(large))
    assert len({*hashes, hash_of(large[:-1]), hash_of(large.view(np.int8))}) == 5
    assert hash_of(np.empty(0)) != hash_of(np.empty((0, 2)))


def test_settings_are_the_plain_ones(tmp_path: Path) -> None:
    batches = trainings.triple_batches(tmp_path, batch_size=np.int64(4))
    found = settings_of(batches)
    assert found["batch_size"] == 4
    assert type(found["batch_size"]) is int
    assert "budget" not in found
    assert described(batches)["readers.passages.vocabulary.size"] == textbook.SIZE
