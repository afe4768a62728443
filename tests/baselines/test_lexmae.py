"""LexMAE: the nested masks, the losses and gradients of the equations through chunks, kills, and the stage."""

import copy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import textbook
import torch
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM

from condensery import UserError
from condensery.baselines.lexmae.masks import NestedBatches, NestedDataModule
from condensery.baselines.lexmae.pretrain_lexmae import LexmaeModule
from condensery.losses.gradient_cache import backpropagate
from condensery.models.masked_autoencoder import DecoderShape, MaskedAutoEncoder
from condensery.system.files import read_json
from condensery.tokens.batches import Chunk
from condensery.tokens.spans import RandomWindows
from condensery.training.data.data_module import StepDataModule
from condensery.training.data.sources import SingleSpans
from condensery.training.data.span_batches import ContextMasking
from condensery.training.data.steps import Share

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
import trainings
from small_runs import MODEL, check_refused, metrics_of, run_command, some_text, write_beir

ALPHA, BETA = 0.3, 0.5


def batches(folder: Path, **changes: Any) -> NestedBatches:
    """4 texts of up to 16 tokens a batch; the decoder reads each text with more tokens masked."""
    spans = RandomWindows(trainings.documents(folder), length=16, seed=3, min_length=4)
    options = {"batch_size": 4, "mask_rate": ALPHA, "whole_word": False, "budget": 40, "seed": 3}
    options["context"] = ContextMasking("same", True, BETA)
    return NestedBatches(SingleSpans(spans, textbook.vocabulary()), textbook.vocabulary(), **{**options, **changes})


def module(family: str = "bert", dropout: float = 0.0, **changes: Any) -> LexmaeModule:
    model = MaskedAutoEncoder(textbook.language_model(family, dropout=dropout).float(), DecoderShape("masked", 2))
    textbook.perturbed(model.decoder)
    return LexmaeModule(model, mlm_weight=0.7, **trainings.optimiser(**changes))


def parts(made: LexmaeModule) -> nn.ModuleDict:
    return nn.ModuleDict({"language_model": made.model.language_model, "decoder": made.model.decoder})


