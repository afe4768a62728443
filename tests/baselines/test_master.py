"""MASTER: the texts of its decoders, the losses and gradients of the equations through chunks, kills, and the stage."""

import copy
import pickle
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import textbook
import torch
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM

from condensery import UserError
from condensery.baselines.master.batches import MasterBatches, contexts
from condensery.baselines.master.pretrain_master import LOSSES, MasterModule
from condensery.losses.gradient_cache import backpropagate
from condensery.models.masked_autoencoder import DecoderShape, MaskedAutoEncoder
from condensery.system.files import read_json
from condensery.tokens.batches import Chunk
from condensery.training.data.data_module import StepDataModule
from condensery.training.data.sources import MixedPairs, PassageQueries
from condensery.training.data.span_batches import ContextMasking
from condensery.training.data.steps import Share

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
import trainings
from small_runs import MODEL, check_refused, metrics_of, run_command, some_text, write_beir

DECODER = ContextMasking("partner", False, 0.5)


def batches(folder: Path, mixed: float = 0.0, **changes: Any) -> MasterBatches:
    """5 passages a batch, each with another passage of its document and one of its first three queries."""
    stores = trainings.passages_and_queries(folder)
    pairs: Any = PassageQueries(stores, textbook.vocabulary(), 16, 8, candidates=3, seed=3)
    options = {"batch_size": 5, "mask_rate": 0.3, "whole_word": True, "budget": 40, "seed": 3, "context": DECODER}
    source = MixedPairs(pairs, mixed, seed=3) if mixed else pairs
    return MasterBatches(source, textbook.vocabulary(), **{**options, **changes})


def module(dropout: float = 0.0, **changes: Any) -> MasterModule:
    model = MaskedAutoEncoder(textbook.language_model(dropout=dropout).float(), DecoderShape("masked", 2))
    made = MasterModule(model, mlm_weight=0.7, **trainings.optimiser(**changes))
    for decoder in (made.model.decoder, made.decoders):
        textbook.perturbed(decoder)
    return made


def parts(made: MasterModule) -> nn.ModuleDict:
    decoders = [made.model.decoder, *made.decoders.values()]
    return nn.ModuleDict({"language_model": made.model.language_model, "decoders": nn.ModuleList(decoders)})


