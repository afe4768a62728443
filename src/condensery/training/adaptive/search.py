"""Adaptive batch scheduling (Zhao et al. 2023, §3.2): training pairs that are similar to each other share a batch.

A training pair i is a query and its positive passage. The similarity of query i and passage j is s_ij. The weight between
pairs i and j is w_ij = s_ij + s_ji. The hardness of a batch is h(B) = sum over i != j in B of s_ij (Zhao et al., eq. 1). The
gain of a pair is g_i = sum over j in B of w_ij. The hardness is half of the sum of the members' gains. Hence, from the gains:

    argmax h(B - r)     is the member r with the smallest gain                                     (Zhao et al., eq. 3)
    argmax h(B - r + a) is the pair a with the largest g_a - w_ra; h grows by g_a - w_ra - g_r     (Zhao et al., eq. 4)

Similarities are sparse: a similarity that is not stored counts as 0. Neighbours are pairs whose weight may differ from 0. A
swap changes only the gains of the neighbours of the two swapped pairs. A pair that is not a neighbour of any member has the
gain 0, so the search considers neighbours only. As long as no similarity is negative, the search finds the best of all pairs
that are not used yet.

Symbols in shapes: t training pairs, u passages that are the positive of some pair, n pairs of a batch.
"""

from collections.abc import Iterator

import numpy as np
import scipy.sparse as sparse

from condensery.randomness import generator
from condensery.tokens.ranges import Ids, ranges

SCALE = 1 << 20  # integer value of the largest similarity; sums of integers are exact in any order
APART = 1 << 40  # penalty for a passage that is in a batch twice; larger than any gain
TAKEN = 1 << 61  # subtracted from the gains of members; larger than all penalties together


