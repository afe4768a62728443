"""Layers that torch compiles give what the others give, and the gradient cache replays their dropout."""

import pytest
import textbook
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from condensery.errors import UserError
from condensery.losses.gradient_cache import backpropagate
from condensery.losses.mlm import MaskedPrediction
from condensery.models.condenser import Condenser, CondenserShape
from condensery.models.encoder import compiled
from condensery.tokens.batches import Chunk

ROWS = textbook.rows([12, 30, 9, 4, 33, 17, 18, 5])
BACKENDS = ["eager", pytest.param("inductor", marks=pytest.mark.slow)]


class Recorded(MaskedPrediction):
    """Keeps the vectors of both passes, by the first row of their chunk."""

    def __init__(self, model: Condenser) -> None:
        super().__init__(model, 10)
        self.passes: dict[int, list[Tensor]] = {}

    def vectors(self, chunk: Chunk) -> Tensor:
        return self._kept(chunk, super().vectors(chunk))

    def encode(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        vectors, losses = super().encode(chunk)
        return self._kept(chunk, vectors), losses

    def _kept(self, chunk: Chunk, vectors: Tensor) -> Tensor:
        self.passes.setdefault(int(chunk.rows[0]), []).append(vectors.detach().clone())
        return vectors


def trained(dropout: float) -> tuple[dict[str, Tensor], Recorded]:
    """The gradients of a batch of three chunks."""
    model = Condenser(textbook.language_model(dropout=dropout), CondenserShape(2, 1, late_mlm=True)).float().train()
    encoder = Recorded(model)
    torch.manual_seed(1)
    backpropagate(encoder, ROWS.cut([2, 4, 2]), lambda vectors: vectors.cos().sum())
    return textbook.gradients(model), encoder


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_the_same_and_the_cache_replays_dropout(backend: str) -> None:
    plain, _ = trained(0.0)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    with compiled(counter):
        found, _ = trained(0.0)
        assert textbook.worst(found, plain) < 1e-4
        assert 0 < counter.frame_count <= 4, "layers or numbers of tokens have been compiled one by one"
        dropped, encoder = trained(0.3)
    assert textbook.worst(dropped, plain) > 0.01, "dropout is off"
    twice = [passes for passes in encoder.passes.values() if len(passes) > 1]
    assert len(twice) == 2
    for first, second in twice:
        torch.testing.assert_close(first, second, rtol=0, atol=1e-5)


def test_where_torch_cannot_compile_one_line_says_so() -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no compiler found\nand much more")

    torch._dynamo.reset()
    said = r"^trainer\.compile: torch cannot compile here \([^\n]+\); set it to false$"
    with pytest.raises(UserError, match=said), compiled(broken):  # type: ignore[arg-type]
        trained(0.0)
