"""Everything that is computed on a device stays on it: tiny models and data on a made-up GPU, in fp32."""

import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import textbook
import torch
from made_up_gpu import made_up_gpu
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from condensery import BM25, Fused, Reranked, Retriever
from condensery.losses.contrast import span_contrast
from condensery.losses.gradient_cache import backpropagate
from condensery.losses.info_nce import info_nce
from condensery.losses.mlm import MaskedPrediction
from condensery.losses.registry import make_loss
from condensery.models.biencoder import PASSAGE, QUERY, BiEncoder
from condensery.models.blending import blended, same_weights
from condensery.models.condenser import Condenser, CondenserShape
from condensery.models.encoder import Encoder
from condensery.models.masked_autoencoder import MaskedAutoEncoder, decoder_shape
from condensery.retrieval.neighbours import dense_neighbours
from condensery.tokens.batches import chunks
from condensery.tokens.tokenizer import train_wordpiece
from condensery.training.validation import (
    CandidateSample,
    ValidationSample,
    encoded,
    mean_reciprocal_rank,
    mean_reciprocal_ranks,
)

LENGTHS, CONTEXTS = [12, 30, 9, 17], [20, 7, 12, 5]
DECODERS: dict[str, Any] = {"cotmae": "masked", "causal": "causal", "retromae": "enhanced"}

PASSAGES = {
    "a": "water falls from clouds, and it is called rain where it reaches the ground",
    "b": "clouds are water in the air",
    "c": "a stone is a hard thing that lies on the ground",
    "d": "water that runs is a river",
}
QUESTIONS = ["what falls from clouds", "a hard thing"]


@pytest.fixture(autouse=True)
def _gpu() -> Iterator[None]:
    with made_up_gpu():
        yield


def towers() -> BiEncoder:
    return BiEncoder(Encoder(textbook.language_model(hidden=32, layers=2).base_model)).float().eval()


def parts(lengths: list[int], tower: int) -> list[Any]:
    read = textbook.rows(lengths)
    return chunks(read.flat, read.starts, 60, textbook.PAD, tower=tower)


REFUSED = [  # c is on the CPU, g on the GPU, at are places on the CPU
    "c + g",
    "torch.cat([c, g])",
    "torch.stack([c, g])",
    "torch.lerp(c, g, 0.5)",
    "torch.equal(c, g)",
    "c[at.cuda()]",
    "torch.empty_like(g).index_copy_(0, at, g[:2])",
    "g.index_select(0, at)",
    "g.gather(0, at)",
    "g.scatter(0, at, 1.0)",
    "g.index_add(0, at, c[:2])",
    "g.index_put((at,), c[:2])",
    "g.masked_fill(c > 0, 1.0)",
    "torch.where(c > 0, g, 0.0)",
    "torch.zeros(()).add_(g.sum())",
    "nn.functional.embedding(at, g[:, None])",
    "g @ c",
    "g.repeat_interleave(at.new_ones(3))",
    "torch._foreach_add([g, c], [g, g])",
    "torch.rand(2, device='cuda', generator=torch.Generator())",
]
ALLOWED = {  # and whether the result is on the GPU
    "g + 1": True,
    "g * torch.tensor(2.0)": True,
    "g.masked_fill(g > 0, torch.tensor(1.0))": True,
    "torch._foreach_mul([g], torch.tensor(2.0))[0]": True,
    "g[at]": True,
    "c.copy_(g)": False,
    "g.cpu()": False,
    "g.to(c)": False,
    "g.type_as(c)": False,
    "c.cuda().double()": True,
    "g.new_zeros(2)": True,
    "torch.zeros_like(g)": True,
    "torch.zeros_like(g, device='cpu')": False,
    "torch.tensor([1.0], device='cuda')": True,
    "torch.tensor(g.tolist())": False,
    "torch.arange(3, device=g.device)": True,
    "torch.rand(2, device='cuda', generator=torch.Generator('cuda'))": True,
    "deepcopy(g)": True,
    "g[1:].view(2, 1).T": True,
}