class Scheduler:
    """Makes the batches of one epoch (Zhao et al. 2023, §3.2).

    A batch begins with random pairs. Pairs are swapped as long as each swap makes the batch harder. Every pair occurs once
    per epoch; the last batch may be short. If two pairs have the same passage, this passage is no negative for their queries.
    Such pairs share a batch only if no neighbour can replace one of them. Of equally good pairs the first is chosen.

    Args:
        similarity: (t, u) sparse similarities of queries and passages; entries that are not stored are 0. A passage that is
            relevant to a query is excluded as the query's negative, so the similarity of query and passage should not be
            stored.
        passage: (t,) the positive of each pair, as a column of ``similarity``.
        batch_size: number of pairs in a batch.
        beam: number of members that are considered for removal, which are the members with the smallest gains. The best swap
            is made. 1 = greedy search. For each member to remove, Zhao et al. consider the ``beam`` best pairs to add. The
            best swap always adds the best of these pairs, so this search considers only the best pair.
        seed, epoch: seed and epoch that determine the random pairs with which each batch begins.
    """

    def __init__(
        self, similarity: sparse.csr_matrix, passage: Ids, batch_size: int, beam: int, seed: int, epoch: int
    ) -> None:
        self.passage, self.batch_size, self.beam = passage, batch_size, beam
        self.seed, self.epoch = seed, epoch
        values = similarity.data.astype(np.float64)
        whole = np.rint(values / max(np.abs(values).max(initial=0.0), 1e-30) * SCALE).astype(np.int32)  # (stored,)
        self._similarity = sparse.csr_matrix((whole, similarity.indices, similarity.indptr), shape=similarity.shape)
        self._weights: dict[int, tuple[Ids, Ids]] = {}  # member -> places of its neighbours, and its weights with them

    def batches(self, done: Ids) -> Iterator[Ids]:
        """Yield the batches (n,), ascending, that come after the batches of the pairs ``done``.

        A batch depends only on which pairs are done, so an interrupted search continues with the same batches.
        """
        unused = np.delete(np.arange(len(self.passage)), done)
        number = len(done) // self.batch_size
        self._search_among(unused)
        while len(unused):
            if 2 * len(unused) < len(self._kept):
                self._search_among(unused)
            size = min(self.batch_size, len(unused))
            random = generator(self.seed, "schedule", self.epoch, number)
            first = np.searchsorted(self._kept, random.choice(unused, size, replace=False))
            batch = np.sort(self._hardened(first))
            self._unused[batch] = False
            unused = self._kept[self._unused]
            number += 1
            yield self._kept[batch]

    def _search_among(self, kept: Ids) -> None:
        """Prepare the search among the pairs ``kept`` (k,), ascending. From here on, a pair is an index into ``kept``."""
        self._kept = kept
        self._by_query = self._similarity[kept] if len(kept) < len(self.passage) else self._similarity  # (k, u)
        self._by_passage = self._by_query.tocsc()
        self._own = self.passage[kept]  # (k,)
        self._pairs = np.argsort(self._own, kind="stable")  # (k,) the pairs, sorted by their passage
        self._first = np.searchsorted(self._own[self._pairs], np.arange(self._similarity.shape[1] + 1))  # (u + 1,)
        self._unused = np.ones(len(kept), bool)
        # The state of the search for one batch. The neighbourhood is the set of pairs whose gain may differ from 0.
        self._size = 0  # number of pairs in the neighbourhood
        self._place = np.full(len(kept), -1, np.int64)  # (k,) index of each pair in ``_near`` and ``_gains``, or -1
        self._near = np.empty(len(kept), np.int64)  # (k,) the first ``_size`` are the pairs of the neighbourhood
        self._gains = np.empty(len(kept), np.int64)  # (k,) the gains of the pairs in ``_near``, minus TAKEN for members

    def _hardened(self, batch: Ids) -> Ids:
        """Swap members of ``batch`` (n,) for unused pairs as long as the batch gets harder; return the members (n,)."""
        for pair in batch.tolist():
            self._enter(pair)
        while (swap := self._best_swap()) is not None:
            self._leave(swap[0])
            self._enter(swap[1])
        members = np.fromiter(self._weights, np.int64)
        self._place[self._near[: self._size]] = -1
        self._size = 0
        self._weights.clear()
        return members

    def _best_swap(self) -> tuple[int, int] | None:
        """Return the member to remove and the pair to add; None if none of the swaps considered makes the batch harder."""
        members = np.fromiter(self._weights, np.int64)  # (n,)
        gains = self._gains[self._place[members]] + TAKEN  # (n,)
        best, swap = 0, None
        rest = self._gains[: self._size]  # (size,)
        for i in np.lexsort((members, gains))[: self.beam].tolist():
            np.subtract.at(rest, *self._weights[int(members[i])])  # the gains without this member
            top = rest.max()
            if top - gains[i] > best:
                best = top - gains[i]
                swap = int(members[i]), int(self._near[: self._size][rest == top].min())
            np.add.at(rest, *self._weights[int(members[i])])
        return swap

    def _enter(self, pair: int) -> None:
        """Make a pair a member: add the weight between the pair and each neighbour to the neighbour's gain."""
        neighbours, weights = self._neighbours(pair)
        new = neighbours[self._place[neighbours] < 0]
        self._place[new] = np.arange(len(new))
        new = new[self._place[new] == np.arange(len(new))]  # each new neighbour once
        stop = self._size + len(new)
        self._place[new] = np.arange(self._size, stop)
        self._near[self._size : stop], self._gains[self._size : stop] = new, 0
        self._size = stop
        places = self._place[neighbours]
        np.add.at(self._gains, places, weights)
        self._gains[self._place[pair]] -= TAKEN
        self._weights[pair] = places, weights

    def _leave(self, pair: int) -> None:
        np.subtract.at(self._gains, *self._weights.pop(pair))
        self._gains[self._place[pair]] += TAKEN

    def _neighbours(self, pair: int) -> tuple[Ids, Ids]:
        """Return the unused neighbours of a pair, including the pair itself, and their weights with the pair.

        A neighbour may occur up to three times. Its weight is then the sum of the weights at its occurrences. The weight of
        the pair itself is 0.
        """
        by_query, by_passage = self._by_query, self._by_passage
        own = self._own[pair]
        row = slice(by_query.indptr[pair], by_query.indptr[pair + 1])
        column = slice(by_passage.indptr[own], by_passage.indptr[own + 1])
        passages = by_query.indices[row]
        first = self._first[passages]
        numbers = self._first[passages + 1] - first
        same = self._pairs[self._first[own] : self._first[own + 1]]
        neighbours = np.concatenate([self._pairs[ranges(first, numbers)], by_passage.indices[column], same])
        of_query = np.repeat(by_query.data[row], numbers)  # similarity of this query and the neighbours' passages
        of_passage = by_passage.data[column]  # similarity of the neighbours' queries and this passage
        weights = np.concatenate([of_query, of_passage, np.full(len(same), -APART)])
        weights[neighbours == pair] = 0
        there = self._unused[neighbours]
        return neighbours[there], weights[there]
