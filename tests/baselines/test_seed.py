"""SEED: what its decoder sees, the losses and gradients of the paper through chunks, kills, and the stage."""

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import textbook
import torch
from slow import slow_except
from torch import Tensor, nn

from condensery import UserError
from condensery.baselines.seed.pretrain_seed import SeedModule
from condensery.losses.gradient_cache import backpropagate
from condensery.models.masked_autoencoder import DecoderShape, MaskedAutoEncoder
from condensery.system.files import read_json
from condensery.tokens.batches import Chunk
from condensery.training.data.data_module import StepDataModule
from condensery.training.data.span_batches import ContextMasking, SpanBatches

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
import trainings
from small_runs import MODEL, check_refused, metrics_of, run_command, some_text, write_beir

SPANS: Any = pytest.mark.parametrize("span", [1, 2, 5, 100])


def batches(folder: Path, **changes: Any) -> SpanBatches:
    return trainings.span_batches(folder, pairs=False, context=ContextMasking("same", True, None), **changes)


def module(span: int = 2, layers: int = 3, dropout: float = 0.0, **changes: Any) -> SeedModule:
    model = MaskedAutoEncoder(textbook.language_model(dropout=dropout).float(), DecoderShape("causal", layers))
    textbook.perturbed(model.decoder)
    return SeedModule(model, attention_span=span, mlm_weight=0.7, **trainings.optimiser(**changes))


def by_definition(model: Any, decoder: Any, chunk: Chunk, span: int) -> tuple[Tensor, Tensor]:
    """The sums of both losses of a chunk of one row, token by token: each state attends to what it may see, one by one."""
    ids = chunk.input_ids[0, : chunk.lengths[0]]
    states = model(input_ids=ids[None], output_hidden_states=True).hidden_states[-1][0]
    late = nn.functional.cross_entropy(model.cls(states[chunk.masked]), chunk.targets, reduction="sum")
    text = chunk.context.input_ids[0, : chunk.lengths[0]]
    inputs = torch.cat([states[:1], model.base_model.embeddings(input_ids=text[None])[0, 1:]])
    for layer in decoder:
        this, found = layer.attention.self, []
        for t in range(len(inputs)):
            seen = [0, *(j for j in range(1, t + 1) if j > t - span)]
            heads = []
            for head in range(this.num_attention_heads):
                part = slice(head * this.attention_head_size, (head + 1) * this.attention_head_size)
                scores = this.key(inputs[seen])[:, part] @ this.query(inputs[t])[part] / this.attention_head_size**0.5
                heads.append(scores.softmax(0) @ this.value(inputs[seen])[:, part])
            attended = layer.attention.output(torch.cat(heads)[None], inputs[t][None])
            found.append(layer.output(layer.intermediate(attended), attended)[0])
        inputs = torch.stack(found)
    total = late.new_zeros(())
    for t in range(1, len(text)):  # the state before a token predicts it
        if not textbook.vocabulary().is_special[int(text[t])]:
            total = total - model.cls(inputs[t - 1]).log_softmax(0)[text[t]]
    return late, total


@SPANS
def test_losses_and_gradients_through_chunks_equal_the_papers(span: int, tmp_path: Path) -> None:
    made, data = module(span).double(), batches(tmp_path, budget=20)
    plain = copy.deepcopy(nn.ModuleDict({"language_model": made.model.language_model, "decoder": made.model.decoder}))
    batch = data.batch(0)
    losses = backpropagate(made.objective(batch)[0], batch.chunks, None)
    assert len(batch.chunks) > 2
    alone = batches(tmp_path, budget=1).batch(0).chunks
    assert all(len(chunk) == 1 for chunk in alone)
    found = [by_definition(plain["language_model"], plain["decoder"], chunk, span) for chunk in alone]
    late = 0.7 * sum(one for one, _ in found) / sum(len(chunk.masked) for chunk in alone)
    context = sum(one for _, one in found) / sum(len(chunk.context.masked) for chunk in alone)
    assert float(losses["mlm_late"]) == pytest.approx(float(late.detach()), rel=1e-11)
    assert float(losses["mlm_context"]) == pytest.approx(float(context.detach()), rel=1e-11)
    (late + context).backward()
    ours = nn.ModuleDict({"language_model": made.model.language_model, "decoder": made.model.decoder})
    assert textbook.worst(textbook.gradients(ours), textbook.gradients(plain)) < 1e-9


