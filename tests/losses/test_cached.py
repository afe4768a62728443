"""The gradient cache with encoders, chunks and losses of one's own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from condensery import UserError, cached_backward


class Towers(nn.Module):
    """Two encoders with dropout; chunks are tensors of ids (b, t), or mappings with them."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.words, self.out, self.dropout = nn.Embedding(30, 6), nn.Linear(6, 5), nn.Dropout(dropout)

    def queries(self, ids: Tensor) -> Tensor:
        return self.out(self.dropout(self.words(ids).mean(dim=1)))

    def passages(self, chunk: dict[str, Tensor]) -> Tensor:
        return self.dropout(torch.tanh(self.words(chunk["input_ids"]).sum(dim=1)) @ self.out.weight.T)


def contrast(queries: Tensor, passages: Tensor) -> Tensor:
    return nn.functional.cross_entropy(queries @ passages.T, torch.arange(len(queries)))


def batch() -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(4)
    return torch.randint(0, 30, (6, 4), generator=random), torch.randint(0, 30, (9, 7), generator=random)


def gradients(model: nn.Module, back: Callable[[], Any]) -> tuple[float, list[Tensor]]:
    model.zero_grad()
    loss = back()
    return float(loss.detach()), [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]


@pytest.mark.parametrize("sizes", [(6, 9), (2, 4), (1, 1)])
def test_the_gradient_is_that_of_the_whole_batch(sizes: tuple[int, int]) -> None:
    torch.manual_seed(0)
    model, (queries, passages) = Towers(0.0).double(), batch()

    def whole() -> Tensor:
        loss = contrast(model.queries(queries), model.passages({"input_ids": passages}))
        loss.backward()
        return loss

    def cached() -> Tensor:
        pieces = [{"input_ids": part, "extra": None} for part in passages.split(sizes[1])]
        return cached_backward(contrast, (model.queries, queries.split(sizes[0])), (model.passages, pieces))

    (loss, expected), (ours, found) = gradients(model, whole), gradients(model, cached)
    assert ours == pytest.approx(loss, abs=1e-12)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_both_passes_of_a_chunk_draw_the_same_dropout() -> None:
    """By the definition of the derivative: a step along the gradient changes the loss under the very same draws."""
    torch.manual_seed(0)
    model, (queries, passages) = Towers(0.4).double(), batch()

    def loss() -> Tensor:
        torch.manual_seed(9)
        parts = [{"input_ids": part} for part in passages.split(2)]
        return cached_backward(contrast, (model.queries, queries.split(2)), (model.passages, parts))

    before, gradient = gradients(model, loss)
    step, square = 1e-6, sum(float((one * one).sum()) for one in gradient)
    with torch.no_grad():
        for weight, one in zip(model.parameters(), gradient, strict=True):
            weight += step * one
    after, _ = gradients(model, loss)
    assert after - before == pytest.approx(step * square, rel=1e-3)


def test_gradients_add_up_and_any_backward_is_called() -> None:
    model, (queries, _) = Towers(0.0), batch()
    seen: list[Tensor] = []

    def scaled(value: Tensor) -> None:
        seen.append(value)
        (2 * value).backward()

    def once(backward: Callable[[Tensor], None]) -> None:
        halves = queries.split(3)
        cached_backward(contrast, (model.queries, halves), (model.queries, halves), backward=backward)

    once(Tensor.backward)
    plain = model.out.weight.grad.clone()
    once(scaled)
    assert len(seen) == 4
    torch.testing.assert_close(model.out.weight.grad, 3 * plain)


def test_a_part_without_chunks_is_one_line() -> None:
    model, (queries, _) = Towers(0.0), batch()
    with pytest.raises(UserError, match="part 1 has no chunk"):
        cached_backward(contrast, (model.queries, [queries]), (model.passages, []))


class Counted:
    """An encoder that knows how often it was called."""

    def __init__(self, encode: Callable[[Tensor], Any]) -> None:
        self.encode, self.calls = encode, 0

    def __call__(self, rows: Tensor) -> Any:
        self.calls += 1
        return self.encode(rows)


def rows_of(seed: int, rows: int = 6) -> Tensor:
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(seed))


