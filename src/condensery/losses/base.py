"""What the losses of the bi-encoder have in common."""

from torch import Tensor, nn


class RetrievalLoss(nn.Module):
    """A loss of a batch of queries and passages, of which each query has one positive.

    It is computed once a step from the vectors of the whole batch, whatever its chunking and however many processes
    share it (Gao and Callan 2021b, §3.3). Weights of its own, such as a learned temperature, are made in ``__init__`` or
    ``prepare`` and read in ``forward``, or in ``features``, which is called chunk by chunk. A subclass raises ``UserError``
    for options that it cannot take.
    """

    def prepare(self, hidden_size: int, seed: int) -> None:
        """Make the weights of the loss, if it has any. ``hidden_size``: dimensions d of a vector."""

    def features(self, vectors: Tensor, tower: int) -> Tensor:
        """What ``forward`` takes of a chunk: by default its vectors (b, d). ``tower``: QUERY or PASSAGE."""
        return vectors

    def forward(self, queries: Tensor, passages: Tensor, positive: Tensor, known: Tensor | None = None) -> Tensor:
        """The mean over the queries, a scalar.

        Args:
            queries: (q, d) features in fp32 or wider.
            passages: (p, d), positives and hard negatives of all queries.
            positive: (q,) the row in ``passages`` of each query's positive.
            known: (q, p) True where a passage is known to be relevant to the query; None = that is not to be looked at.
        """
        raise NotImplementedError
