"""The gradient cache gives the gradient of the full batch: with dropout, for any chunks, for one and for two towers."""

from collections.abc import Sequence

import pytest
import textbook
import torch
from torch import Tensor, nn

from condensery.losses import gradient_cache
from condensery.losses.contrast import Contrast, span_contrast, weighted
from condensery.losses.gradient_cache import ChunkEncoder, backpropagate
from condensery.losses.info_nce import info_nce
from condensery.losses.mlm import MaskedPrediction
from condensery.models.biencoder import PASSAGE, QUERY, BiEncoder
from condensery.models.condenser import Condenser, CondenserShape
from condensery.models.encoder import Encoder
from condensery.models.masked_autoencoder import Kind, MaskedAutoEncoder, decoder_shape
from condensery.tokens.batches import Chunk, chunks

LENGTHS = [6, 12, 9, 4, 12, 7, 5, 12, 8, 10, 3, 11]
WITHOUT = [3, 10]  # rows that have no masked token
ROWS = textbook.rows(LENGTHS, without=WITHOUT)
CONTEXTS = [9, 3, 12, 4, 5, 12, 7, 3, 10, 6, 8, 11]
KINDS: list[Kind] = ["masked", "causal", "enhanced"]
CHUNKINGS = {
    "one row a chunk": [1] * 12,
    "equal": [4, 4, 4],
    "unequal": [5, 5, 2],
    "one row, then the rest": [1, 11],
    "a chunk without masked tokens": [3, 1, 8],
    "all": [12],
}


def _condenser(dropout: float, weight: float = 1.0) -> MaskedPrediction:
    model = Condenser(textbook.language_model(dropout=dropout), CondenserShape(2, 1, True)).double().train()
    textbook.perturbed(model.head)
    return MaskedPrediction(model, len(ROWS.masked), weight)


def _autoencoder(
    kind: Kind, dropout: float, weight: float | dict[str, float] = 1.0
) -> tuple[MaskedPrediction, textbook.Rows]:
    """An auto-encoder, and contexts for its decoder."""
    model = MaskedAutoEncoder(textbook.language_model(dropout=dropout), decoder_shape(kind)).double().train()
    textbook.perturbed(model.decoder)
    contexts = textbook.contexts(kind, CONTEXTS, without=[3, 6])
    masked = {"mlm_late": len(ROWS.masked), "mlm_context": len(contexts.masked)}
    return MaskedPrediction(model, masked, weight), contexts


def _full_batch(encoder: ChunkEncoder, parts: Sequence[Chunk], contrast: Contrast | None) -> dict[str, Tensor]:
    """All chunks' graphs in memory together and one backward pass, with the dropout that the cache's passes draw."""
    kept = encoder.encode(parts[0])
    states = []
    with torch.no_grad():
        for part in parts[1:] if contrast is not None else ():
            states.append(torch.get_rng_state())
            encoder.vectors(part)
    vectors, losses = [], {}
    for index, part in enumerate(parts):
        if index > 0 and states:
            torch.set_rng_state(states[index - 1])
        found, own = encoder.encode(part) if index else kept
        vectors.append(found)
        for name, loss in own.items():
            losses[name] = losses.get(name, 0.0) + loss
    if contrast is not None:
        together = torch.cat(vectors)[torch.argsort(torch.cat([part.rows for part in parts]))]
        losses["contrast"] = contrast(together)
    torch.stack(list(losses.values())).sum().backward()
    return losses


def _compare(encoder: ChunkEncoder, model: nn.Module, parts: Sequence[Chunk], contrast: Contrast | None) -> None:
    results = []
    for way in (backpropagate, _full_batch):
        model.zero_grad()
        torch.manual_seed(11)
        losses = way(encoder, parts, contrast)
        results.append(({name: loss.detach() for name, loss in losses.items()}, textbook.gradients(model)))
    (ours, gradient), (expected, reference) = results
    assert ours.keys() == expected.keys()
    for name, loss in ours.items():
        torch.testing.assert_close(loss, expected[name], rtol=1e-11, atol=1e-14)
    assert textbook.worst(gradient, reference) < 1e-9


@pytest.mark.parametrize("sizes", CHUNKINGS.values(), ids=list(CHUNKINGS))
def test_cached_equals_full_batch_with_dropout(sizes: list[int]) -> None:
    encoder = _condenser(dropout=0.2)
    _compare(encoder, encoder.model, ROWS.cut(sizes), span_contrast)