LOSSES = ("temperature", "bias", "head", "weights of the encoder", "computed before")


@pytest.mark.parametrize("sizes", [(6, 6), (2, 3), (1, 1)])
@pytest.mark.parametrize("kind", LOSSES)
def test_weights_that_the_loss_reads_get_the_gradient_of_the_whole_batch(kind: str, sizes: tuple[int, int]) -> None:
    torch.manual_seed(0)
    model, head = nn.Linear(8, 5).double(), nn.Linear(5, 5).double()
    scalar = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))
    hooked: list[Tensor] = []
    scalar.register_hook(lambda gradient: hooked.append(gradient) or gradient * 3)

    def made() -> Callable[..., Tensor]:
        before = scalar.exp()  # a tensor with a history of its own
        return {
            "temperature": lambda a, b: contrast(a * scalar.exp(), b),
            "bias": lambda a, b: contrast(torch.tanh(a + scalar), b),
            "head": lambda a, b: contrast(head(a), head(b)),
            "weights of the encoder": lambda a, b: contrast(a, b) + scalar * (model.weight**2).sum(),
            "computed before": lambda a, b: contrast(a * before, b),
        }[kind]

    a, b = rows_of(1).double(), rows_of(2).double()
    weights = nn.ModuleList([model, head, nn.ParameterList([scalar])])
    loss, expected = gradients(weights, lambda: cached_plain(made(), model, a, b))
    number = len(hooked)
    ours, found = gradients(
        weights, lambda: cached_backward(made(), (model, a.split(sizes[0])), (model, b.split(sizes[1])))
    )
    assert ours == pytest.approx(loss, abs=1e-12)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    assert len(hooked) == 2 * number, "a hook of a weight is called once"


