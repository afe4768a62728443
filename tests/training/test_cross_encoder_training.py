"""The cross-encoder learns from lists of pairs, and goes on where it was stopped."""

from pathlib import Path
from typing import Any

import pytest
import textbook
import torch
import trainings

from condensery.models.cross_encoder import new_cross_encoder
from condensery.tokens.pairs import PairReader
from condensery.training.data.data_module import StepDataModule
from condensery.training.data.list_batches import ListBatches
from condensery.training.loop import fit
from condensery.training.modules.cross_encoder import CrossEncoderModule
from condensery.training.resumption import last_checkpoint
from condensery.training.settings import LoopSettings


def list_batches(folder: Path, **changes: Any) -> ListBatches:
    """5 queries a batch with a positive and 3 negatives each."""
    triples = trainings.triple_batches(folder, **changes)
    passages, queries = (reader.texts for reader in triples.readers)
    return ListBatches(triples, PairReader(queries, passages, None, textbook.vocabulary(), 7, 16))


def run(
    folder: Path, loss: str = "pointwise", **changes: Any
) -> tuple[CrossEncoderModule, StepDataModule, LoopSettings]:
    settings = trainings.loop(**{"validate_every": 0, **changes})
    model = new_cross_encoder(textbook.language_model(dropout=0.1).float(), seed=1).train()
    module = CrossEncoderModule(model, loss=loss, **trainings.optimiser(**changes))  # type: ignore[arg-type]
    return module, StepDataModule(list_batches(folder)), settings


def test_a_list_is_the_query_with_its_positive_first_and_its_negatives(tmp_path: Path) -> None:
    batches = list_batches(tmp_path)
    triples, reader = batches.triples, batches.reader
    for step in range(4):
        epoch, chosen = triples.order(step)
        positive, hard = triples.draw(epoch, chosen)
        batch = batches.batch(step)
        assert (batch.lists, batch.size) == (len(chosen), 4)
        texts = {}
        for chunk in batch.chunks:
            for row, ids, length in zip(chunk.rows.tolist(), chunk.input_ids, chunk.lengths, strict=True):
                texts[row] = ids[:length].tolist()
        assert batch.tokens == sum(map(len, texts.values()))
        for place, query in enumerate(triples.training.rows[chosen]):
            for column, passage in enumerate([positive[place], *hard[place]]):
                flat, _, _ = reader.rows([query], [passage])
                assert texts[4 * place + column] == flat.tolist()
        judged = [set(triples.training.positives[slice(*triples.training.starts[q : q + 2])]) for q in chosen]
        assert all(one in known for one, known in zip(positive, judged, strict=True))
        assert not any(known & set(row) for row, known in zip(hard, judged, strict=True))


@pytest.mark.parametrize("loss", ["pointwise", pytest.param("listwise", marks=pytest.mark.slow)])
def test_it_learns_to_tell_the_positives(loss: str, tmp_path: Path) -> None:
    module, data, settings = run(tmp_path, loss, steps=1)
    before = fit(module, data, settings, tmp_path / "one", "x")[f"train/{loss}"]
    module, data, settings = run(tmp_path, loss, steps=80, learning_rate=5e-3, checkpoint_every=0)
    after = fit(module, data, settings, tmp_path / "many", "x")[f"train/{loss}"]
    assert after < {"pointwise": 0.5, "listwise": 1.1}[loss] < before  # the share of positives alone gives 0.56


def test_a_run_stopped_after_a_checkpoint_ends_bit_identical(tmp_path: Path) -> None:
    whole, data, settings = run(tmp_path)
    fit(whole, data, settings, tmp_path / "whole", "x")
    module, data, settings = run(tmp_path)
    with pytest.raises(trainings.InterruptionError):
        fit(module, data, settings, tmp_path / "parts", "x", loggers=[trainings.Stop(tmp_path, 8)])
    assert last_checkpoint(tmp_path / "parts") == tmp_path / "parts/checkpoints/step=5.ckpt"
    resumed, data, settings = run(tmp_path)
    fit(resumed, data, settings, tmp_path / "parts", "x")
    other = resumed.state_dict()
    assert all(torch.equal(value, other[name]) for name, value in whole.state_dict().items())
