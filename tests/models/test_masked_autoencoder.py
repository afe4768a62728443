"""The auto-encoders are wired as the papers say, see nothing that they shall predict, and start as they are told."""

import copy
from collections.abc import Sequence
from dataclasses import replace

import pytest
import textbook
import torch
from torch import Tensor, nn

from condensery.errors import UserError
from condensery.models import masked_autoencoder
from condensery.models.masked_autoencoder import DecoderShape, Init, MaskedAutoEncoder, decoder_shape, sampled_sets
from condensery.tokens.batches import Chunk

LENGTHS, CONTEXTS = [12, 6, 9, 4, 12], [7, 11, 4, 12, 3]
PASSAGES = textbook.rows(LENGTHS, without=[1])
CUTS: list[Sequence[int] | int] = [[5], [1, 1, 1, 1, 1], 24]  # rows a chunk, or a budget
SHAPES = [DecoderShape("masked", 1), DecoderShape("masked", 2), DecoderShape("causal", 1), DecoderShape("causal", 2)]
ENHANCED = DecoderShape("enhanced", 1, 0.4)


def _model(family: str, shape: DecoderShape, dropout: float = 0.0, init: Init = "random") -> MaskedAutoEncoder:
    model = MaskedAutoEncoder(textbook.language_model(family, dropout=dropout), shape, init).double().train()
    textbook.perturbed(model.decoder)
    return model


def _contexts(shape: DecoderShape) -> textbook.Rows:
    return textbook.contexts(shape.kind, CONTEXTS, without=[2])


