"""The loss of nested vectors is its formula, that of sentence-transformers, and exact through the gradient cache."""

from pathlib import Path
from typing import Any

import pytest
import textbook
import torch
from error_lines import names
from test_learning_to_rank import PASSAGES, QUERIES, batch
from torch import Tensor, nn

from condensery.errors import UserError
from condensery.losses.gradient_cache import backpropagate
from condensery.losses.info_nce import InfoNCE, info_nce
from condensery.losses.matryoshka import Matryoshka
from condensery.losses.registry import check_loss, make_loss
from condensery.losses.retrieval_loss import RetrievalLoss
from condensery.models.biencoder import BiEncoder
from condensery.models.encoder import Encoder
from condensery.models.pooling import head_of
from condensery.models.vectors import DenseShape, NormShape, VectorSettings
from condensery.training.modules.biencoder import BiEncoderModule

DIMS, WEIGHTS = [12, 5, 2], [1.0, 0.5, 2.0]


def vectors(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(seed)
    return (
        torch.randn(4, 12, dtype=torch.float64, requires_grad=True),
        torch.randn(7, 12, dtype=torch.float64, requires_grad=True),
        torch.tensor([0, 2, 4, 6]),
    )


@pytest.mark.parametrize("normalised", [False, True])
def test_it_is_the_sum_of_the_losses_of_cut_vectors(normalised: bool) -> None:
    queries, passages, positive = vectors()
    loss = make_loss({"name": "matryoshka", "dims": DIMS, "weights": WEIGHTS}, temperature=0.5)
    loss.normalised = normalised
    loss.prepare(12, 1)
    wanted = torch.zeros((), dtype=torch.float64)
    for dim, weight in zip(DIMS, WEIGHTS, strict=True):
        cut = [part[:, :dim] / (part[:, :dim].norm(dim=1, keepdim=True) if normalised else 1) for part in vectors()[:2]]
        wanted = wanted + weight * info_nce(*cut, positive, temperature=0.5)
    assert loss(queries, passages, positive).item() == pytest.approx(wanted.item(), rel=1e-12)


def test_it_is_that_of_sentence_transformers_around_its_loss_of_in_batch_negatives() -> None:
    losses: Any = pytest.importorskip("sentence_transformers.losses")
    queries, passages, positive = vectors()
    passages = passages[positive].detach().requires_grad_()  # the library's are in the order of their queries

    class Given(nn.Module):
        """What the library asks of a model: here its vectors are its inputs."""

        def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
            return {"sentence_embedding": features["vectors"]}

        def get_embedding_dimension(self) -> int:
            return 12

    model = Given()
    theirs = losses.MatryoshkaLoss(model, losses.MultipleNegativesRankingLoss(model, scale=20.0), DIMS, WEIGHTS)
    wanted = theirs([{"vectors": nn.functional.normalize(part, dim=-1)} for part in (queries, passages)], None)
    wanted_gradients = torch.autograd.grad(wanted, [queries, passages])
    ours = Matryoshka(DIMS, InfoNCE(temperature=1 / 20), WEIGHTS)
    ours.normalised = True
    ours.prepare(12, 1)
    normalised = [nn.functional.normalize(part, dim=-1) for part in (queries, passages)]
    found = ours(*normalised, torch.arange(4))
    assert found.item() == pytest.approx(wanted.item(), rel=1e-9)
    for ours_gradient, gradient in zip(torch.autograd.grad(found, [queries, passages]), wanted_gradients, strict=True):
        torch.testing.assert_close(ours_gradient, gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("inner", ["info_nce", "learning_to_rank"])
@pytest.mark.parametrize("normalised", [False, True])
def test_through_the_cache_its_gradient_is_that_of_the_whole_batch(normalised: bool, inner: str) -> None:
    def trained(budget: int) -> tuple[Tensor, dict[str, Tensor]]:
        torch.manual_seed(5)
        head = head_of([DenseShape(16, 12), NormShape(12, 12)])
        encoder = Encoder(textbook.language_model().base_model, VectorSettings("mean", normalised), head)
        loss = {"name": "matryoshka", "dims": DIMS, "weights": WEIGHTS, "loss": {"name": inner, "temperature": 0.5}}
        made = BiEncoderModule(BiEncoder(encoder), loss=loss, mask_known_positives=False, seed=4).double()
        chunks, contrast = made.objective(batch(budget))
        losses = backpropagate(chunks, batch(budget).chunks, contrast)
        return losses["contrast"], textbook.gradients(made)

    (value, gradients), (wanted, whole) = trained(8), trained(1000)
    torch.testing.assert_close(value, wanted, rtol=1e-11, atol=0)
    assert textbook.worst(gradients, whole) < 1e-9
    trained_layers = {
        name.rpartition("head.")[2] for name, gradient in whole.items() if "head." in name and gradient.any()
    }
    assert trained_layers == {"0.linear.weight", "0.linear.bias", "1.norm.weight", "1.norm.bias"}
    assert len(QUERIES) < len(PASSAGES)


def test_each_size_has_weights_of_its_own() -> None:
    loss = Matryoshka([4, 2], "learning_to_rank")
    loss.prepare(8, 1)
    assert [tuple(weight.shape) for name, weight in loss.named_parameters() if "weight" in name] == [(2, 4), (2, 2)]


def test_a_loss_of_ones_own_is_wrapped_too() -> None:
    class Distance(RetrievalLoss):
        def forward(self, queries: Tensor, passages: Tensor, positive: Tensor, known: Tensor | None = None) -> Tensor:
            return (queries - passages[positive]).square().sum()

    queries, passages, positive = vectors()
    loss = Matryoshka([3], Distance())
    loss.prepare(12, 1)
    wanted = (queries[:, :3] - passages[positive][:, :3]).square().sum()
    assert loss(queries, passages, positive).item() == pytest.approx(wanted.item())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dims": []}, ["dims", "whole numbers"]),
        ({"dims": [4, 0]}, ["dims", "0"]),
        ({"dims": [4, 4]}, ["dims", "twice"]),
        ({"dims": "64"}, ["dims", "64"]),
        ({"dims": 64}, ["dims", "64"]),
        ({"dims": [4.5]}, ["dims", "4.5"]),
        ({"dims": [4, 2], "weights": [1]}, ["weights", "2"]),
        ({"dims": [4, 2], "weights": [1, -1]}, ["weights", "-1"]),
        ({"dims": [4, 2], "weights": [0, 0]}, ["weights", "at least one above 0"]),
        ({"dims": [4], "weights": [float("nan")]}, ["weights", "nan"]),
        ({"dims": [4], "loss": "infonce"}, ["infonce", "info_nce"]),
        ({"dims": [4], "loss": {"name": "info_nce", "temprature": 1}}, ["temprature", "temperature"]),
        ({}, ["matryoshka", "dims"]),
        ({"dims": [400, 4]}, ["400", "12", "truncate_dim"]),
    ],
)
def test_what_cannot_be_is_one_line(options: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        make_loss({"name": "matryoshka", **options}).prepare(12, 1)
    names(str(raised.value), "loss", *words)


def test_the_loss_inside_is_looked_at_before_any_work_is_begun() -> None:
    assert (
        check_loss({"name": "matryoshka", "dims": [4], "loss": {"name": "info_nce", "temperature": 2}}) == "matryoshka"
    )
    with pytest.raises(ValueError, match="there is no loss 'infonce'"):
        check_loss({"name": "matryoshka", "dims": [4], "loss": "infonce"})