def computed(expression: str) -> Any:
    c = torch.arange(3.0)
    return eval(expression, globals(), {"c": c, "g": c.to("cuda"), "at": torch.tensor([0, 2]), "deepcopy": deepcopy})


@pytest.mark.parametrize("expression", REFUSED)
def test_tensors_of_two_devices_are_refused(expression: str) -> None:
    with pytest.raises(RuntimeError, match=r"two devices, cuda:0 and cpu|device type for generator"):
        computed(expression)


@pytest.mark.parametrize(("expression", "on_the_gpu"), ALLOWED.items())
def test_results_are_where_their_inputs_are(expression: str, on_the_gpu: bool) -> None:
    assert computed(expression).is_cuda is on_the_gpu


@pytest.mark.parametrize("expression", ["g.numpy()", "np.asarray(g)"])
def test_numpy_reads_nothing_from_a_gpu(expression: str) -> None:
    with pytest.raises(TypeError, match=re.escape("Use Tensor.cpu()")):
        computed(expression)


def test_gradients_are_where_their_weights_are() -> None:
    weights = nn.Parameter(torch.ones(3, 2))
    moved = weights.cuda()
    moved.index_select(0, torch.tensor([0, 2]).cuda()).sum().backward()
    assert weights.grad is not None
    assert not weights.grad.is_cuda
    layer = nn.Linear(2, 2).to("cuda")
    layer(moved.detach()).gather(1, torch.zeros(3, 1, dtype=torch.long).cuda()).sum().backward()
    nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    torch.optim.AdamW(layer.parameters(), fused=True).step()
    assert all(weight.is_cuda and weight.grad is not None and weight.grad.is_cuda for weight in layer.parameters())


def gradients(kind: str, device: str) -> tuple[dict[str, Tensor], float]:
    """Of a batch in several chunks, and its loss."""
    language_model, passages = textbook.language_model(hidden=32, layers=3), textbook.rows(LENGTHS)
    contrast = None
    if kind == "biencoder":
        model: Any = BiEncoder(Encoder(language_model.base_model)).float().to(device)
        read = chunks(passages.flat, passages.starts, 80, textbook.PAD, tower=PASSAGE, rows=np.arange(3, 7))
        found = [*parts([6, 9, 4], QUERY), *read]
        encoder, contrast = model, lambda vectors: info_nce(vectors[:3], vectors[3:], torch.arange(3, device=device))
    elif kind in DECODERS:
        model = MaskedAutoEncoder(language_model, decoder_shape(DECODERS[kind])).float().to(device)
        encoder = MaskedPrediction(model, {"mlm_late": 30, "mlm_context": 30})
        found = textbook.paired(passages, textbook.contexts(DECODERS[kind], CONTEXTS), [2, 2])
    else:
        model = (
            Condenser(language_model, CondenserShape(0 if kind == "mlm" else 2, 2, late_mlm=True)).float().to(device)
        )
        encoder, found = MaskedPrediction(model, 30), passages.cut([2, 2])
        contrast = span_contrast if kind == "cocondenser" else None
    torch.manual_seed(1)
    losses = backpropagate(encoder, [chunk.to(device) for chunk in found], contrast)
    return {name: value.cpu() for name, value in textbook.gradients(model).items()}, float(sum(losses.values()))


@pytest.mark.parametrize("kind", ["mlm", "condenser", "cocondenser", "biencoder", *DECODERS])
def test_a_step_has_the_gradient_of_a_cpu(kind: str) -> None:
    here, loss = gradients(kind, "cpu")
    there, its = gradients(kind, "cuda")
    assert its == pytest.approx(loss, rel=1e-4)
    assert textbook.worst(there, here) < 1e-3