def texts(data: NestedBatches, step: int, share: Share = Share()) -> dict[int, tuple[Any, ...]]:  # noqa: B008
    """Of each text of a batch: the original ids, those of encoder and decoder, and the masked places of both."""
    found = {}
    for chunk in data.batch(step, share).chunks:
        rows = [(one.input_ids.numpy(), one.masked.numpy(), one.targets.numpy()) for one in (chunk, chunk.context)]
        for place, (row, length) in enumerate(zip(chunk.rows.tolist(), chunk.lengths.tolist(), strict=True)):
            own = []
            for ids, masked, targets in rows:
                original = ids.copy()
                original.reshape(-1)[masked] = targets
                width = ids.shape[1]
                here = masked[masked // width == place] - place * width
                own.append((original[place, :length].tolist(), ids[place, :length].tolist(), here.tolist()))
            assert own[0][0] == own[1][0], "encoder and decoder read the same text"
            found[row] = (own[0][0], own[0][1], own[1][1], own[0][2], own[1][2])
    return found


@pytest.mark.parametrize("whole_word", [False, True])
def test_the_decoders_masks_include_the_encoders_and_are_drawn_again(whole_word: bool, tmp_path: Path) -> None:
    data, shares, changed, alike = batches(tmp_path, whole_word=whole_word), [], 0, 0
    special = textbook.vocabulary().is_special
    for step in range(60):
        for original, encoder, decoder, own, further in texts(data, step).values():
            assert set(own) <= set(further)
            assert not special[np.asarray(original)[further]].any()
            assert all(original[i] == decoder[i] for i in range(len(original)) if i not in further)
            shares.append((len(own), len(further), int((~special[original]).sum())))
            changed += sum(encoder[i] != decoder[i] for i in own)
            alike += sum(encoder[i] == decoder[i] for i in own)
    for kind, rate in enumerate((ALPHA, BETA)):
        assert sum(one[kind] for one in shares) / sum(one[2] for one in shares) == pytest.approx(rate, abs=0.03)
    # alike with probability .8² + .1² and, for a random token, hardly ever
    assert alike / (alike + changed) == pytest.approx(0.65, abs=0.06)


def test_masks_are_a_function_of_the_text_and_the_epoch_in_any_share_and_chunk(tmp_path: Path) -> None:
    data = batches(tmp_path)
    for step in range(3):
        whole = texts(data, step)
        assert texts(batches(tmp_path, budget=1), step) == whole
        halves = [texts(data, step, Share(rank, 2)) for rank in range(2)]
        assert sorted(str(one) for half in halves for one in half.values()) == sorted(map(str, whole.values()))
    epoch = data.steps_an_epoch()
    assert [one[4] for step in range(epoch) for one in texts(data, step).values()] != [
        one[4] for step in range(epoch) for one in texts(data, step + epoch).values()
    ]


def by_definition(model: Any, decoder: Any, chunk: Chunk) -> tuple[Tensor, Tensor]:
    """The sums of both losses of a chunk of one row, word by word."""
    ids, length = chunk.input_ids[:, : chunk.lengths[0]], int(chunk.lengths[0])
    states = model(input_ids=ids, output_hidden_states=True).hidden_states[-1][0]
    logits = (model.cls if hasattr(model, "cls") else model.lm_head)(states)  # (t, V)
    late = nn.functional.cross_entropy(logits[chunk.masked], chunk.targets, reduction="sum")
    scores = [max(logits[i, word] for i in range(1, length - 1)) for word in range(logits.shape[1])]
    total = sum(score.exp() for score in scores)
    embeddings = model.get_input_embeddings().weight.detach()
    bag = sum(score.exp() / total * embedding for score, embedding in zip(scores, embeddings, strict=True))
    text = chunk.context.input_ids[:, :length]
    hidden = torch.cat([bag[None], model.base_model.embeddings(input_ids=text)[0, 1:]])[None]
    for layer in decoder:
        result = layer(hidden)
        hidden = result[0] if isinstance(result, tuple) else result
    predicted = (model.cls if hasattr(model, "cls") else model.lm_head)(hidden.view(length, -1)[chunk.context.masked])
    return late, nn.functional.cross_entropy(predicted, chunk.context.targets, reduction="sum")


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_losses_and_gradients_through_chunks_equal_the_equations(family: str, tmp_path: Path) -> None:
    made, data = module(family).double(), batches(tmp_path, budget=40)
    plain = copy.deepcopy(parts(made))
    batch = data.batch(0)
    losses = backpropagate(made.objective(batch)[0], batch.chunks, None)
    assert len(batch.chunks) > 1
    assert any(len(set(chunk.lengths.tolist())) > 1 for chunk in batch.chunks), "rows with padding"
    alone = batches(tmp_path, budget=1).batch(0).chunks
    assert all(len(chunk) == 1 for chunk in alone)
    found = [by_definition(plain["language_model"], plain["decoder"], chunk) for chunk in alone]
    late = 0.7 * sum(one for one, _ in found) / sum(len(chunk.masked) for chunk in alone)
    context = sum(one for _, one in found) / sum(len(chunk.context.masked) for chunk in alone)
    assert float(losses["mlm_late"]) == pytest.approx(float(late.detach()), rel=1e-11)
    assert float(losses["mlm_context"]) == pytest.approx(float(context.detach()), rel=1e-11)
    (late + context).backward()
    assert textbook.worst(textbook.gradients(parts(made)), textbook.gradients(plain)) < 1e-9


def test_chunks_and_processes_give_the_gradient_of_the_whole_batch(tmp_path: Path) -> None:
    trainings.check_gradients_of_two_processes(module(dropout=0.2), batches(tmp_path))


def test_the_bag_is_the_way_from_the_decoders_loss_to_the_encoder(tmp_path: Path) -> None:
    """Without the encoder's own loss, its layers and the transform of the MLM head still learn."""
    made, batch = module(), batches(tmp_path).batch(0)
    made.mlm_weight = 0.0
    backpropagate(made.objective(batch)[0], batch.chunks, None)
    layer = made.model.encoder.layers[0].attention.self.value.weight.grad
    assert layer is not None
    assert layer.abs().max() > 0


def test_a_lexical_start_is_that_of_splade() -> None:
    plain, lexical = (module().model.language_model for _ in range(2))
    made = LexmaeModule(MaskedAutoEncoder(lexical, DecoderShape("masked", 1)), lexical_start=True)
    dense = made.model.language_model.cls.predictions.transform.dense
    assert torch.equal(dense.weight, torch.eye(16))
    assert not torch.equal(plain.cls.predictions.transform.dense.weight, torch.eye(16))
    assert made.hparams["lexical_start"] is True


def test_validation_ranks_by_the_weights_of_the_vocabulary(tmp_path: Path) -> None:
    (chunk,) = textbook.rows([8, 5]).chunks()
    assert module().eval().vectors(chunk).shape == (2, textbook.SIZE)


def test_what_does_not_fit_is_one_line(tmp_path: Path) -> None:
    model = MaskedAutoEncoder(textbook.language_model().float(), DecoderShape("causal", 2))
    with pytest.raises(UserError, match=r"^LexmaeModule: the decoder is causal; give a masked one$"):
        LexmaeModule(model, **trainings.optimiser())
    for rate in (0.3, 0.2, None):
        with pytest.raises(UserError, match=f"^ContextMasking: rate={rate} must be above mask_rate=0.3"):
            batches(tmp_path, context=ContextMasking("same", True, rate))
    for context in (None, ContextMasking("partner", True, 0.5), ContextMasking("same", False, 0.5)):
        with pytest.raises(UserError, match=r"decoder=ContextMasking\(.same., True, rate\)$"):
            batches(tmp_path, context=context)
    with pytest.raises(UserError, match="mask_rate"):
        NestedDataModule(["a text"], pairs=None, mask_rate=1.5)


@pytest.mark.slow
def test_a_run_stopped_after_a_checkpoint_ends_bit_identical(tmp_path: Path) -> None:
    trainings.check_stopped_run(lambda: (module(dropout=0.1), StepDataModule(batches(tmp_path))), tmp_path)


KINDS = ("pretrain_lexmae", "finetune", "finetune_splade")
FEW = [f"++stage.{kind}.{key}" for kind in KINDS for key in ("steps=2", "batch_size=6")]


@pytest.mark.slow
def test_the_recipe_runs_to_its_table(tmp_path: Path) -> None:
    root = write_beir(tmp_path / "beir", some_text(documents=24, seed=5))
    given = ["data=squad", f"data.root={root}", f"output_root={tmp_path / 'out'}", "logger=csv", *MODEL, *FEW]
    done = run_command("experiment=lexmae", *given).sound()
    found = metrics_of(done.folder)
    assert list(found) == ["BM25", "warm start", "LexMAE", "SPLADE", "LexMAE + SPLADE"]
    assert all(0 < value <= 1 for row in found.values() for value in row.values())
    folder = (done.folder / "stages" / "lexmae").resolve()
    assert read_json(folder / "condensery.json")["shape"]["kind"] == "masked"
    assert AutoModelForMaskedLM.from_pretrained(folder).config.num_hidden_layers == 2
    assert run_command("experiment=lexmae", *given).sound().computed == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("++stages.lexmae.decoder_mask_rate=0.3", "decoder_mask_rate: 0.3 must be above mask_rate=0.3"),
        ("++stages.lexmae.decoder_layers=0", "decoder_layers"),
        ("++stages.lexmae.lexical_start=often", "lexical_start"),
        ("++stages.lexmae.length=4000", "length=4000 is longer than the backbone's"),
    ],
)
def test_what_cannot_be_is_one_line_before_any_work(given: str, said: str, tmp_path: Path) -> None:
    check_refused(tmp_path, said, "experiment=lexmae", given)