def _recorded(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The random sets (k, t) of each chunk that goes through the decoder, in their order."""
    found: list[Tensor] = []

    def recorded(places: Tensor, width: int, keep: float) -> Tensor:
        found.append(sampled_sets(places, width, keep))
        return found[-1]

    monkeypatch.setattr(masked_autoencoder, "sampled_sets", recorded)
    return found


def _sets_by_row(parts: Sequence[Chunk], drawn: Sequence[Tensor]) -> Tensor:
    """What each token of each row of the batch sees, (n, t, t)."""
    longest = max(CONTEXTS)
    sets = torch.zeros(len(CONTEXTS), longest, longest, dtype=torch.bool)
    for part, visible in zip(parts, drawn, strict=True):
        assert part.context is not None
        width = part.context.input_ids.shape[1]
        for place, seen in zip(part.context.masked.tolist(), visible, strict=True):
            sets[part.rows[place // width], place % width, :width] = seen[:longest]
    return sets


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, ENHANCED], ids=lambda shape: f"{shape.kind} {shape.layers}")
@pytest.mark.parametrize("family", textbook.FAMILIES)
def test_losses_and_gradients_equal_the_textbooks(
    family: str, shape: DecoderShape, cut: Sequence[int] | int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = _recorded(monkeypatch)
    model = _model(family, shape)
    reference = copy.deepcopy(nn.ModuleDict({"language_model": model.language_model, "decoder": model.decoder}))
    contexts = _contexts(shape)
    weights = torch.linspace(-1, 1, 16 * len(LENGTHS)).double().view(len(LENGTHS), 16)
    found, vectors = {"mlm_late": 0.0, "mlm_context": 0.0}, torch.empty(len(LENGTHS), 16).double()
    parts = textbook.paired(PASSAGES, contexts, cut)
    for part in parts:
        cls, losses = model.encode(part)
        assert {name: len(loss) for name, loss in losses.items()} == {
            "mlm_late": len(part.masked),
            "mlm_context": len(part.context.masked),
        }
        (sum(loss.sum() for loss in losses.values()) + (cls * weights[part.rows]).sum()).backward()
        vectors[part.rows] = cls.detach()
        found = {name: found[name] + float(loss.detach().sum()) for name, loss in losses.items()}
    sets = _sets_by_row(parts, drawn) if shape is ENHANCED else None
    language_model, decoder = reference["language_model"], list(reference["decoder"])
    expected = textbook.autoencoder(language_model, decoder, shape.kind, PASSAGES.padded, contexts.padded, sets)
    torch.testing.assert_close(vectors, expected.cls, rtol=0, atol=1e-11)
    assert found["mlm_late"] == pytest.approx(float(expected.late.detach().sum()), rel=1e-11)
    assert found["mlm_context"] == pytest.approx(float(expected.context.detach().sum()), rel=1e-11)
    (expected.late.sum() + expected.context.sum() + (expected.cls * weights).sum()).backward()
    ours = textbook.gradients(nn.ModuleDict({"language_model": model.language_model, "decoder": model.decoder}))
    assert textbook.worst(ours, textbook.gradients(reference)) < 1e-10


@pytest.mark.parametrize("shape", [*SHAPES, ENHANCED], ids=lambda shape: f"{shape.kind} {shape.layers}")
def test_each_loss_of_the_decoder_is_that_of_its_token(shape: DecoderShape, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = _recorded(monkeypatch)
    model, contexts = _model("bert", shape), _contexts(shape)
    parts = textbook.paired(PASSAGES, contexts, [5])
    losses = model.encode(parts[0])[1]["mlm_context"]
    sets = _sets_by_row(parts, drawn) if shape is ENHANCED else None
    layers = list(model.decoder)
    expected = textbook.autoencoder(model.language_model, layers, shape.kind, PASSAGES.padded, contexts.padded, sets)
    torch.testing.assert_close(losses, expected.context[contexts.padded[2] != -100], rtol=1e-11, atol=0)


def _changed_by(model: MaskedAutoEncoder, shape: DecoderShape, place: int) -> list[bool]:
    """For each predicted token of a context: does another id at ``place`` change its loss? The targets stay."""
    contexts = textbook.contexts(shape.kind, [10])
    (chunk,) = textbook.paired(textbook.rows([8]), contexts, [1])
    ids = chunk.context.input_ids.clone()
    ids[0, place] = 5 + (ids[0, place] + 1) % 50
    results = []
    for context in (chunk.context, replace(chunk.context, input_ids=ids)):
        torch.manual_seed(3)
        results.append(model.encode(replace(chunk, context=context))[1]["mlm_context"])
    return (results[0] != results[1]).tolist()


def test_a_causal_decoder_reads_what_stands_before_a_token_and_nothing_else() -> None:
    shape = DecoderShape("causal", 2)
    # tokens 1 to 9 are predicted; 5 is read by those behind it
    assert _changed_by(_model("bert", shape), shape, 5) == [False] * 5 + [True] * 4


def test_an_enhanced_decoder_reads_all_but_the_token_itself_where_nothing_is_left_out() -> None:
    shape = DecoderShape("enhanced", 1, mask_rate=0.0)
    assert _changed_by(_model("bert", shape), shape, 5) == [place != 5 for place in range(1, 9)]
    shape = DecoderShape("enhanced", 1, mask_rate=1.0)
    assert _changed_by(_model("bert", shape), shape, 5) == [False] * 8


@pytest.mark.parametrize("shape", [*SHAPES[::2], ENHANCED], ids=lambda shape: shape.kind)
def test_the_decoder_trains_the_encoder_through_the_cls_vector_alone(shape: DecoderShape) -> None:
    model = _model("bert", shape)
    (chunk,) = textbook.paired(PASSAGES, _contexts(shape), [5])
    cls, losses = model.encode(chunk)
    last = model.encoder.model.encoder.layer[-1].output.dense.weight
    (of_cls,) = torch.autograd.grad(losses["mlm_context"].sum(), cls, retain_graph=True)
    found, through = (
        torch.autograd.grad(*what, retain_graph=True)[0]
        for what in ((losses["mlm_context"].sum(), last), ((cls * of_cls).sum(), last))
    )
    assert (of_cls.abs().sum(dim=1) > 0).tolist() == [True, True, False, True, True], "row 2 predicts nothing"
    torch.testing.assert_close(found, through, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("shape", [*SHAPES, ENHANCED], ids=lambda shape: f"{shape.kind} {shape.layers}")
def test_the_late_cls_is_the_same_with_and_without_prediction_also_under_dropout(shape: DecoderShape) -> None:
    model = _model("bert", shape, dropout=0.3)
    (chunk,) = textbook.paired(PASSAGES, _contexts(shape), [5])
    torch.manual_seed(4)
    alone = model.vectors(chunk)
    torch.manual_seed(4)
    assert torch.equal(model.encode(chunk)[0], alone)


@pytest.mark.parametrize("shape", [*SHAPES[1::2], ENHANCED], ids=lambda shape: shape.kind)
def test_a_chunk_without_predicted_tokens_gives_empty_losses_that_can_be_differentiated(shape: DecoderShape) -> None:
    model = _model("roberta", shape)
    empty = textbook.contexts(shape.kind, [6, 4], without=[0, 1])
    (chunk,) = textbook.paired(textbook.rows([5, 4], without=[0, 1]), empty, [2])
    vectors, losses = model.encode(chunk)
    assert {loss.shape for loss in losses.values()} == {(0,)}
    (vectors.sum() + sum(loss.sum() for loss in losses.values())).backward()
    assert all(torch.isfinite(gradient).all() for gradient in textbook.gradients(model).values())


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.5, 1.0])
def test_a_token_sees_the_first_never_itself_and_each_other_with_the_given_probability(keep: float) -> None:
    torch.manual_seed(0)
    places = torch.arange(1, 10).repeat(2000)
    visible = sampled_sets(places, 10, keep)
    assert visible[:, 0].all()
    assert not visible.gather(1, places[:, None]).any()
    other = torch.arange(10) != places[:, None]
    other[:, 0] = False
    seen = visible[other].double().view(-1, 8)
    assert float(seen.mean()) == pytest.approx(keep, abs=5 * (keep * (1 - keep) / seen.numel()) ** 0.5 + 1e-12)
    if 0 < keep < 1:  # no two columns and no two neighbouring rows are alike
        assert torch.allclose(torch.corrcoef(seen.T), torch.eye(8).double(), atol=0.05)
        assert torch.corrcoef(torch.stack([seen[:-1].flatten(), seen[1:].flatten()]))[0, 1].abs() < 0.02


def test_the_random_sets_differ_from_call_to_call_and_are_replayed_with_torchs_generator() -> None:
    model = _model("bert", ENHANCED)
    (chunk,) = textbook.paired(PASSAGES, _contexts(ENHANCED), [5])
    state = torch.get_rng_state()
    first, second = (model.encode(chunk)[1]["mlm_context"] for _ in range(2))
    torch.set_rng_state(state)
    assert torch.equal(model.encode(chunk)[1]["mlm_context"], first)
    assert not torch.equal(first, second)


def test_a_new_decoder_is_random_by_the_seed_or_a_copy_of_the_last_layers() -> None:
    def decoder(seed: int, init: Init) -> MaskedAutoEncoder:
        language_model = textbook.language_model(layers=3, hidden=64, dropout=0.1)
        torch.manual_seed(seed)
        return MaskedAutoEncoder(language_model, DecoderShape("masked", 2), init)

    one, again, other = (decoder(seed, "random").decoder.state_dict() for seed in (7, 7, 8))
    assert all(torch.equal(value, again[name]) for name, value in one.items())
    assert not torch.equal(one["0.output.dense.weight"], other["0.output.dense.weight"])
    assert float(one["1.output.dense.weight"].std()) == pytest.approx(0.02, rel=0.1)
    model = decoder(7, "last")
    last = model.encoder.model.encoder.layer[1:].state_dict()
    copied = model.decoder.state_dict()
    assert copied.keys() == last.keys() == one.keys()
    assert all(torch.equal(value, copied[name]) for name, value in last.items())
    with torch.no_grad():
        model.decoder[0].output.dense.weight.zero_()
    assert model.encoder.model.encoder.layer[1].output.dense.weight.any(), "the layers are shared"


def test_the_papers_decoders_have_two_layers_and_the_enhanced_one() -> None:
    assert [decoder_shape(kind).layers for kind in ("masked", "causal", "enhanced")] == [2, 2, 1]
    assert decoder_shape("causal", 3, 0.1) == DecoderShape("causal", 3, 0.1)


@pytest.mark.parametrize(
    ("shape", "init", "match"),
    [
        (DecoderShape("enhanced", 2), "random", "enhanced has exactly one layer, not 2"),
        (DecoderShape("masked", 0), "random", "masked has at least one layer, not 0"),
        (DecoderShape("causal", 4), "last", "4 layers cannot copy the last layers of a backbone of 3"),
        (DecoderShape("enhanced", 1, 1.5), "random", "mask_rate .* not 1.5"),
    ],
)
def test_a_decoder_that_cannot_be_built_is_an_error_of_one_line(shape: DecoderShape, init: Init, match: str) -> None:
    with pytest.raises(UserError, match=match) as raised:
        MaskedAutoEncoder(textbook.language_model(), shape, init)
    assert "\n" not in str(raised.value)


def test_a_chunk_without_context_or_with_nothing_to_predict_is_refused() -> None:
    model = _model("bert", DecoderShape("masked", 1))
    (chunk,) = textbook.paired(PASSAGES, _contexts(model.shape), [5])
    bare = replace(chunk.context, masked=None, targets=None)
    for wrong in (
        replace(chunk, context=None),
        replace(chunk, context=bare),
        replace(chunk, masked=None, targets=None),
    ):
        with pytest.raises(ValueError, match="and a context with them"):
            model.encode(wrong)


def test_a_context_longer_than_the_backbones_positions_is_an_error_of_one_line() -> None:
    model = _model("bert", DecoderShape("masked", 1))
    (chunk,) = textbook.paired(textbook.rows([8]), textbook.rows([41]), [1])
    with pytest.raises(UserError, match=r"41 tokens.* 40 positions"):
        model.encode(chunk)