@pytest.mark.parametrize(("layers", "span"), [(1, 1), (1, 2), (1, 3), (3, 2), (2, 3), (3, 1)])
def test_a_token_is_predicted_from_the_tokens_that_the_layers_reach(layers: int, span: int) -> None:
    """n layers of span k reach n (k - 1) + 1 tokens back; the CLS vector is always seen."""
    model = module(span, layers).double().model
    contexts = textbook.contexts("causal", [12])
    (chunk,) = textbook.paired(textbook.rows([8]), contexts, [1])
    place, reach = 4, layers * (span - 1) + 1
    before = model.encode(chunk)[1]["mlm_context"]  # of places 1 to 11
    ids = chunk.context.input_ids.clone()
    ids[0, place] = 5 + (ids[0, place] + 1) % 50
    context = type(chunk.context)(ids, chunk.context.lengths, chunk.rows, chunk.context.masked, chunk.context.targets)
    after = model.encode(
        type(chunk)(chunk.input_ids, chunk.lengths, chunk.rows, chunk.masked, chunk.targets, 0, context)
    )
    changed = (before != after[1]["mlm_context"]).tolist()
    assert changed == [place < predicted <= place + reach for predicted in range(1, 12)]


@pytest.mark.parametrize("span", slow_except([1, 2, 5, 100], 2))
def test_chunks_and_processes_give_the_gradient_of_the_whole_batch(span: int, tmp_path: Path) -> None:
    trainings.check_gradients_of_two_processes(module(span, dropout=0.2), batches(tmp_path))


def test_an_unlimited_span_is_the_causal_decoder() -> None:
    (chunk,) = textbook.paired(textbook.rows([8]), textbook.contexts("causal", [12]), [1])
    model = module(2).double().model
    with torch.no_grad():
        short = model.encode(chunk)[1]["mlm_context"]
        model.span = 12
        whole = model.encode(chunk)[1]["mlm_context"]
        model.span = None
        torch.testing.assert_close(model.encode(chunk)[1]["mlm_context"], whole, rtol=0, atol=0)
    assert not torch.equal(short, whole)


def test_another_decoder_and_a_span_of_nothing_are_one_line() -> None:
    model = MaskedAutoEncoder(textbook.language_model().float(), DecoderShape("masked", 2))
    with pytest.raises(UserError, match=r"^SeedModule: the decoder is masked; give a causal one$"):
        SeedModule(model, **trainings.optimiser())
    with pytest.raises(UserError, match="attention_span"):
        module(0)


@pytest.mark.slow
def test_a_run_stopped_after_a_checkpoint_ends_bit_identical(tmp_path: Path) -> None:
    trainings.check_stopped_run(lambda: (module(dropout=0.1), StepDataModule(batches(tmp_path))), tmp_path)


FEW = [f"++stage.{kind}.{key}" for kind in ("pretrain_seed", "finetune") for key in ("steps=2", "batch_size=6")]


@pytest.mark.slow
def test_the_recipe_runs_to_its_table(tmp_path: Path) -> None:
    root = write_beir(tmp_path / "beir", some_text(documents=24, seed=5))
    given = ["data=squad", f"data.root={root}", f"output_root={tmp_path / 'out'}", "logger=csv", *MODEL, *FEW]
    done = run_command("experiment=seed", *given).sound()
    found = metrics_of(done.folder)
    assert list(found) == ["BM25", "warm start", "decoder that sees all before", "SEED"]
    assert all(0 < value <= 1 for row in found.values() for value in row.values())
    about = read_json(done.folder / "stages" / "seed" / "condensery.json")
    assert about["shape"]["kind"] == "causal"
    assert run_command("experiment=seed", *given).sound().computed == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("++stages.seed.attention_span=0", "attention_span"),
        ("++stages.seed.decoder_layers=0", "decoder_layers"),
        ("++stages.seed.decoder_mask_rate=0.5", "decoder_mask_rate"),
        ("++stages.seed.length=4000", "length=4000 is longer than the backbone's"),
    ],
)
def test_what_cannot_be_is_one_line_before_any_work(given: str, said: str, tmp_path: Path) -> None:
    check_refused(tmp_path, said, "experiment=seed", given)
