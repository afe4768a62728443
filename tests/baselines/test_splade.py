"""SPLADE against the papers' equations in float64, and against sentence-transformers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SparseEncoder as TheirEncoder
from sentence_transformers.sparse_encoder.losses import FlopsLoss, SparseMultipleNegativesRankingLoss
from sentence_transformers.sparse_encoder.losses import SpladeLoss as TheirLoss
from textbook import language_model
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from condensery.baselines.splade.model import (
    OWN,
    SparseEncoder,
    SpladeLoss,
    flops,
    load_sparse_encoder,
    save_sparse_encoder,
    start_lexically,
)
from condensery.losses.gradient_cache import backpropagate
from condensery.models.biencoder import PASSAGE, QUERY
from condensery.tokens.batches import Chunk, chunks, flatten
from condensery.tokens.tokenizer import load_tokenizer, train_wordpiece
from condensery.tokens.vocabulary import Vocabulary, with_special

TEXTS = ["read a file", "open the door of the house, please", "Read a json file. Then write it!", "a house"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_wordpiece(TEXTS * 5, 120, folder, warn=False)
    return folder


def encoder(tokenizer: Path, family: str = "bert", dropout: float = 0.0) -> SparseEncoder:
    size = len(load_tokenizer(tokenizer))
    return SparseEncoder(language_model(family, size=size, dropout=dropout)).eval()


def rows(tokenizer: Path, texts: Sequence[str] = TEXTS) -> list[np.ndarray]:
    read = load_tokenizer(tokenizer)
    ends = Vocabulary.of(read)
    return [with_special(read(text, add_special_tokens=False)["input_ids"], ends, 20) for text in texts]


def encoded(model: SparseEncoder, tokenizer: Path) -> Tensor:
    (chunk,) = chunks(*flatten(rows(tokenizer)), 10_000, 0)
    with torch.no_grad():
        vectors = model.vectors(chunk)
    return torch.empty_like(vectors).index_copy_(0, chunk.rows, vectors)


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_a_weight_is_the_largest_logarithm_of_one_plus_the_logit(tokenizer: Path, family: str) -> None:
    model = encoder(tokenizer, family)
    found = encoded(model, tokenizer)
    for vector, ids in zip(found, rows(tokenizer), strict=True):
        with torch.no_grad():
            logits = model.language_model(torch.tensor([ids.tolist()])).logits[0]  # (t, V)
        wanted = [max(float(torch.log(1 + max(logit, torch.zeros(())))) for logit in column) for column in logits.T]
        torch.testing.assert_close(vector, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-9)
    assert 0 < (found == 0).double().mean() < 1


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "modernbert"])
def test_a_lexical_start_compares_the_states_with_the_embeddings(family: str) -> None:
    model: Any = language_model(family, hidden=16).eval()
    start_lexically(model)
    ids = torch.tensor([[2, 7, 9, 11, 3]])
    (layer,) = (  # which scales the states after the activation
        part
        for name, part in model.named_modules()
        if isinstance(part, torch.nn.LayerNorm) and not name.startswith(model.base_model_prefix)
    )
    with torch.no_grad():
        logits = model(ids).logits[0]  # (t, V)
        states = torch.nn.functional.gelu(model.base_model(ids).last_hidden_state[0])
        embeddings = model.get_output_embeddings().weight
        length = np.mean([float(embedding.norm()) for embedding in embeddings])
        wanted = layer(states) @ embeddings.T - OWN * 4 * length
    torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("step", "ramp"), [(0, 0), (0, 10), (5, 10), (10, 10), (99, 10)])
def test_the_loss_is_that_of_the_paper(tokenizer: Path, step: int, ramp: int) -> None:
    vectors = encoded(encoder(tokenizer), tokenizer)
    queries, passages, positive = vectors[:2], vectors[1:], torch.tensor([1, 2])
    wanted = 0.0
    for query, place in zip(queries, positive.tolist(), strict=True):
        scores = [float((query * passage).sum()) / 0.5 for passage in passages]
        wanted -= (scores[place] - float(torch.tensor(scores, dtype=torch.float64).logsumexp(0))) / 2
    factor = 1.0 if not ramp else min(1.0, step * step / (ramp * ramp))
    for weight, texts in ((0.3, queries), (0.2, passages)):
        for column in texts.T:
            wanted += factor * weight * (sum(float(one) for one in column) / len(texts)) ** 2
    loss = SpladeLoss(0.3, 0.2, ramp, temperature=0.5)
    loss.step = step
    assert float(loss(queries, passages, positive)) == pytest.approx(wanted, rel=0, abs=1e-9)


class _Elements(TorchDispatchMode):
    """Counts the elements of all tensors that operations return."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.count += sum(tensor.numel() for tensor in pytree.tree_leaves(made) if isinstance(tensor, Tensor))
        return made