@pytest.mark.parametrize(("budget", "number"), [(25, 5), (10**6, 1)])
def test_cached_equals_full_batch_for_chunks_sorted_by_length(budget: int, number: int) -> None:
    encoder = _condenser(dropout=0.2)
    parts = ROWS.chunks(budget)
    assert len(parts) == number
    assert torch.cat([part.rows for part in parts]).tolist() != list(range(12))
    _compare(encoder, encoder.model, parts, span_contrast)


@pytest.mark.parametrize("contrast", [weighted(span_contrast, 0.3), None], ids=["contrast", "no contrast"])
@pytest.mark.parametrize("cut", [*CHUNKINGS.values(), 30], ids=[*CHUNKINGS, "sorted by length"])
@pytest.mark.parametrize("kind", KINDS)
def test_cached_equals_full_batch_for_autoencoders_with_dropout_and_random_sets(
    kind: Kind, cut: list[int] | int, contrast: Contrast | None
) -> None:
    encoder, contexts = _autoencoder(kind, dropout=0.2)
    _compare(encoder, encoder.model, textbook.paired(ROWS, contexts, cut), contrast)


@pytest.mark.parametrize("sizes", [[2], [1, 1]])
def test_a_last_batch_of_one_document_has_no_contrast_left_and_still_trains_the_mlm(sizes: list[int]) -> None:
    encoder = _condenser(dropout=0.2)
    parts = textbook.rows([9, 5]).cut(sizes)
    _compare(encoder, encoder.model, parts, span_contrast)
    assert float(backpropagate(encoder, parts, span_contrast)["contrast"]) == 0.0


@pytest.mark.parametrize("shared", [True, False], ids=["one tower", "two towers"])
@pytest.mark.parametrize("budget", [1, 20, 10**6])
def test_cached_equals_full_batch_for_a_biencoder_with_dropout(shared: bool, budget: int) -> None:
    first, second = (Encoder(textbook.language_model(f, dropout=0.2).base_model) for f in ("bert", "roberta"))
    model = BiEncoder(first) if shared else BiEncoder(first, second)
    asked, read = textbook.rows([5, 7, 4]), textbook.rows([12, 6, 9, 3, 11], seed=1)
    parts = chunks(asked.flat, asked.starts, budget, textbook.PAD, tower=QUERY)
    parts += chunks(read.flat, read.starts, budget, textbook.PAD, tower=PASSAGE, rows=range(3, 8))
    known = torch.zeros(3, 5, dtype=torch.bool)
    known[0, 1] = True

    def contrast(vectors: Tensor) -> Tensor:
        return info_nce(vectors[:3], vectors[3:], torch.tensor([2, 0, 4]), known, 0.5)

    _compare(model, model, parts, contrast)