def cached_plain(loss: Callable[..., Tensor], model: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    value = loss(model(a), model(b))
    value.backward()
    return value


def test_a_backward_that_scales_does_so_for_the_weights_of_the_loss_too() -> None:
    torch.manual_seed(0)
    model, scalar = nn.Linear(8, 5), nn.Parameter(torch.tensor(0.7))

    def loss(a: Tensor, b: Tensor) -> Tensor:
        return contrast(a * scalar.exp(), b)

    a, b = rows_of(1).split(2), rows_of(2).split(2)
    cached_backward(loss, (model, a), (model, b))
    plain = [model.weight.grad.clone(), scalar.grad.clone()]
    model.zero_grad()
    scalar.grad = None
    cached_backward(loss, (model, a), (model, b), backward=lambda value: (value * 1024).backward())
    for one, other in zip([model.weight.grad, scalar.grad], plain, strict=True):
        assert torch.equal(one, other * 1024)


@pytest.mark.parametrize("frozen", [(0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize("sizes", [(6, 6), (2, 3)])
@pytest.mark.parametrize("way", ["weights", "no_grad", "vectors"])
def test_chunks_without_a_gradient_are_encoded_once(way: str, sizes: tuple[int, int], frozen: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    towers, scale = [nn.Linear(8, 5), nn.Linear(8, 5)], nn.Parameter(torch.tensor(0.7))
    given = [rows_of(1), rows_of(2)]
    encoders: list[Counted] = []
    for number, tower in enumerate(towers):
        encode: Callable[[Tensor], Tensor] = tower
        if number in frozen:
            tower.requires_grad_(way != "weights")
            if way == "no_grad":
                encode = torch.no_grad()(tower)
            elif way == "vectors":
                given[number] = tower(given[number]).detach()
                encode = lambda rows: rows  # noqa: E731
        encoders.append(Counted(encode))

    def loss(a: Tensor, b: Tensor) -> Tensor:
        return contrast(a * scale, b)

    parts = [(encode, rows.split(size)) for encode, rows, size in zip(encoders, given, sizes, strict=True)]
    everything = nn.ModuleList([*towers, nn.ParameterList([scale])])
    _, found = gradients(everything, lambda: cached_backward(loss, *parts))
    calls = [encode.calls for encode in encoders]

    def plain() -> Tensor:
        value = loss(*(encode.encode(rows) for encode, rows in zip(encoders, given, strict=True)))
        value.backward()
        return value

    _, expected = gradients(everything, plain)
    assert len(found) == len(expected) == 5 - 2 * len(frozen)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert [calls[number] for number in frozen] == [len(parts[number][1]) for number in frozen]


def test_some_chunks_of_a_part_may_have_a_gradient() -> None:
    torch.manual_seed(0)
    model, (a, b) = nn.Linear(8, 5), (rows_of(1), rows_of(2))
    known = {0: model(b[:2]).detach() + 1}

    def encode(piece: tuple[int, Tensor]) -> Tensor:
        return known[piece[0]] if piece[0] in known else model(piece[1])

    class Piece(tuple[int, Tensor]):
        def __len__(self) -> int:
            return 2

    pieces = [Piece((number, b[2 * number : 2 * number + 2])) for number in range(3)]
    _, found = gradients(model, lambda: cached_backward(contrast, (model, a.split(2)), (encode, pieces)))

    def plain() -> Tensor:
        value = contrast(model(a), torch.cat([known[0], model(b[2:])]))
        value.backward()
        return value

    _, expected = gradients(model, plain)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_parts_may_have_several_widths_and_dtypes() -> None:
    torch.manual_seed(0)
    narrow, large, head = nn.Linear(8, 3), nn.Linear(8, 5).double(), nn.Linear(5, 3).double()

    def loss(a: Tensor, b: Tensor) -> Tensor:
        return contrast(a.double(), head(b))

    a, b = rows_of(1), rows_of(2).double()
    weights = nn.ModuleList([narrow, large, head])
    _, found = gradients(weights, lambda: cached_backward(loss, (narrow, a.split(4)), (large, b.split(4))))

    def plain() -> Tensor:
        value = loss(narrow(a), large(b))
        value.backward()
        return value

    _, expected = gradients(weights, plain)
    assert len(found) == 6
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("encode", "message"),
    [
        (
            lambda rows: {"v": rows},
            r"encoder of part 1 must give a tensor of shape \(3, d\) for this chunk, not a dict",
        ),
        (lambda rows: (rows, rows), "not a tuple"),
        (lambda rows: rows[:, None], r"not a tensor of shape \(3, 1, 8\)"),
        (lambda rows: rows.sum(dim=1), r"not a tensor of shape \(3,\)"),
        (lambda rows: rows[:2], r"not a tensor of shape \(2, 8\)"),
        (lambda rows: rows.long(), "part 1 must give floats, not torch.int64"),
        (lambda rows: rows / 0, "part 1 gives vectors that are NaN or infinite"),
        (Counted(lambda rows: None), "not a NoneType"),
    ],
)
def test_what_is_no_vector_is_one_line(encode: Callable[[Tensor], Any], message: str) -> None:
    model = nn.Linear(8, 8)
    with pytest.raises(UserError, match=message):
        cached_backward(contrast, (model, rows_of(1).split(3)), (encode, rows_of(2).split(3)))


def test_where_nothing_has_a_gradient_it_is_one_line() -> None:
    model = nn.Linear(8, 5)
    parts = (model, rows_of(1).split(3)), (model, rows_of(2).split(3))
    for loss, message in {
        (lambda a, b: contrast(a.detach(), b.detach()), r"the loss has no gradient; remove detach\(\)"),
        (lambda a, b: (a * b).sum(dim=1), r"the loss must be a scalar, not a tensor of shape \(6,\)"),
        (lambda a, b: 1.0, "must be a scalar, not a float"),
    }:
        with pytest.raises(UserError, match=message):
            cached_backward(loss, *parts)
    with pytest.raises(UserError, match="`backward` must back-propagate"):
        cached_backward(lambda a, b: contrast(a, b) + model.weight.sum(), *parts, backward=lambda value: None)
    model.requires_grad_(False)
    with pytest.raises(UserError, match="nothing is trained: no weight"):
        cached_backward(contrast, *parts)
    with pytest.raises(UserError, match="no parts are given; give at least one"):
        cached_backward(contrast)
    with pytest.raises(UserError, match="a chunk of part 0 must be a tensor, a sequence or a mapping"):
        cached_backward(contrast, (model, [3, 4]))