def test_the_work_of_the_backward_pass_grows_with_the_texts_and_not_with_their_square(tokenizer: Path) -> None:
    model, made = encoder(tokenizer), []
    for texts in (TEXTS * 4, TEXTS * 32):
        (chunk,) = chunks(*flatten(rows(tokenizer, texts)), 100_000, 0)
        loss = model.vectors(chunk).sum()
        with _Elements() as elements:
            loss.backward()
        made.append(elements.count)
    assert made[1] < 12 * made[0]


def test_the_gradient_cache_gives_the_gradient_of_the_whole_batch(tokenizer: Path) -> None:
    model, loss, texts = encoder(tokenizer), SpladeLoss(0.3, 0.2), rows(tokenizer)

    def parts(budget: int) -> list[Chunk]:
        queries = chunks(*flatten(texts[:2]), budget, 0, tower=QUERY)
        return queries + chunks(*flatten(texts[2:]), budget, 0, tower=PASSAGE, rows=np.arange(2, 4))

    vectors = torch.empty(4, model.hidden_size, dtype=torch.float64)
    for chunk in parts(10_000):
        vectors = vectors.index_copy(0, chunk.rows, model.vectors(chunk))
    loss(vectors[:2], vectors[2:], torch.arange(2)).backward()
    wanted = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    backpropagate(model, parts(1), lambda found: loss(found[:2], found[2:], torch.arange(2)))
    assert len(parts(1)) == 4
    assert len(wanted) > 40
    for name, weight in model.named_parameters():
        if name in wanted:
            torch.testing.assert_close(weight.grad, wanted[name], rtol=1e-9, atol=1e-9)


@pytest.fixture
def opened(tokenizer: Path, tmp_path: Path) -> tuple[SparseEncoder, TheirEncoder]:
    model = encoder(tokenizer).float()
    save_sparse_encoder(model, tmp_path, tokenizer, (20, 20))
    return model, TheirEncoder(str(tmp_path), device="cpu")


def test_sentence_transformers_opens_it_with_equal_vectors(
    opened: tuple[SparseEncoder, TheirEncoder], tokenizer: Path, tmp_path: Path
) -> None:
    model, theirs = opened
    found = encoded(model, tokenizer)
    wanted = theirs.encode(TEXTS, convert_to_sparse_tensor=False, convert_to_tensor=True)
    torch.testing.assert_close(found, torch.as_tensor(wanted), rtol=0, atol=1e-5)
    torch.testing.assert_close(found @ found.T, theirs.similarity(wanted, wanted), rtol=1e-5, atol=1e-5)
    again, *lengths = load_sparse_encoder(tmp_path)
    assert lengths == [20, 20]
    assert torch.equal(encoded(again.eval(), tokenizer), found)


def test_the_loss_of_sentence_transformers_is_equal(
    opened: tuple[SparseEncoder, TheirEncoder], tokenizer: Path
) -> None:
    model, theirs = opened
    vectors = encoded(model, tokenizer)
    ranking: Any = SparseMultipleNegativesRankingLoss(theirs, scale=1 / 0.5)
    loss = TheirLoss(theirs, ranking, document_regularizer_weight=0.2, query_regularizer_weight=0.3)
    read = [theirs.preprocess(TEXTS[:2]), theirs.preprocess(TEXTS[2:])]
    theirs.eval()
    with torch.no_grad():
        wanted = loss(read)
    ours = SpladeLoss(0.3, 0.2, temperature=0.5)(vectors[:2], vectors[2:], torch.arange(2))
    assert float(ours) == pytest.approx(float(sum(wanted.values())), abs=1e-5)
    assert float(flops(vectors)) == pytest.approx(
        float(FlopsLoss(theirs).compute_loss_from_embeddings(vectors)), abs=1e-6
    )