def texts(data: MasterBatches, step: int, share: Share = Share()) -> dict[str, list[tuple[Any, ...]]]:  # noqa: B008
    """By original passage: ids, original ids and number of masked tokens, of the passage and of the decoders' texts."""
    found = {}
    for chunk in data.batch(step, share).chunks:
        rows = []
        for one in (chunk, *contexts(chunk)):
            original = one.input_ids.flatten().index_copy(0, one.masked, one.targets).view_as(one.input_ids)
            counts = torch.bincount(one.masked // one.input_ids.shape[1], minlength=len(one))
            both = zip(one.input_ids.tolist(), original.tolist(), one.lengths.tolist(), counts.tolist(), strict=True)
            rows.append([(ids[:length], was[:length], count) for ids, was, length, count in both])
        found |= {str(row[0][1]): list(row) for row in zip(*rows, strict=True)}
    return found


def test_the_decoders_read_the_passage_another_of_its_document_and_a_query(tmp_path: Path) -> None:
    data = batches(tmp_path)
    source: Any = data.source
    stores, documents = source.stores, source.stores.passages.documents
    asked = [stores.queries.tokens[a:b].tolist()[:6] for a, b in pairwise(stores.queries.starts)]
    alone, several, differ, rates = 0, 0, [], []
    for step in range(3 * data.steps_an_epoch()):
        for passage, itself, related, query in texts(data, step).values():
            drawn = [number for number, ids in enumerate(asked) if ids == query[1][1:-1]]
            owners = [int(np.searchsorted(stores.first, number, side="right")) - 1 for number in drawn]
            whole = [source.texts(np.array([n]), stores.hidden[[q]]) for n, q in zip(owners, drawn, strict=True)]
            (own,) = (n for n, rows in zip(owners, whole, strict=True) if rows.flat.tolist() == passage[1])
            assert itself[1] == passage[1]
            (document,) = (range(a, b) for a, b in pairwise(documents) if a <= own < b)
            siblings = [source.texts(np.array([n])).flat.tolist() for n in document if n != own]
            assert related[1] in (siblings or [query[1]])
            several, alone = several + bool(siblings), alone + (not siblings)
            differ.append(passage[0] != itself[0])
            rates.append(itself[2] / (len(itself[1]) - 2))
    assert alone
    assert several
    assert sum(differ) > 0.8 * len(differ), "the masks of encoder and decoder are independent"
    assert sum(rates) / len(rates) == pytest.approx(0.5, abs=0.06)


def test_texts_are_a_function_of_the_passage_and_the_epoch_in_any_share_and_chunk(tmp_path: Path) -> None:
    data = batches(tmp_path)
    for step in range(3):
        whole = texts(data, step)
        assert texts(batches(tmp_path, budget=1), step) == whole
        assert texts(pickle.loads(pickle.dumps(data)), step) == whole
        halves = [texts(data, step, Share(rank, 2)) for rank in range(2)]
        assert halves[0] | halves[1] == whole
    epoch = data.steps_an_epoch()
    assert [texts(data, step) for step in range(epoch)] != [texts(data, step + epoch) for step in range(epoch)]


def test_a_batch_travels_in_one_block_and_to_another_device(tmp_path: Path) -> None:
    batch = batches(tmp_path).batch(0)
    for chunk, other in zip(batch.chunks, pickle.loads(pickle.dumps(batch)).chunks, strict=True):
        for one, same in zip((chunk, *contexts(chunk)), (other, *contexts(other.to("cpu"))), strict=True):
            assert torch.equal(one.input_ids, same.input_ids)
            assert torch.equal(one.targets, same.targets)
    assert batch.context_masked == sum(len(one.masked) for chunk in batch.chunks for one in contexts(chunk))


def by_definition(model: Any, decoders: Any, chunk: Chunk) -> list[Tensor]:
    """The sums of the four losses of a chunk of one row."""
    ids = chunk.input_ids[:, : chunk.lengths[0]]
    states = model(input_ids=ids, output_hidden_states=True).hidden_states[-1][0]
    found = [nn.functional.cross_entropy(model.cls(states[chunk.masked]), chunk.targets, reduction="sum")]
    for decoder, context in zip(decoders, contexts(chunk), strict=True):
        text = context.input_ids[:, : context.lengths[0]]
        hidden = torch.cat([states[:1], model.base_model.embeddings(input_ids=text)[0, 1:]])[None]
        for layer in decoder:
            result = layer(hidden)
            hidden = result[0] if isinstance(result, tuple) else result
        predicted = model.cls(hidden[0][context.masked])
        found.append(nn.functional.cross_entropy(predicted, context.targets, reduction="sum"))
    return found


def test_losses_and_gradients_through_chunks_equal_the_equations(tmp_path: Path) -> None:
    made, data = module().double(), batches(tmp_path)
    plain = copy.deepcopy(parts(made))
    batch = data.batch(0)
    losses = backpropagate(made.objective(batch)[0], batch.chunks, None)
    assert len(batch.chunks) > 1
    assert any(len(set(chunk.lengths.tolist())) > 1 for chunk in batch.chunks), "rows with padding"
    alone = batches(tmp_path, budget=1).batch(0).chunks
    assert all(len(chunk) == 1 for chunk in alone)
    found = [by_definition(plain["language_model"], plain["decoders"], chunk) for chunk in alone]
    masked = [[len(one.masked) for one in (chunk, *contexts(chunk))] for chunk in alone]
    parted = (zip(*sums, strict=True) for sums in (found, masked))
    expected = [sum(part) / sum(count) for part, count in zip(*parted, strict=True)]
    expected[0] = 0.7 * expected[0]
    for name, loss in zip(("mlm_late", *LOSSES), expected, strict=True):
        assert float(losses[name]) == pytest.approx(float(loss.detach()), rel=1e-11)
    sum(expected).backward()
    assert textbook.worst(textbook.gradients(parts(made)), textbook.gradients(plain)) < 1e-9


def test_chunks_and_processes_give_the_gradient_of_the_whole_batch(tmp_path: Path) -> None:
    trainings.check_gradients_of_two_processes(module(dropout=0.2), batches(tmp_path))


def test_the_decoders_start_differently_or_as_the_last_layers() -> None:
    def weights(init: str) -> list[Tensor]:
        model = MaskedAutoEncoder(textbook.language_model().float(), DecoderShape("masked", 1), init)
        made = MasterModule(model, decoder_init=init)
        layers = (made.model.encoder.layers[-1], *(decoder[0] for decoder in (model.decoder, *made.decoders.values())))
        return [layer.attention.self.query.weight for layer in layers]

    last, random = weights("last"), weights("random")
    assert all(torch.equal(last[0], one) for one in last)
    assert not any(torch.equal(one, other) for i, one in enumerate(random) for other in random[:i])


def test_what_does_not_fit_is_one_line(tmp_path: Path) -> None:
    model = MaskedAutoEncoder(textbook.language_model().float(), DecoderShape("causal", 2))
    with pytest.raises(UserError, match=r"^MasterModule: the decoder is causal; give a masked one$"):
        MasterModule(model, **trainings.optimiser())
    with pytest.raises(UserError, match="set mixed_context=0"):
        batches(tmp_path, mixed=0.5)
    for context in (None, ContextMasking("partner", True, 0.5), ContextMasking("same", False, 0.5)):
        with pytest.raises(UserError, match=r"decoder=ContextMasking\(.partner., False, rate\)$"):
            batches(tmp_path, context=context)
    with pytest.raises(UserError, match="give mask_rate, and decoder"):
        batches(tmp_path, mask_rate=None)
    other = trainings.mixed_batches(tmp_path, context=DECODER).batch(0)
    with pytest.raises(UserError, match=r"^MasterModule is trained on MasterDataModule"):
        module().objective(other)


@pytest.mark.slow
def test_a_run_stopped_after_a_checkpoint_ends_bit_identical(tmp_path: Path) -> None:
    trainings.check_stopped_run(lambda: (module(dropout=0.1), StepDataModule(batches(tmp_path))), tmp_path)


KINDS = ("pretrain_master", "pretrain_cotmae", "finetune")
FEW = [f"++stage.{kind}.{key}" for kind in KINDS for key in ("steps=2", "batch_size=6")]


@pytest.mark.slow
def test_the_recipe_runs_to_its_table(tmp_path: Path) -> None:
    root = write_beir(tmp_path / "beir", some_text(documents=24, seed=5))
    given = ["data=squad", f"data.root={root}", f"output_root={tmp_path / 'out'}", "logger=csv", *MODEL, *FEW]
    done = run_command("experiment=master", *given).sound()
    found = metrics_of(done.folder)
    assert list(found) == ["BM25", "warm start", "CoT-MAE", "MASTER"]
    assert all(0 < value <= 1 for row in found.values() for value in row.values())
    folder = (done.folder / "stages" / "master").resolve()
    assert read_json(folder / "condensery.json")["shape"]["kind"] == "masked"
    assert AutoModelForMaskedLM.from_pretrained(folder).config.num_hidden_layers == 2
    assert run_command("experiment=master", *given).sound().computed == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("++stages.master.mixed_context=0.5", "mixed_context: every step reads a query and another passage"),
        ("++stages.master.queries=null", "queries: one of the three decoders recovers a query"),
        ("++stages.master.decoder_layers=0", "decoder_layers"),
        ("++stages.master.length=4000", "length=4000 is longer than the backbone's"),
    ],
)
def test_what_cannot_be_is_one_line_before_any_work(given: str, said: str, tmp_path: Path) -> None:
    check_refused(tmp_path, said, "experiment=master", given)
