"""Attention within rows that stand one behind the other is that of padded rows, wherever it is used."""

from functools import partial

import pytest
import textbook
import torch
from torch import Tensor

from condensery.models import encoder, packing, varlen
from condensery.models.condenser import Condenser, CondenserShape
from condensery.models.masked_autoencoder import MaskedAutoEncoder, decoder_shape
from condensery.models.pretraining import PretrainingModel
from condensery.models.varlen import KERNELS, Segments, best_kernel, one_row_after_the_other
from condensery.models.vectors import VectorSettings

LENGTHS, CONTEXTS = [12, 6, 9, 4, 12], [7, 11, 4, 12, 5]


def use_a_kernel(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The CPU passes for a device with a kernel; how many queries each of its calls had."""
    calls: list[int] = []

    def kernel(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        asking: Segments,
        seen: Segments,
        p: float,
        window: int | None = None,
    ) -> Tensor:
        for states, rows in ((query, asking), (key, seen)):
            lengths = rows.starts.diff()
            assert int(lengths.min()) > 0
            assert (int(rows.starts[-1]), int(lengths.max())) == (len(states), rows.longest)
        calls.append(len(query))
        return one_row_after_the_other(query, key, value, asking, seen, p, window)

    monkeypatch.setattr(packing, "have_kernels", lambda device: True)
    monkeypatch.setattr(encoder, "kernel_of", lambda query, window: partial(kernel, window=window))
    return calls


def model_of(kind: str) -> PretrainingModel:
    if kind == "condenser":
        return Condenser(textbook.language_model(), CondenserShape(2, 1, late_mlm=True)).double()
    return MaskedAutoEncoder(textbook.language_model(), decoder_shape(kind)).double()  # type: ignore[arg-type]


@pytest.mark.parametrize("without", [[], [1]], ids=["masked tokens in all rows", "not in all"])
@pytest.mark.parametrize("kind", ["condenser", "masked", "causal", "enhanced"])
def test_losses_and_gradients_equal_those_of_padded_rows(
    kind: str, without: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(kind)
    passages = textbook.rows(LENGTHS, without=without)
    contexts = textbook.contexts("masked" if kind == "condenser" else kind, CONTEXTS, without=without)
    (chunk,) = textbook.paired(passages, contexts, [5])

    def computed() -> tuple[Tensor, dict[str, Tensor]]:
        torch.manual_seed(0)  # of what an enhanced decoder sees
        model.zero_grad()
        cls, losses = model.encode(chunk)
        (sum(loss.sum() for loss in losses.values()) + cls.cos().sum()).backward()
        return torch.cat([cls.flatten(), *losses.values()]).detach(), textbook.gradients(model)

    padded, gradients = computed()
    calls = use_a_kernel(monkeypatch)
    packed, others = computed()
    torch.testing.assert_close(packed, padded, rtol=0, atol=1e-11)
    assert textbook.worst(others, gradients) < 1e-9
    assert calls[:3] == [sum(LENGTHS), sum(LENGTHS), 5], "two layers at all tokens, and CLS in the last"
    assert (len(passages.masked) in calls) == (not without), "a row in which nothing is read has no queries"


def test_rows_of_one_length_need_no_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = use_a_kernel(monkeypatch)
    model_of("condenser").encode(textbook.rows([8, 8, 8]).cut([3])[0])
    assert not calls


def test_local_attention_by_a_kernel_is_that_of_padded_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    model = encoder.Encoder(textbook.language_model("modernbert").base_model, VectorSettings("mean")).eval()
    (chunk,) = textbook.rows(LENGTHS).cut([len(LENGTHS)])
    padded = model.vectors(chunk)
    calls = use_a_kernel(monkeypatch)
    torch.testing.assert_close(model.vectors(chunk), padded, rtol=0, atol=1e-11)
    assert calls == [sum(LENGTHS)] * 3, "all layers, the local ones too"


@pytest.mark.parametrize("name", list(KERNELS))
def test_torch_has_the_operators_under_the_arguments_that_they_get(name: str) -> None:
    queries = torch.empty(9, 4, 64, dtype=torch.bfloat16, device="meta")
    keys = torch.empty(21, 4, 64, dtype=torch.bfloat16, device="meta")
    asking, seen = (Segments(torch.empty(4, dtype=torch.int32, device="meta"), longest) for longest in (5, 12))
    found = KERNELS[name](queries, keys, keys, asking, seen, 0.1)
    assert found.shape == queries.shape


def test_a_kernel_is_taken_if_it_gives_what_matrix_products_give(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(query: Tensor, key: Tensor, value: Tensor, asking: Segments, seen: Segments, p: float) -> Tensor:
        return one_row_after_the_other(query, key, value, asking, seen, p) + 0.3 * query

    def missing(*_: object) -> Tensor:
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")

    cpu, state = torch.device("cpu"), torch.get_rng_state()
    assert best_kernel(cpu, torch.float32, 8) is None
    monkeypatch.setattr(varlen, "have_kernels", lambda device: True)
    kernels = {"missing": missing, "wrong": wrong, "right": one_row_after_the_other}
    monkeypatch.setattr(varlen, "KERNELS", kernels)
    for dtype in (torch.float32, torch.bfloat16):
        assert best_kernel.__wrapped__(cpu, dtype, 8) == "right"
    kernels.pop("right")
    assert best_kernel.__wrapped__(cpu, torch.float32, 8) is None
    assert torch.equal(torch.get_rng_state(), state), "random numbers were drawn"


def test_a_kernel_is_tried_without_the_hooks_of_the_gradient_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def drop(_: Tensor) -> None:
        return None

    monkeypatch.setattr(varlen, "have_kernels", lambda device: True)
    monkeypatch.setattr(varlen, "KERNELS", {"right": one_row_after_the_other})
    with torch.autograd.graph.saved_tensors_hooks(drop, drop):
        assert best_kernel.__wrapped__(torch.device("cpu"), torch.float32, 8) == "right"


def test_a_kernel_for_which_the_memory_is_full_is_not_taken_for_a_wrong_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(varlen, "have_kernels", lambda device: True)
    monkeypatch.setattr(varlen, "KERNELS", {"full": full, "right": one_row_after_the_other})
    with pytest.raises(torch.OutOfMemoryError):
        best_kernel.__wrapped__(torch.device("cpu"), torch.float32, 8)
