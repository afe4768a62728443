"""``chunk_tokens: auto``: how large a chunk is taken for the memory that is free."""

import pytest
import torch
import trainings

from condensery.training.chunk_size import LARGEST, chunk_that_fits, doubled


@pytest.mark.parametrize(
    ("room", "chunk"), [(1.0, 2048), (9e6, 2048), (1e7, 4096), (3.9e7, 8192), (1e12, LARGEST)], ids=str
)
def test_it_is_doubled_as_long_as_the_next_fits(room: float, chunk: int) -> None:
    asked: list[int] = []

    def peak(budget: int) -> tuple[int, bool]:
        asked.append(budget)
        return 2_400 * budget, False

    assert doubled(peak, room, 2048) == chunk
    assert all(2_400 * budget <= max(room, 2_400 * 2048) for budget in asked), "nothing is tried that does not fit"


def test_it_is_no_larger_than_the_batch() -> None:
    assert doubled(lambda budget: (1, budget >= 10_000), 1e12, 2048) == 16_384


def test_on_a_cpu_nothing_is_measured(tmp_path: object) -> None:
    module, data, _ = trainings.run("condenser", tmp_path)  # type: ignore[arg-type]
    data.setup()
    before = data.batches.budget
    assert chunk_that_fits(module, data.batches, "fp32", torch.device("cpu"), 2048) == 2048
    assert data.batches.budget == before
