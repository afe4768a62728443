"""A batch that was sent is the batch that was made, and all of it came in one block."""

import io
from multiprocessing.reduction import ForkingPickler
from pickle import loads

import numpy as np
import pytest
import torch
from torch import Tensor

from condensery.tokens.batches import Chunk, TokenRows, chunks
from condensery.training.data.span_batches import SpanBatch
from condensery.training.data.steps import Batch
from condensery.training.data.triple_batches import TripleBatch


def made(kind: str) -> Batch:
    starts = np.cumsum([0, 9, 30, 4, 17])
    ids = np.arange(5, 5 + starts[-1])
    masked = np.array([3, 20, 40])
    context = TokenRows(ids[::-1], starts, masked, ids[masked]) if kind == "context" else None
    parts = chunks(ids, starts, 32, 0, masked=masked, targets=ids[masked], context=context)
    if kind != "triples":
        return SpanBatch(chunks=parts, tokens=60, masked=3)
    queries = chunks(ids, starts, 32, 0, tower=1)
    known = torch.tensor([[True, False], [False, False]])
    numbers = torch.arange(2), torch.empty((0, 2), dtype=torch.int64)
    return TripleBatch(
        chunks=[*queries, *parts], tokens=9, positive=numbers[0], known=known, passages=numbers[0], judged=numbers[1]
    )


def tensors(batch: Batch) -> list[Tensor]:
    def inside(value: object) -> list[Tensor]:
        if isinstance(value, Tensor):
            return [value]
        if isinstance(value, list | tuple):
            return [tensor for one in value for tensor in inside(one)]
        return inside(list(vars(value).values())) if isinstance(value, Batch | Chunk) else []

    return inside(batch)


@pytest.mark.parametrize("kind", ["spans", "context", "triples"])
def test_a_batch_arrives_as_it_was_sent(kind: str) -> None:
    batch = made(kind)
    sent = ForkingPickler.dumps(batch)
    got = loads(sent)
    assert type(got) is type(batch)
    assert (got.tokens, got.replicated) == (batch.tokens, batch.replicated)
    assert [chunk.tower for chunk in got.chunks] == [chunk.tower for chunk in batch.chunks]
    for one, other in zip(tensors(got), tensors(batch), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ["spans", "context", "triples"])
def test_it_comes_in_one_block_which_is_not_copied_again(kind: str) -> None:
    reduced: list[Tensor] = []

    class Counted(ForkingPickler):
        def reducer_override(self, value: object) -> object:
            if isinstance(value, Tensor):
                reduced.append(value)
            return NotImplemented

    stream = io.BytesIO()
    Counted(stream).dump(made(kind))
    assert len(reduced) == 1, "one tensor is sent"
    got = loads(stream.getvalue())
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors(got) if tensor.numel()}) == 1
    reduced.clear()
    Counted(io.BytesIO()).dump(got)
    assert reduced[0].untyped_storage().data_ptr() == tensors(got)[0].untyped_storage().data_ptr()


def test_on_the_device_where_it_is_nothing_is_done() -> None:
    batch = made("spans")
    assert batch.to(torch.device("cpu")) is batch
    moved = batch.to(torch.device("meta"))
    assert {tensor.device.type for tensor in tensors(moved)} == {"meta"}
    assert [tensor.shape for tensor in tensors(moved)] == [tensor.shape for tensor in tensors(batch)]
