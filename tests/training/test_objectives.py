"""What each module minimises: its equation, token by token and pair by pair, and the gradient through the cache.

Everything is float64 and without dropout, in small chunks; the plain side reads the whole batch padded, at once.
``tests/losses/test_gradient_cache.py`` has the same models under dropout.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import textbook
import torch
import trainings
from torch import Tensor

from condensery.losses.gradient_cache import backpropagate
from condensery.models import masked_autoencoder
from condensery.models.biencoder import BiEncoder
from condensery.models.condenser import Condenser, CondenserShape
from condensery.models.encoder import Encoder
from condensery.models.masked_autoencoder import Kind, MaskedAutoEncoder, decoder_shape
from condensery.tokens.batches import Chunk
from condensery.training.data.span_batches import ContextMasking, SpanBatch, SpanBatches
from condensery.training.modules.optimisation import TrainingModule
from condensery.training.modules.pretraining import (
    CoCondenserModule,
    CondenserModule,
    InverseClozeModule,
    MaskedAutoEncoderModule,
    QueryAsContextModule,
)

Padded = tuple[Tensor, Tensor, Tensor]
Losses = dict[str, Tensor]


def padded(parts: Sequence[Chunk]) -> Padded:
    """All rows of a batch in their order: (n, t) ids, attention mask, labels (-100 = not predicted)."""
    number, width = sum(map(len, parts)), max(part.input_ids.shape[1] for part in parts)
    ids, attention = torch.full((number, width), textbook.PAD), torch.zeros(number, width, dtype=torch.long)
    labels = torch.full((number, width), -100)
    for part in parts:
        own = torch.full_like(part.input_ids, -100)
        if part.masked is not None:
            own.view(-1)[part.masked] = part.targets
        for at, (row, length) in enumerate(zip(part.rows.tolist(), part.lengths.tolist(), strict=True)):
            ids[row, :length], attention[row, :length] = part.input_ids[at, :length], 1
            labels[row, :length] = own[at, :length]
    return ids, attention, labels


def contexts(batch: SpanBatch) -> Padded:
    return padded([part.context for part in batch.chunks if part.context is not None])


def mean(losses: Tensor, batch: Padded) -> Tensor:
    """Over the predicted tokens of the batch."""
    return losses.sum() / int((batch[2] != -100).sum())


def compare(module: TrainingModule, batch: SpanBatch, expected: Losses) -> None:
    """Every loss, and the gradient of their sum."""
    torch.stack(list(expected.values())).sum().backward()
    reference = textbook.gradients(module.model)
    module.zero_grad()
    assert len(batch.chunks) > 2
    encoder, contrast = module.objective(batch)
    losses = backpropagate(encoder, batch.chunks, contrast)
    assert losses.keys() == expected.keys()
    for name, loss in losses.items():
        assert float(loss) == pytest.approx(float(expected[name].detach()), rel=1e-11), name
    assert textbook.worst(textbook.gradients(module.model), reference) < 1e-9


def condenser(head_layers: int) -> Condenser:
    model = Condenser(textbook.language_model(), CondenserShape(head_layers, 1, late_mlm=True)).double()
    textbook.perturbed(model.head)
    return model.train()


def plain_condenser(model: Condenser, batch: SpanBatch, weight: float) -> tuple[Losses, Tensor]:
    """The weighted MLM losses, and the CLS vectors in the order of the batch."""
    rows = padded(batch.chunks)
    output = textbook.condenser(model.language_model, list(model.head), 1, True, rows)
    losses = {"mlm_head": output.head, "mlm_late": output.late}
    return {name: weight * mean(loss, rows) for name, loss in losses.items() if loss is not None}, output.cls


@pytest.mark.parametrize("head_layers", [0, 2], ids=["MLM", "Condenser"])
def test_masked_prediction_is_the_weighted_mean_over_the_batch(head_layers: int, tmp_path: Path) -> None:
    model, batch = condenser(head_layers), trainings.span_batches(tmp_path, pairs=False, budget=20).batch(0)
    expected, _ = plain_condenser(model, batch, 1.5)
    assert len(expected) == (2 if head_layers else 1)
    compare(CondenserModule(model, **trainings.optimiser(), mlm_weight=1.5), batch, expected)


@pytest.mark.parametrize("short", [False, True], ids=["whole", "short"])
@pytest.mark.parametrize("kind", ["spans", "queries", "mixed"])
def test_cocondenser_on_spans_and_on_queries_is_mlm_and_the_weighted_contrast(
    kind: str, short: bool, tmp_path: Path
) -> None:
    batches = {
        "spans": lambda: trainings.span_batches(tmp_path, budget=20),
        "queries": lambda: trainings.mixed_batches(tmp_path, 0.0, budget=30, batch_size=3),
        "mixed": lambda: trainings.mixed_batches(tmp_path, 1.0, budget=30, batch_size=3),
    }[kind]()
    batch, model = batches.batch(batches.steps_an_epoch() - 1 if short else 0), condenser(head_layers=2)
    assert (sum(map(len, batch.chunks)) < 2 * batches.batch_size) == short
    losses, cls = plain_condenser(model, batch, 2.0)
    expected = {**losses, "contrast": 0.3 * textbook.span_contrast(cls, 0.7)}
    module = CoCondenserModule if kind == "spans" else QueryAsContextModule
    compare(
        module(model, **trainings.optimiser(), mlm_weight=2.0, temperature=0.7, contrast_weight=0.3),
        batch,
        expected,
    )


def test_the_papers_weights_and_temperature_are_the_defaults(tmp_path: Path) -> None:
    model, batch = condenser(head_layers=2), trainings.mixed_batches(tmp_path).batch(0)
    losses, cls = plain_condenser(model, batch, 1.0)
    compare(
        QueryAsContextModule(model, **trainings.optimiser()),
        batch,
        {**losses, "contrast": textbook.span_contrast(cls, 1.0)},
    )


def autoencoder(kind: Kind) -> MaskedAutoEncoder:
    model = MaskedAutoEncoder(textbook.language_model(), decoder_shape(kind)).double()
    textbook.perturbed(model.decoder)
    return model.train()


def compare_autoencoder(model: MaskedAutoEncoder, batch: SpanBatch, weight: float, sets: Tensor | None = None) -> None:
    rows, others = padded(batch.chunks), contexts(batch)
    kind = model.shape.kind
    output = textbook.autoencoder(model.language_model, list(model.decoder), kind, rows, others, sets)
    expected = {"mlm_late": weight * mean(output.late, rows), "mlm_context": mean(output.context, others)}
    compare(MaskedAutoEncoderModule(model, **trainings.optimiser(), mlm_weight=weight), batch, expected)


@pytest.mark.parametrize("both", [True, False], ids=["both directions", "one direction"])
@pytest.mark.parametrize("on", ["spans", "queries"])
@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_cotmae_is_the_encoders_loss_and_that_of_the_other_text(
    kind: Kind, on: str, both: bool, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"context": ContextMasking("partner", both, 0.45 if kind == "masked" else None)}
    options["budget"] = 40 if both else 20
    batches = (
        trainings.span_batches(tmp_path, **options) if on == "spans" else trainings.mixed_batches(tmp_path, **options)
    )
    compare_autoencoder(autoencoder(kind), batches.batch(1), weight=0.6)


def retromae_batches(folder: Path, kind: Kind) -> SpanBatches:
    rate = None if kind == "enhanced" else 0.5
    return trainings.span_batches(folder, pairs=False, budget=20, context=ContextMasking("same", True, rate))


def test_retromae_with_a_masked_decoder_fills_in_the_text_itself(tmp_path: Path) -> None:
    compare_autoencoder(autoencoder("masked"), retromae_batches(tmp_path, "masked").batch(0), weight=1.0)


def test_retromae_is_the_encoders_loss_and_that_of_every_token_from_its_own_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, model = retromae_batches(tmp_path, "enhanced").batch(0), autoencoder("enhanced")
    ids, _, labels = contexts(batch)
    sets = torch.rand(*ids.shape, ids.shape[1], generator=torch.Generator().manual_seed(7)) < 0.5
    here = iter(batch.chunks)

    def known(places: Tensor, width: int, keep: float) -> Tensor:
        """What the tokens of the next chunk see: the first and the set of each, never the token itself."""
        part = next(here)
        assert part.context is not None
        assert part.context.masked is not None
        assert keep == 0.5
        rows = part.rows[part.context.masked // width]
        visible = torch.nn.functional.pad(sets[rows, places], (0, max(0, width - sets.shape[2])))[:, :width].clone()
        visible[torch.arange(len(places)), places] = False
        visible[:, 0] = True
        return visible

    monkeypatch.setattr(masked_autoencoder, "sampled_sets", known)
    assert int((labels != -100).sum()) == batch.context_masked > batch.masked
    compare_autoencoder(model, batch, weight=0.8, sets=sets)


@pytest.mark.parametrize("step", [0, 2])
def test_the_inverse_cloze_task_finds_each_sentences_passage_among_those_of_the_batch(
    step: int, tmp_path: Path
) -> None:
    language_model: Any = textbook.language_model()
    model = BiEncoder(Encoder(language_model.base_model)).train()
    batch = trainings.sentence_batches(tmp_path).batch(step)
    ids, attention, _ = padded(batch.chunks)
    cls = language_model.base_model(input_ids=ids, attention_mask=attention).last_hidden_state[:, 0]
    passages, sentences = [cls[row] for row in range(0, len(cls), 2)], [cls[row] for row in range(1, len(cls), 2)]
    total = torch.zeros((), dtype=torch.float64)
    for number, sentence in enumerate(sentences):
        scores = torch.stack([sentence @ passage / 1.7 for passage in passages])
        total = total - torch.log(torch.exp(scores[number]) / torch.exp(scores).sum())
    expected = {"contrast": total / len(sentences)}
    compare(InverseClozeModule(model, **trainings.optimiser(), temperature=1.7), batch, expected)
