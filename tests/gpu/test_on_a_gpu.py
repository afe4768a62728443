"""What only a GPU can show: its kernels, its precision, its random numbers and its memory. Skipped where there is none."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import textbook
import torch
from torch import Tensor

from condensery.losses.contrast import span_contrast
from condensery.losses.gradient_cache import ChunkEncoder, backpropagate
from condensery.losses.info_nce import info_nce
from condensery.losses.mlm import MaskedPrediction
from condensery.models.biencoder import PASSAGE, QUERY, BiEncoder
from condensery.models.blending import blended
from condensery.models.condenser import Condenser, CondenserShape
from condensery.models.encoder import Encoder, compiled
from condensery.models.masked_autoencoder import MaskedAutoEncoder, decoder_shape
from condensery.models.precision import inference
from condensery.models.varlen import KERNELS, best_kernel
from condensery.retrieval.indexes.dense import DenseIndex, shard_path
from condensery.system.files import write_json
from condensery.tokens.batches import Chunk, chunks
from condensery.training.validation import encoded

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch sees")

KINDS = ["mlm", "condenser", "cocondenser", "cotmae", "causal", "retromae", "biencoder"]
LENGTHS, CONTEXTS = [12, 30, 9, 4, 33, 17, 18, 5], [20, 7, 30, 12, 5, 9, 33, 16]
Contrast = Callable[[Tensor], Tensor]


def task(kind: str, device: str, dropout: float = 0.0) -> tuple[torch.nn.Module, ChunkEncoder, Contrast | None]:
    """A model with heads of 32 in fp32, what encodes its chunks, and its contrastive loss."""
    language_model = textbook.language_model(hidden=64, dropout=dropout, layers=4)
    if kind == "biencoder":
        towers = BiEncoder(Encoder(language_model.base_model)).float().to(device)
        return towers, towers, lambda vectors: info_nce(vectors[:3], vectors[3:], torch.arange(3).to(device))
    if kind in ("cotmae", "causal", "retromae"):
        shape = decoder_shape({"cotmae": "masked", "causal": "causal", "retromae": "enhanced"}[kind])  # type: ignore[arg-type]
        auto = MaskedAutoEncoder(language_model, shape).float().to(device)
        return auto, MaskedPrediction(auto, {"mlm_late": 30, "mlm_context": 30}), None
    head = 0 if kind == "mlm" else 2
    model = Condenser(language_model, CondenserShape(head, 2, late_mlm=True)).float().to(device)
    return model, MaskedPrediction(model, 30), span_contrast if kind == "cocondenser" else None


def batch(kind: str, device: str, cut: bool) -> list[Chunk]:
    """Eight texts, in one chunk (of queries, of passages) or in four."""
    passages = textbook.rows(LENGTHS)
    if kind == "biencoder":
        asked, read = textbook.rows([6, 9, 4]), passages
        queries = chunks(asked.flat, asked.starts, 12 if cut else 100, textbook.PAD, tower=QUERY)
        names = np.arange(3, 11)
        found = [*queries, *chunks(read.flat, read.starts, 80 if cut else 999, textbook.PAD, tower=PASSAGE, rows=names)]
    elif kind in ("cotmae", "causal", "retromae"):
        contexts = textbook.contexts({"cotmae": "masked", "causal": "causal", "retromae": "enhanced"}[kind], CONTEXTS)
        found = textbook.paired(passages, contexts, [2, 2, 2, 2] if cut else [8])
    else:
        found = passages.cut([2, 2, 2, 2] if cut else [8])
    return [chunk.to(device) for chunk in found]


def gradients(
    kind: str, device: str = "cuda", cut: bool = True, dropout: float = 0.0, bf16: bool = False
) -> tuple[dict[str, Tensor], float]:
    """Of one batch, and its loss."""
    model, encoder, contrast = task(kind, device, dropout)
    torch.manual_seed(1)
    with torch.autocast(device, torch.bfloat16, enabled=bf16):
        losses = backpropagate(encoder, batch(kind, device, cut), contrast)
    return {name: found.cpu() for name, found in textbook.gradients(model).items()}, float(sum(losses.values()))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "retromae"])  # its sets are drawn by chunk
def test_in_fp32_the_gradient_through_the_cache_is_that_of_one_chunk_and_of_a_cpu(kind: str) -> None:
    cached, loss = gradients(kind)
    for other, its in (gradients(kind, cut=False), gradients(kind, device="cpu", cut=False)):
        assert textbook.worst(cached, other) < 1e-3
        assert loss == pytest.approx(its, rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_in_bf16_is_close_to_one_in_fp32(kind: str) -> None:
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        pytest.skip("this GPU has no bf16")
    (half, its), (full, loss) = gradients(kind, bf16=True), gradients(kind)
    assert its == pytest.approx(loss, rel=0.05)
    flat = [torch.cat([found[name].flatten() for name in sorted(found)]) for found in (half, full)]
    assert float(torch.nn.functional.cosine_similarity(*flat, dim=0)) > 0.98


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_torch_has_a_kernel_for_rows_of_any_lengths(dtype: torch.dtype) -> None:
    """That it gives what padded rows give is what it is chosen by; the next test goes through a whole model."""
    name = best_kernel(torch.device("cuda", torch.cuda.current_device()), dtype, 64)
    new = torch.cuda.get_device_capability() >= (8, 0)
    assert name == list(KERNELS)[0 if new and dtype != torch.float32 else 1]


@pytest.mark.parametrize("bf16", [False, True])
def test_attention_without_padding_is_attention_with_padding(bf16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = gradients("cocondenser", bf16=bf16)
    monkeypatch.setattr("condensery.models.encoder.kernel_of", lambda query, window: None)
    padded, _ = gradients("cocondenser", bf16=bf16)
    assert not all(torch.equal(found[name], padded[name]) for name in found), "the kernel was not used"
    flat = [torch.cat([each[name].flatten() for name in sorted(each)]) for each in (found, padded)]
    assert float((flat[0] - flat[1]).norm() / flat[1].norm()) < (0.1 if bf16 else 1e-4)


@pytest.mark.parametrize("layers", ["eager", "compiled"])
@pytest.mark.parametrize("bf16", [False, True])
def test_the_second_pass_draws_the_dropout_of_the_first(bf16: bool, layers: str) -> None:
    model, _, _ = task("cocondenser", "cuda", dropout=0.3)
    passes: list[Tensor] = []

    class Recorded(MaskedPrediction):
        def vectors(self, chunk: Chunk) -> Tensor:
            passes.append(super().vectors(chunk))
            return passes[-1]

        def encode(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
            vectors, losses = super().encode(chunk)
            passes.append(vectors.detach())
            return vectors, losses

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
            backpropagate(Recorded(model, 30), batch("cocondenser", "cuda", True), span_contrast)

    if layers == "eager":
        step()
    else:
        torch._dynamo.reset()
        with compiled():
            step()
    assert len(passes) == 7, "one chunk waits, three are encoded twice"
    for first, second in zip(passes[1:4], passes[4:], strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0.05 if bf16 else 1e-4)


def test_the_peak_of_a_step_does_not_grow_with_its_batch() -> None:
    def peak(spans: int) -> int:
        _, encoder, contrast = task("cocondenser", "cuda", dropout=0.1)
        rows = textbook.rows([32] * spans)
        parts = [chunk.to("cuda") for chunk in rows.chunks(32 * 64)]
        for _ in range(2):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            backpropagate(encoder, parts, contrast)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    few, many = peak(256), peak(2048)
    # similarities of all with all, some copies of them, and vectors; the graphs of 32 chunks would be ten times as much
    assert many - few < 8 * 4 * 2048 * 2048 + 2**20


def test_search_on_the_gpu_is_that_of_faiss(tmp_path: Path) -> None:
    passages, queries = (np.random.default_rng(n).normal(size=(n, 64)).astype(np.float32) for n in (5_000, 40))
    (tmp_path / "passages").mkdir()
    np.save(shard_path(tmp_path, 0), passages)
    np.save(tmp_path / "queries.npy", queries)
    write_json(tmp_path / "index.json", {"dim": 64, "passages": 5_000, "shards": [[0, 5_000]]})
    here, there = (DenseIndex(tmp_path, device=device).search(np.arange(40), 50) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(there[0], here[0], rtol=1e-4)
    agree = there[1] == here[1]
    assert agree.mean() > 0.999, "but for equal scores"


def test_a_retriever_on_the_gpu_is_measured_and_interpolated() -> None:
    """Chunks and trained weights are on the CPU, as in the stage keep_best."""
    start, trained = (BiEncoder(Encoder(textbook.language_model(hidden=64, layers=2).base_model)).float() for _ in "ab")
    with torch.no_grad():
        for weights in trained.parameters():
            weights.add_(0.1)
    parts = textbook.rows(LENGTHS).chunks(80)
    with torch.no_grad():
        here = encoded(start.eval().vectors, parts)
        start.to("cuda")
        there = encoded(lambda chunk: start.vectors(chunk.to("cuda")), parts)
    torch.testing.assert_close(there.cpu(), here, rtol=1e-3, atol=1e-4)
    half = blended(start, trained, 0.5)
    for mine, first, last in zip(half.parameters(), start.parameters(), trained.parameters(), strict=True):
        torch.testing.assert_close(mine, torch.lerp(first.cpu(), last, 0.5))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_vectors_in_mixed_precision_are_close_to_those_in_fp32(precision: str) -> None:
    towers = BiEncoder(Encoder(textbook.language_model(hidden=64, layers=4).base_model)).float().eval().to("cuda")
    found = []
    for each in ("fp32", precision):
        with inference("cuda", each):
            parts = [towers.vectors(chunk.to("cuda")).float() for chunk in textbook.rows(LENGTHS).chunks(80)]
        found.append(torch.cat(parts))
    assert not torch.equal(*found)
    assert float(torch.nn.functional.cosine_similarity(*found).min()) > 0.99
