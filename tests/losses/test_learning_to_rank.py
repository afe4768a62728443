"""The learning-to-rank loss is equation 14 of Zhao et al., in value and gradient, in chunks and at once."""

from typing import Any

import pytest
import textbook
import torch
from torch import Tensor

from condensery.losses.gradient_cache import backpropagate
from condensery.models.biencoder import QUERY, BiEncoder
from condensery.models.encoder import Encoder
from condensery.tokens.batches import chunks
from condensery.training.data.triple_batches import TripleBatch
from condensery.training.modules.biencoder import BiEncoderModule

QUERIES, PASSAGES = [[7, 8], [9, 10, 11], [12]], [[20, 21], [22], [23, 24, 25], [26], [27, 28]]
POSITIVE, KNOWN = [1, 0, 4], [[0, 1, 0, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 1]]


def batch(budget: int) -> TripleBatch:
    parts = []
    for tower, texts, first in ((QUERY, QUERIES, 0), (0, PASSAGES, len(QUERIES))):
        flat = torch.tensor([token for text in texts for token in [textbook.CLS, *text, textbook.SEP]])
        starts = torch.tensor([0, *(len(text) + 2 for text in texts)]).cumsum(0)
        rows = torch.arange(first, first + len(texts)).numpy()
        parts += chunks(flat.numpy(), starts.numpy(), budget, textbook.PAD, tower=tower, rows=rows)
    known = torch.tensor(KNOWN, dtype=torch.bool)
    return TripleBatch(
        chunks=parts,
        tokens=30,
        positive=torch.tensor(POSITIVE),
        known=known,
        passages=torch.arange(len(PASSAGES)),
        judged=known.nonzero(),
    )


def module(masked: bool) -> BiEncoderModule:
    torch.manual_seed(3)
    query, passage = (textbook.language_model().base_model for _ in range(2))
    model: Any = BiEncoder(Encoder(query), Encoder(passage))
    made = BiEncoderModule(model, loss="learning_to_rank", mask_known_positives=masked, seed=4).double()
    with torch.no_grad():
        made.loss.weight.mul_(20.0)
        made.loss.bias.fill_(0.3)
    return made


def by_definition(made: BiEncoderModule, masked: bool) -> Tensor:
    """Zhao et al., eq. 14, query by query: W is (W_q, W_d), {q, d} one vector behind the other."""
    score = made.loss

    def vectors(encoder: Any, texts: list[list[int]]) -> list[Tensor]:
        rows = [torch.tensor([[textbook.CLS, *text, textbook.SEP]]) for text in texts]
        return [encoder.model(input_ids=row).last_hidden_state[0, 0] for row in rows]

    weight = torch.cat([score.weight[1], score.weight[0]])
    passages, total = vectors(made.model.passage, PASSAGES), torch.zeros((), dtype=torch.float64)
    for number, query in enumerate(vectors(made.model.query, QUERIES)):
        scores = [torch.sigmoid(weight @ torch.cat([query, passage]) + score.bias[0]) for passage in passages]
        negatives = [
            torch.exp(other)
            for place, other in enumerate(scores)
            if place != POSITIVE[number] and not (masked and KNOWN[number][place])
        ]
        own = torch.exp(scores[POSITIVE[number]])
        total = total - torch.log(own / (own + torch.stack(negatives).sum()))
    return total / len(QUERIES)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("budget", [8, 1000], ids=["many chunks", "one chunk a tower"])
def test_the_loss_and_its_gradient_are_those_of_equation_14(budget: int, masked: bool) -> None:
    ours, plain = module(masked), module(masked)
    encoder, contrast = ours.objective(batch(budget))
    losses = backpropagate(encoder, batch(budget).chunks, contrast)
    expected = by_definition(plain, masked)
    expected.backward()
    torch.testing.assert_close(losses["contrast"], expected.detach(), rtol=1e-10, atol=1e-12)
    named = dict(plain.named_parameters())
    assert {"loss.weight", "loss.bias"} <= named.keys()
    for name, parameter in ours.named_parameters():
        wanted = named[name].grad
        if wanted is not None:
            torch.testing.assert_close(parameter.grad, wanted, rtol=1e-7, atol=1e-10, msg=name)
    assert float(ours.loss.weight.grad.abs().sum()) > 0


def test_all_weights_are_trained_and_retrieval_is_by_the_encoders_vectors() -> None:
    made, chunk = module(True), batch(1000).chunks[0]
    assert sum(1 for name, _ in made.named_parameters() if name.startswith("loss")) == 2
    assert len({id(parameter) for parameter in made.parameters()}) == len(list(made.parameters()))
    torch.testing.assert_close(made.vectors(chunk), made.model.vectors(chunk))


def test_the_score_is_drawn_from_the_seed_alone() -> None:
    model = module(True).model
    torch.manual_seed(1)
    one = BiEncoderModule(model, loss="learning_to_rank", seed=4).loss
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(1)), "and no other draw is"
    two = BiEncoderModule(model, loss="learning_to_rank", seed=4).loss
    assert one is not None
    assert two is not None
    assert torch.equal(one.weight, two.weight)
    assert one.weight.std() > 0
