"""``check_gradients`` finds what is wrong in a cached loss, and finds nothing in ours."""

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import textbook
import torch
import trainings
from slow import slow_except
from torch import Tensor, distributed, nn

from condensery import RetrievalLoss, UserError, cached_backward, check_gradients
from condensery.losses.gradient_report import LOSS, GradientReport
from condensery.models.biencoder import BiEncoder
from condensery.models.encoder import Encoder
from condensery.training.modules.biencoder import BiEncoderModule
from condensery.training.modules.optimisation import TrainingModule


class Model(nn.Module):
    """An encoder with dropout, and a scale that the loss reads."""

    def __init__(self, dropout: float = 0.3) -> None:
        super().__init__()
        self.inner, self.out, self.dropout = nn.Linear(8, 6), nn.Linear(6, 5), nn.Dropout(dropout)
        self.log_scale = nn.Parameter(torch.tensor(0.4))

    def forward(self, rows: Tensor) -> Tensor:
        return self.out(self.dropout(torch.tanh(self.inner(rows))))

    def contrast(self, queries: Tensor, passages: Tensor) -> Tensor:
        scores = queries @ passages.T * self.log_scale.exp()
        return nn.functional.cross_entropy(scores, torch.arange(len(queries)))


Pieces = Sequence[Any]
Part = tuple[Callable[[Any], Tensor], Pieces]


def handmade(
    loss: Callable[..., Tensor],
    *parts: Part,
    sign: float = 1.0,
    scaled: bool = False,
    replays: bool = True,
    own_weights: bool = True,
    last: bool = True,
) -> Tensor:
    """A gradient cache as one writes it in an afternoon, with faults that can be chosen."""
    states: list[Tensor] = []
    vectors: list[list[Tensor]] = []
    for encode, pieces in parts:
        vectors.append([])
        for piece in pieces:
            states.append(torch.get_rng_state())
            with torch.no_grad():
                vectors[-1].append(encode(piece))
    given = [torch.cat(found).requires_grad_() for found in vectors]
    value = loss(*given)
    if own_weights:
        value.backward()
        gradients = [one.grad for one in given]
    else:
        gradients = list(torch.autograd.grad(value, given))
    number = len(states)
    begun = iter(states)
    for (encode, pieces), gradient in zip(parts, gradients, strict=True):
        rows = gradient.split([len(piece) for piece in pieces])
        for index, (piece, share) in enumerate(zip(pieces, rows, strict=True)):
            state = next(begun)
            if not last and index == len(pieces) - 1:
                continue
            if replays:
                torch.set_rng_state(state)
            found = encode(piece)
            if found.requires_grad:
                (sign * (found * share).sum() / (number if scaled else 1)).backward()
    return value.detach()


def numbers(rows: int, seed: int) -> Tensor:
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(seed))


def check(cached: Callable[..., Any] = cached_backward, dropout: float = 0.3, **options: Any) -> GradientReport:
    torch.manual_seed(0)
    model = Model(dropout)
    parts = (model, numbers(6, 1).split(4)), (model, numbers(6, 2).split(4))
    return check_gradients(model.contrast, *parts, cached=cached, **options)


@pytest.mark.parametrize(
    "constant", [lambda q, p: (q @ p.T - 1e9).clamp(min=0).sum(), lambda q, p: 0 * (q @ p.T).sum()]
)
def test_a_loss_that_does_not_move_on_this_batch_is_no_proof(constant: Callable[..., Tensor]) -> None:
    model, rows = Model(), torch.randn(6, 8)
    with pytest.raises(UserError, match="every gradient is 0"):
        check_gradients(constant, (model, rows.split(2)), (model, rows.split(3)))


def test_ours_and_a_right_one_by_hand_pass() -> None:
    for way in (cached_backward, handmade):
        report = check(way)
        assert report, report
        assert "in chunks of one row, with dropout" in str(report)
        assert "in uneven chunks, part 1 frozen, with dropout" in str(report)
        assert len(report.outcomes) == 10
        report.raise_if_wrong()


