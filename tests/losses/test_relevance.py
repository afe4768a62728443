"""The losses of the cross-encoder are sums over pairs and lists, written out; no chunking changes their gradient."""

import math

import pytest
import torch
from torch import Tensor, nn

from condensery.losses.gradient_cache import backpropagate
from condensery.losses.relevance import Loss, RelevanceOfLists, listwise, pointwise
from condensery.tokens.batches import Chunk, chunks, flatten


def test_pointwise_is_the_cross_entropy_of_every_pair() -> None:
    scores = torch.tensor([[2.0, -1.0, 0.5], [-3.0, 0.0, 4.0]], dtype=torch.float64)
    wanted = 0.0
    for row in scores.tolist():
        for column, score in enumerate(row):
            probability = 1 / (1 + math.exp(-score))
            wanted -= math.log(probability if column == 0 else 1 - probability)
    assert float(pointwise(scores)) == pytest.approx(wanted, rel=1e-12)


def test_listwise_is_the_share_of_the_positive_and_knows_no_absolute_score() -> None:
    scores = torch.tensor([[2.0, -1.0, 0.5], [-3.0, 0.0, 4.0]], dtype=torch.float64)
    wanted = sum(-math.log(math.exp(row[0]) / sum(map(math.exp, row))) for row in scores.tolist())
    assert float(listwise(scores)) == pytest.approx(wanted, rel=1e-12)
    assert float(listwise(scores + 7)) == pytest.approx(wanted, rel=1e-12)


class Scores(nn.Module):
    """The mean of the words' weights: enough for every row to have a score of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(50, 1, dtype=torch.float32)

    def scores(self, chunk: Chunk) -> Tensor:
        real = chunk.attention_mask
        return (self.words(chunk.input_ids)[..., 0] * real).sum(dim=1) / chunk.lengths


@pytest.mark.parametrize("loss", ["pointwise", "listwise"])
@pytest.mark.parametrize("budget", [1, 40, 70])
def test_no_chunking_changes_loss_or_gradient(loss: Loss, budget: int) -> None:
    random = torch.Generator().manual_seed(1)
    rows = [torch.randint(5, 50, (3 + row * 5 % 7,), generator=random).numpy() for row in range(12)]
    results = []
    for given in (budget, 10_000):
        model, parts = Scores(), chunks(*flatten(rows), given, 0, together=3)
        losses = backpropagate(RelevanceOfLists(model, 4, 3, loss), parts, None)
        results.append((float(losses[loss]), model.words.weight.grad))
        assert len(parts) == (1 if given == 10_000 else 4 if budget == 1 else len(parts))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-6)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-5, atol=1e-8)
    scores = torch.stack([Scores().words.weight[row].mean() for row in rows]).view(4, 3)
    wanted = pointwise(scores) / 12 if loss == "pointwise" else listwise(scores) / 4
    assert results[1][0] == pytest.approx(float(wanted), rel=1e-5)