LOSSES: list[Any] = [
    "info_nce", "margin_mse", "kl", {"name": "matryoshka", "dims": [8, 16]}, "learning_to_rank", "passage_centric",
    "rank_consistent", "dual_supervision",
]  # fmt: skip


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_every_loss_has_the_value_of_a_cpu(loss: Any) -> None:
    torch.manual_seed(0)
    queries, passages = torch.randn(3, 16), torch.randn(6, 16)
    teacher = torch.randn(3, 6)
    known = torch.zeros(3, 6, dtype=torch.bool)
    known[torch.arange(3), torch.tensor([0, 2, 4])] = True
    values = []
    for device in ("cpu", "cuda"):
        made = make_loss(loss)
        made.prepare(16, 0)
        made.to(device)
        inputs = [made.features(part.to(device), tower) for part, tower in ((queries, QUERY), (passages, PASSAGE))]
        positive = torch.tensor([0, 2, 4]).to(device)
        taught = {"margin_mse": 1, "kl": 1, "rank_consistent": 1, "dual_supervision": 2}.get(str(loss), 0)
        given = dict.fromkeys(("teacher", "in_batch")[:taught], teacher.to(device))
        value = made(*inputs, positive, known.to(device), **given)
        assert value.device.type == device
        values.append(value.item())
    assert values[0] == pytest.approx(values[1])


def test_a_retriever_on_the_gpu_is_measured_and_interpolated() -> None:
    """Chunks and trained weights are on the CPU, as in the stages keep_best and validate."""
    start, trained = towers(), towers()
    with torch.no_grad():
        for weights in trained.parameters():
            weights.add_(0.1)
    asked, read = parts([6, 9, 4], QUERY), parts(LENGTHS, PASSAGE)
    relevant = np.eye(3, len(LENGTHS), dtype=bool)
    start.to("cuda")
    with torch.inference_mode():
        vectors = encoded(lambda chunk: start.vectors(chunk.to("cuda")), read)
        ranked = mean_reciprocal_rank(
            lambda chunk: start.vectors(chunk.to("cuda")), ValidationSample(asked, read, relevant)
        )
        candidates = CandidateSample(asked, read, np.array([[0, 1, 2], [1, 2, 3], [2, 0, -1]]))
        cut = mean_reciprocal_ranks(lambda chunk: start.vectors(chunk.to("cuda")), candidates, [1, 2])
    assert vectors.is_cuda
    assert 0 < ranked <= 1
    assert cut[0] <= cut[1]
    assert not same_weights(start, trained)
    half = blended(start, trained, 0.5)
    for mine, first, last in zip(half.parameters(), start.parameters(), trained.parameters(), strict=True):
        torch.testing.assert_close(mine, torch.lerp(first.cpu(), last, 0.5))


def test_neighbours_are_those_of_a_cpu() -> None:
    random = np.random.default_rng(0)
    queries, passages = (random.standard_normal((number, 8), np.float32) for number in (5, 30))
    here, there = (dense_neighbours(queries, passages, 4, device=device) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(there.toarray(), here.toarray(), rtol=1e-5)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT with its tokenizer."""
    folder = tmp_path_factory.mktemp("saved")
    tokenizer = train_wordpiece([*PASSAGES.values(), *QUESTIONS], 200, folder)
    sizes: Any = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **sizes)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "given", [{}, {"windows": 3, "passage_length": 8}, {"dtype": "int8"}, {"dtype": "binary"}], ids=str
)
def test_a_retriever_and_its_reranking_have_the_scores_of_a_cpu(saved: Path, given: dict[str, Any]) -> None:
    found = []
    for device in ("cpu", "cuda"):
        retriever = Retriever(saved, device=device, precision="fp32", **given).index(PASSAGES)
        ranked = Reranked(Fused([retriever, BM25().index(PASSAGES)]), Weights().to(device)).search(QUESTIONS, 3)
        found.append((retriever.rank(QUESTIONS, 3)[0], ranked, retriever.passage_vectors))
    (here, first, vectors), (there, last, theirs) = found
    np.testing.assert_allclose(there, here, rtol=1e-4)
    np.testing.assert_allclose(theirs, vectors, atol=1e-4)
    assert [[hit.id for hit in hits] for hits in last] == [[hit.id for hit in hits] for hits in first]


class Weights(nn.Linear):
    """A cross-encoder whose scores are where its weights are: the number of letters of a passage."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        nn.init.ones_(self.weight)

    def predict(self, pairs: Any) -> Tensor:
        lengths = torch.tensor([[float(len(passage))] for _, passage in pairs], device=self.weight.device)
        scores: Tensor = self(lengths)[:, 0]
        return scores