FAULTS = {
    "sign": ({"sign": -1.0}, "the sign is wrong"),
    "a factor": ({"sign": 0.5}, "a constant factor: every gradient is 0.5 times"),
    "scaled by chunks": (
        {"scaled": True},
        "depends on how .*: 0.5 times the right one with 2 .* 0.0833 times .* with 12 chunks",
    ),
    "dropout not replayed": ({"replays": False}, "dropout is not replayed"),
    "weights of the loss left out": (
        {"own_weights": False},
        r"weights of the loss get no gradient \(Model.log_scale\)",
    ),
    "the last chunk left out": (
        {"last": False},
        "chunks are left out: some weights have no gradient in one chunk, without dropout",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_told(fault: str) -> None:
    options, told = FAULTS[fault]
    report = check(partial(handmade, **options))
    assert not report
    with pytest.raises(UserError, match=told):
        report.raise_if_wrong()
    assert str(report).count("probably:") == len(report.causes) == 1, report


def rounded(loss: Callable[..., Tensor], *parts: Part) -> Tensor:
    """The gradients of vectors in half precision."""

    def of(encode: Callable[[Any], Tensor], piece: Any) -> Tensor:
        vectors = encode(piece)
        if vectors.requires_grad:
            vectors.register_hook(lambda gradient: gradient.half().to(gradient.dtype))
        return vectors

    return cached_backward(loss, *((partial(of, encode), pieces) for encode, pieces in parts))


def misprinted(loss: Callable[..., Tensor], *parts: Part) -> Tensor:
    """The gradient is right and the number is not."""
    return cached_backward(loss, *parts) * 2


@pytest.mark.parametrize(
    ("cached", "said"),
    [
        (rounded, "probably: the gradients are nearly right: something is rounded, such as"),
        (misprinted, "the loss itself is wrong, 2 times the right one\n"),
    ],
)
def test_what_is_nearly_right_is_told(cached: Callable[..., Tensor], said: str) -> None:
    report = check(cached)
    assert not report
    assert said in f"{report}\n"
    assert len(report.causes) == 1


def gathered_without_gradient(loss: Callable[..., Tensor], *parts: Part, own_gradient: bool = True) -> Tensor:
    """Negatives of all processes: each computes the loss of its queries over all passages, and DDP takes the mean."""
    if not distributed.is_initialized():
        return handmade(loss, *parts)
    rank, world = distributed.get_rank(), distributed.get_world_size()

    def own(queries: Tensor, passages: Tensor) -> Tensor:
        found = [torch.empty_like(passages) for _ in range(world)]
        distributed.all_gather(found, passages.detach())
        if own_gradient:
            found[rank] = passages
        labels = torch.arange(len(queries)) + rank * len(queries)
        return nn.functional.cross_entropy(queries @ torch.cat(found).T * SCALE.exp(), labels)

    return handmade(own, *parts)


SCALE = nn.Parameter(torch.tensor(0.4))


def scaled_contrast(queries: Tensor, passages: Tensor) -> Tensor:
    scores = queries @ passages.T * SCALE.exp()
    return nn.functional.cross_entropy(scores, torch.arange(len(queries)))


def summed(loss: Callable[..., Tensor], *parts: Part) -> Tensor:
    """Ours, but for the mean over the processes."""
    size = distributed.get_world_size() if distributed.is_initialized() else 1
    from condensery.distributed import gathered

    return cached_backward(lambda *all: loss(*map(gathered, all)) * size, *parts) / size


def test_in_two_processes_ours_passes_with_dropout_and_a_lost_gradient_of_gathered_negatives_is_found() -> None:
    torch.manual_seed(0)
    model = Model(0.2)
    parts = (model, [numbers(6, 1)]), (model, [numbers(6, 2)])
    right = check_gradients(scaled_contrast, *parts, processes=2)
    assert right, right
    assert "in uneven chunks, 2 processes, with dropout" in str(right)
    wrong = check_gradients(scaled_contrast, *parts, processes=2, cached=gathered_without_gradient)
    assert [one.processes for one in wrong.outcomes if not one] == [2, 2], wrong
    assert "the vectors of the other process carry no gradient" in wrong.causes[0]
    twice = check_gradients(scaled_contrast, *parts, processes=2, cached=summed)
    assert "with 2 processes every gradient is 2 times the right one" in twice.causes[0]


def fails(loss: Callable[..., Tensor], *parts: Part) -> Tensor:
    if distributed.is_initialized():
        raise ValueError("no such thing")
    return cached_backward(loss, *parts)


def test_what_ends_in_an_exception_is_told() -> None:
    torch.manual_seed(0)
    model = Model(0.0)
    report = check_gradients(
        model.contrast, (model, [numbers(4, 1)]), (model, [numbers(4, 2)]), cached=fails, processes=2
    )
    assert str(report).count("ValueError: no such thing") == 1
    assert "2 processes` ends in an exception" in report.causes[0]

    def stubborn(loss: Callable[..., Tensor], *parts: Part) -> Tensor:
        for encode, pieces in parts:
            encode(pieces[0]).sum().backward()
        return loss(*(torch.cat([encode(piece) for piece in pieces]) for encode, pieces in parts))

    assert "does not require grad" in str(check(stubborn))


def test_an_encoder_that_draws_from_elsewhere_is_told() -> None:
    model = Model(0.0)

    def encode(rows: Tensor) -> Tensor:
        return model(rows) * (1 + random.random())

    report = check_gradients(model.contrast, (encode, [numbers(4, 1)]), (encode, [numbers(4, 2)]))
    assert not report
    assert "draw its random numbers with torch" in report.causes[0]


def test_everything_is_afterwards_what_it_was() -> None:
    model = Model()
    normalised = nn.Sequential(nn.BatchNorm1d(8), model)
    free = torch.tensor(1.5, requires_grad=True)
    model.out.weight.grad = torch.ones_like(model.out.weight)
    before = {name: value.clone() for name, value in normalised.state_dict().items()}
    state = torch.get_rng_state()
    report = check_gradients(
        lambda a, b: model.contrast(a, b * free), (normalised, [numbers(4, 1)]), (model, [numbers(4, 2)])
    )
    assert "free" in [one.weight for each in check_left_out(model, free).outcomes for one in each.differences]
    assert report, report
    assert "not tried in chunks of one row, with dropout: ValueError: Expected more than 1 value" in str(report)
    assert all(torch.equal(value, before[name]) for name, value in normalised.state_dict().items())
    assert model.out.weight.grad is not None
    assert torch.equal(model.out.weight.grad, torch.ones_like(model.out.weight))
    assert free.grad is None
    assert model.training
    assert torch.get_default_dtype() == torch.float32
    assert torch.equal(state, torch.get_rng_state())


def check_left_out(model: Model, free: Tensor) -> GradientReport:
    def loss(queries: Tensor, passages: Tensor) -> Tensor:
        return nn.functional.cross_entropy(queries @ passages.T * free, torch.arange(len(queries)))

    parts = (model, [numbers(4, 1)]), (model, [numbers(4, 2)])
    return check_gradients(loss, *parts, cached=partial(handmade, own_weights=False))


def test_chunks_of_texts_of_mappings_and_of_several_widths_are_cut() -> None:
    words, model = nn.Embedding(10, 8), Model()

    def of_texts(texts: list[str]) -> Tensor:
        return model(torch.stack([words(torch.tensor([len(text) % 10, 3])).sum(dim=0) for text in texts]))

    def of_ids(chunk: dict[str, Any]) -> Tensor:
        assert chunk["other"] is None
        return model(words(chunk["ids"]).sum(dim=1))

    texts = [["a", "to", "see"], ["four", "fives"]]
    ids = [
        {"ids": torch.tensor([[1, 2], [3, 4]]), "other": None},
        {"ids": torch.tensor([[1, 2, 6]] * 3), "other": None},
    ]
    report = check_gradients(model.contrast, (of_texts, texts), (of_ids, ids))
    assert report, report
    assert len(report.outcomes) == 10


@pytest.mark.parametrize("kind", slow_except(["cocondenser", "cotmae", "retromae", "ict"], "cocondenser", "cotmae"))
def test_our_modules_pass_with_their_data(kind: str, tmp_path: Path) -> None:
    module, data, _ = trainings.run(kind, tmp_path, dropout=0.2, layers=2)
    report = check_gradients(module.train(), data)
    assert report, report
    assert any("with dropout" in outcome.setting for outcome in report.outcomes)


class Learned(RetrievalLoss):
    """Weights in ``forward`` alone, and in both ``forward`` and ``features``."""

    def prepare(self, hidden_size: int, seed: int) -> None:
        torch.manual_seed(seed)
        self.head, self.scale = nn.Linear(hidden_size, 4), nn.Parameter(torch.tensor(0.7))

    def features(self, vectors: Tensor, tower: int) -> Tensor:
        return self.head(vectors)

    def forward(self, queries: Tensor, passages: Tensor, positive: Tensor, known: Tensor | None = None) -> Tensor:
        scores = queries @ passages.T * self.scale + self.head.bias.sum()
        return nn.functional.cross_entropy(scores * (1 + self.head.weight.mean()), positive)


NESTED = {"name": "matryoshka", "dims": [16, 5, 2], "weights": [1, 0.5, 2], "loss": {"name": "learning_to_rank"}}
LOSSES = [("info_nce", False), ("learning_to_rank", True), (Learned(), False), (NESTED, False)]


@pytest.mark.parametrize(
    ("loss", "shared"), LOSSES, ids=["info_nce", "learning_to_rank", "weights in forward", "nested"]
)
def test_all_losses_pass_in_two_processes_with_one_tower_and_two(loss: Any, shared: bool, tmp_path: Path) -> None:
    models = [textbook.language_model(layers=1, dropout=0.1).float() for _ in range(1 if shared else 2)]
    towers = [Encoder(model.base_model) for model in models]
    module: TrainingModule = BiEncoderModule(BiEncoder(*towers), loss=loss, **trainings.optimiser()).train()
    report = check_gradients(module, trainings.triple_batches(tmp_path, negatives=1), processes=2)
    assert report, report
    names = [outcome.setting for outcome in report.outcomes]
    assert "in uneven chunks, 2 processes, without dropout" in names
    assert "in uneven chunks, query frozen, with dropout" in names


def test_a_batch_alone_is_cut_as_well(tmp_path: Path) -> None:
    module, _, _ = trainings.run("biencoder", tmp_path, layers=1)
    report = check_gradients(module, trainings.triple_batches(tmp_path, negatives=1).batch(0), frozen=False)
    assert report, report
    assert "in chunks of one row, with dropout" in str(report)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda m: check_gradients(m.contrast, (m, [numbers(2, 1)]), processes=0), "processes must be"),
        (
            lambda m: check_gradients(m.contrast, m, [numbers(2, 1)]),
            "part 0 must be a tuple of an encoder and its chunks",
        ),
        (lambda m: check_gradients(m.contrast, (m, [])), "part 0 has no chunk"),
        (lambda m: check_gradients(m.contrast), "no parts are given; give at least one"),
        (lambda m: check_gradients(m.contrast, (m, [numbers(2, 1)])), "the plain loss cannot be computed: TypeError"),
        (
            lambda m: check_gradients(lambda rows: (rows * torch.nan).sum(), (m, numbers(2, 1))),
            "the loss itself is not fin",
        ),
        (
            lambda m: check_gradients(lambda rows: (rows * 0).abs().sqrt().sum(), (m, numbers(2, 1))),
            "the gradient of .* not",
        ),
        (lambda m: check_gradients(torch.mean, (lambda rows: rows, [numbers(2, 1)])), "has requires_grad=True"),
    ],
)
def test_what_cannot_be_checked_is_one_line(wrong: Callable[[Model], Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        wrong(Model())
    assert LOSS