@pytest.mark.parametrize("shared", [True, False], ids=["one tower", "two towers"])
@pytest.mark.parametrize("precision", ["fp64", "bf16"])
@pytest.mark.parametrize("budget", [60, 10**6], ids=["few queries", "two chunks"])
def test_passages_are_encoded_once_and_the_bits_stay(
    budget: int, precision: str, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    towers = [Encoder(textbook.language_model(dropout=0.2, hidden=32).base_model) for _ in range(1 if shared else 2)]
    model = BiEncoder(*towers)
    if precision == "bf16":
        model.float()
    asked, read = textbook.rows([5, 4]), textbook.rows(LENGTHS, seed=1)
    parts = chunks(asked.flat, asked.starts, 10**6, textbook.PAD, tower=QUERY)
    parts += chunks(read.flat, read.starts, budget, textbook.PAD, tower=PASSAGE, rows=range(2, 14))
    assert (len(parts) > 2) == (budget == 60)
    encoded: list[int] = []
    vectors = model.vectors

    def counted(chunk: Chunk) -> Tensor:
        encoded.append(next(i for i, part in enumerate(parts) if part is chunk))
        return vectors(chunk)

    monkeypatch.setattr(model, "vectors", counted)

    def gradients(limit: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
        encoded.clear()
        model.zero_grad()
        torch.manual_seed(11)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            losses = backpropagate(model, parts, lambda v: info_nce(v[:2], v[2:], torch.tensor([3, 0])), budget=limit)
        return losses["contrast"], textbook.gradients(model)

    loss, found = gradients()
    assert sorted(encoded) == sorted([*range(len(parts)), 0, *range(2, len(parts))]), "the first passages once"
    tokens = sum(part.tokens for part in parts)
    for limit, fits in ((tokens, len(parts) == 2), (tokens - 1, False)):
        again, same = gradients(limit)
        assert (encoded.count(0), encoded.count(1)) == (1 if fits else 2, 1), "two chunks in a budget: once each"
        assert torch.equal(loss, again)
        assert all(torch.equal(found[name], same[name]) for name in same)
    monkeypatch.setattr(gradient_cache, "_waits", lambda chunks: 0)
    expected, wanted = gradients()
    assert encoded.count(1) == 2
    assert torch.equal(loss, expected)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert all(gradient.any() for name, gradient in found.items() if name.endswith("query.weight"))


def _gradients_of(encoder: MaskedPrediction, parts: Sequence[Chunk], contrast: Contrast | None) -> dict[str, Tensor]:
    encoder.model.zero_grad()
    backpropagate(encoder, parts, contrast)
    return textbook.gradients(encoder.model)


def test_the_chunking_does_not_change_the_gradient_without_dropout() -> None:
    encoder = _condenser(dropout=0.0)
    whole = _gradients_of(encoder, ROWS.cut([12]), span_contrast)
    for sizes in CHUNKINGS.values():
        assert textbook.worst(_gradients_of(encoder, ROWS.cut(sizes), span_contrast), whole) < 1e-9


@pytest.mark.parametrize("weight", [1.0, 2.0])
def test_without_contrast_it_is_gradient_accumulation_over_the_masked_tokens_of_the_whole_batch(weight: float) -> None:
    encoder = _condenser(dropout=0.0, weight=weight)
    model = encoder.model
    output = textbook.condenser(model.language_model, list(model.head), 1, True, ROWS.padded)
    assert output.head is not None
    assert output.late is not None
    means = {"mlm_head": output.head.sum() / len(ROWS.masked), "mlm_late": output.late.sum() / len(ROWS.masked)}
    (weight * sum(means.values())).backward()
    expected = textbook.gradients(model)
    for sizes in CHUNKINGS.values():
        assert textbook.worst(_gradients_of(encoder, ROWS.cut(sizes), None), expected) < 1e-9
        losses = backpropagate(encoder, ROWS.cut(sizes), None)
        assert losses.keys() == means.keys()
        for name, mean in means.items():
            assert float(losses[name]) == pytest.approx(weight * float(mean.detach()), rel=1e-12)


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_each_loss_of_an_autoencoder_is_the_weighted_mean_over_its_own_tokens_whatever_the_chunking(kind: Kind) -> None:
    weights = {"mlm_late": 0.5, "mlm_context": 2.0}
    encoder, contexts = _autoencoder(kind, dropout=0.0, weight=weights)
    assert len(ROWS.masked) != len(contexts.masked)
    model = encoder.model
    output = textbook.autoencoder(model.language_model, list(model.decoder), kind, ROWS.padded, contexts.padded)
    means = {
        "mlm_late": 0.5 * output.late.sum() / len(ROWS.masked),
        "mlm_context": 2.0 * output.context.sum() / len(contexts.masked),
    }
    sum(means.values()).backward()
    expected = textbook.gradients(model)
    for cut in [*CHUNKINGS.values(), 30]:
        model.zero_grad()
        losses = backpropagate(encoder, textbook.paired(ROWS, contexts, cut), None)
        assert textbook.worst(textbook.gradients(model), expected) < 1e-9
        assert losses.keys() == means.keys()
        for name, mean in means.items():
            assert float(losses[name]) == pytest.approx(float(mean.detach()), rel=1e-12)


def test_a_batch_without_any_masked_token_gives_the_contrasts_gradient_alone() -> None:
    rows = textbook.rows([6, 4, 9, 7], without=range(4))
    model = _condenser(dropout=0.0).model
    encoder = MaskedPrediction(model, masked=0)
    losses = backpropagate(encoder, rows.cut([3, 1]), span_contrast)
    assert float(losses["mlm_head"]) == float(losses["mlm_late"]) == 0.0
    assert all(torch.isfinite(gradient).all() for gradient in textbook.gradients(model).values())
    assert any(gradient.any() for gradient in textbook.gradients(model.encoder).values())


@pytest.mark.parametrize("contrast", [span_contrast, None])
@pytest.mark.parametrize("sizes", [[12], [5, 5, 2]])
def test_bf16_is_close_to_fp32_and_loses_no_parameters_gradient(sizes: list[int], contrast: Contrast | None) -> None:
    model = Condenser(textbook.language_model(hidden=32), CondenserShape(2, 1, True)).float().train()
    with torch.no_grad():
        for parameter in model.parameters():  # vectors of a usual size, so that the softmax is not a step
            parameter.mul_(0.3)
    encoder = MaskedPrediction(model, len(ROWS.masked))
    exact = _gradients_of(encoder, ROWS.cut(sizes), contrast)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = _gradients_of(encoder, ROWS.cut(sizes), contrast)
    assert {gradient.dtype for gradient in rounded.values()} == {torch.float32}
    flat, other = (torch.cat([gradient.flatten() for gradient in each.values()]) for each in (exact, rounded))
    assert float(nn.functional.cosine_similarity(flat, other, dim=0)) > 0.999
    assert float((flat - other).norm() / flat.norm()) < 0.03


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_is_close_to_fp32_for_autoencoders(kind: Kind) -> None:
    model = MaskedAutoEncoder(textbook.language_model(hidden=32), decoder_shape(kind)).float().train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.3)
    contexts = textbook.contexts(kind, CONTEXTS)
    encoder = MaskedPrediction(model, {"mlm_late": len(ROWS.masked), "mlm_context": len(contexts.masked)})
    found = []
    for precise in (True, False):
        torch.manual_seed(5)
        with torch.autocast("cpu", torch.bfloat16, enabled=not precise):
            gradients = _gradients_of(encoder, textbook.paired(ROWS, contexts, [5, 5, 2]), span_contrast)
        assert {gradient.dtype for gradient in gradients.values()} == {torch.float32}
        found.append(torch.cat([gradient.flatten() for gradient in gradients.values()]))
    assert float((found[0] - found[1]).norm() / found[0].norm()) < 0.03


@pytest.mark.parametrize("sizes", [[12], [5, 5, 2]])
def test_a_backward_that_scales_its_loss_as_fp16_does_scales_the_whole_gradient(sizes: list[int]) -> None:
    encoder = _condenser(dropout=0.0)
    plain = _gradients_of(encoder, ROWS.cut(sizes), span_contrast)
    encoder.model.zero_grad()
    losses = backpropagate(encoder, ROWS.cut(sizes), span_contrast, lambda loss: (loss * 1024.0).backward())
    scaled = textbook.gradients(encoder.model)
    assert textbook.worst({name: gradient / 1024.0 for name, gradient in scaled.items()}, plain) < 1e-12
    unscaled = backpropagate(encoder, ROWS.cut(sizes), span_contrast)
    assert all(torch.equal(loss, unscaled[name]) for name, loss in losses.items()), "the losses were scaled too"


def test_a_chunk_that_has_nothing_to_predict_is_refused_by_the_pretraining_loss() -> None:
    (chunk,) = chunks(ROWS.flat, ROWS.starts, 10**6, textbook.PAD)
    with pytest.raises(ValueError, match="needs masked positions"):
        _condenser(dropout=0.0).encode(chunk)


def test_bf16_gives_each_of_two_towers_its_gradient() -> None:
    model = BiEncoder(*(Encoder(textbook.language_model(hidden=32).base_model).float() for _ in range(2)))
    asked, read = textbook.rows([5, 7, 4]), textbook.rows([12, 6, 9], seed=1)
    parts = chunks(asked.flat, asked.starts, 10**6, textbook.PAD, tower=QUERY)
    parts += chunks(read.flat, read.starts, 10**6, textbook.PAD, tower=PASSAGE, rows=range(3, 6))

    def contrast(vectors: Tensor) -> Tensor:
        return info_nce(vectors[:3], vectors[3:], torch.arange(3), None, 1.0)

    with torch.autocast("cpu", torch.bfloat16):
        backpropagate(model, parts, contrast)
    for tower in (model.query, model.passage):
        assert all(layer.attention.self.value.weight.grad is not None for layer in tower.model.encoder.layer)
