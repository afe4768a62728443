"""Adaptive batch scheduling against the paper's words, computed the slow way; every pair once; never less hard."""

from itertools import combinations

import numpy as np
import pytest
import scipy.sparse as sparse

from condensery.randomness import generator
from condensery.training.adaptive.search import Scheduler

NONE = np.empty(0, np.int64)
SEED, EPOCH, N = 3, 2, 4


def similarities(pairs: int = 23, share: float = 0.4, seed: int = 0) -> np.ndarray:
    """(t, t) sixteenths with many ties, the largest 1, so that no sum is rounded; nothing on the diagonal."""
    random = np.random.default_rng(seed)
    values = random.integers(1, 17, (pairs, pairs)) / 16 * (random.random((pairs, pairs)) < share)
    values[0, 1] = 1.0
    np.fill_diagonal(values, 0.0)
    return values


def h(similarity: np.ndarray, batch: list[int]) -> float:
    """Zhao et al., eq. 1, word by word."""
    return sum(similarity[i, j] + similarity[j, i] for i, j in combinations(batch, 2))


def by_definition(similarity: np.ndarray, size: int, beam: int) -> list[list[int]]:
    """Zhao et al., §3.2: ``beam`` ** 2 replacements a step, every hardness computed anew, every unused pair looked at."""
    unused, batches = list(range(len(similarity))), []
    while unused:
        random = generator(SEED, "schedule", EPOCH, len(batches))
        batch = random.choice(np.array(unused), min(size, len(unused)), replace=False).tolist()
        while True:
            leaving = sorted(batch, key=lambda d: (-h(similarity, [e for e in batch if e != d]), d))[:beam]
            best, better = h(similarity, batch), None
            for removed in leaving:
                rest = [d for d in batch if d != removed]
                others = [d for d in unused if d not in batch]
                entering = sorted(others, key=lambda d: (-h(similarity, [*rest, d]), d))[:beam]
                for added in entering:
                    if h(similarity, [*rest, added]) > best:
                        best, better = h(similarity, [*rest, added]), [*rest, added]
            if better is None:
                break
            batch = better
        batches.append(sorted(batch))
        unused = [d for d in unused if d not in batch]
    return batches


def scheduler(similarity: np.ndarray, beam: int = 1, passage: np.ndarray | None = None, **changes: int) -> Scheduler:
    own = np.arange(len(similarity)) if passage is None else passage
    options = {"batch_size": N, "seed": SEED, "epoch": EPOCH, **changes}
    return Scheduler(sparse.csr_matrix(similarity), own, beam=beam, **options)


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_batches_are_those_of_the_definition(beam: int, seed: int) -> None:
    similarity = similarities(seed=seed)
    found = [batch.tolist() for batch in scheduler(similarity, beam).batches(NONE)]
    assert found == by_definition(similarity, N, beam)


def test_dense_similarities_are_searched_like_sparse_ones() -> None:
    similarity = similarities(pairs=15, share=1.0)
    found = [batch.tolist() for batch in scheduler(similarity).batches(NONE)]
    assert found == by_definition(similarity, N, beam=1)


@pytest.mark.parametrize("beam", [1, 4])
def test_every_pair_is_used_once_and_only_the_last_batch_is_short(beam: int) -> None:
    batches = list(scheduler(similarities(50), beam).batches(NONE))
    assert [len(batch) for batch in batches] == [4] * 12 + [2]
    assert sorted(np.concatenate(batches)) == list(range(50))


@pytest.mark.parametrize("beam", [1, 3])
def test_no_swap_makes_a_batch_less_hard_and_a_beam_sees_no_worse_swap(
    beam: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    similarity, search = similarities(40, seed=9), Scheduler._best_swap
    seen: list[list[float]] = []

    def watched(self: Scheduler) -> tuple[int, int] | None:
        members = self._kept[[*self._weights]].tolist()
        before = h(similarity, members)
        if len(seen) == 0 or before <= seen[-1][-1]:  # another batch, or none better
            seen.append([])
        seen[-1].append(before)

        def after(width: int) -> float:
            self.beam = width
            swap = search(self)
            removed, added = self._kept[[*swap]] if swap else (None, None)
            return h(similarity, [d for d in members if d != removed] + [added]) if swap else before

        assert after(3) >= after(1) >= before
        self.beam = beam
        return search(self)

    monkeypatch.setattr(Scheduler, "_best_swap", watched)
    batches = list(scheduler(similarity, beam).batches(NONE))
    assert len(seen) == len(batches), "hardness fell inside a batch"
    for values, batch in zip(seen, batches, strict=True):
        assert values == sorted(set(values))
        assert values[-1] == h(similarity, [*batch])
    assert sum(map(len, seen)) > 2 * len(batches), "hardly a swap was made"


def test_a_schedule_goes_on_where_it_was_broken_off() -> None:
    whole = list(scheduler(similarities(50)).batches(NONE))
    for made in (1, 5, 12):
        rest = list(scheduler(similarities(50)).batches(np.concatenate(whole[:made])))
        assert [batch.tolist() for batch in rest] == [batch.tolist() for batch in whole[made:]]
    assert list(scheduler(similarities(50)).batches(np.arange(50))) == []


def test_batches_depend_on_seed_and_epoch_and_on_nothing_else() -> None:
    def batches(**changes: int) -> list[list[int]]:
        return [batch.tolist() for batch in scheduler(similarities(50), **changes).batches(NONE)]

    assert batches() == batches()
    assert batches() != batches(epoch=3)
    assert batches() != batches(seed=4)


def test_a_passage_comes_once_a_batch_where_that_is_possible() -> None:
    random = np.random.default_rng(5)
    passage = np.repeat(np.arange(12), 4)
    similarity = random.random((48, 12))
    similarity[np.arange(48), passage] = 0.0  # as the passage is relevant
    made = list(scheduler(similarity, passage=passage).batches(NONE))
    twice = [len(batch) - len(np.unique(passage[batch])) for batch in made]
    assert sum(twice[:8]) == 0
    assert sorted(np.concatenate(made)) == list(range(48))


def test_scheduled_batches_are_harder_than_random_ones() -> None:
    random = np.random.default_rng(1)
    centres = random.normal(size=(20, 8))
    vectors = centres[random.integers(0, 20, 400)] + 0.3 * random.normal(size=(400, 8))
    similarity = np.maximum(vectors @ vectors.T, 0.0)
    np.fill_diagonal(similarity, 0.0)
    order = np.split(random.permutation(400), 50)
    mean = {
        beam: np.mean([h(similarity, [*batch]) for batch in scheduler(similarity, beam, batch_size=8).batches(NONE)])
        for beam in (1, 4)
    }
    assert min(mean.values()) > 3 * np.mean([h(similarity, [*batch]) for batch in order])
