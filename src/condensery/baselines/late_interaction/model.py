"""The encoder that maps a text to vectors of its tokens, and the score of a query and a passage by these vectors.

Each vector has a key. A query's vector is compared only with the passage's vectors of the same key:

    s(q, p) = sum over the vectors i of q of: max over the vectors j of p with key_j = key_i of <q_i, p_j>

A query vector whose key no passage vector has adds 0. Three methods are of this form:

- ColBERT (Khattab and Zaharia 2020, eq. 1-3): all vectors have the same key, and are normalised. [Q] or [D] follows [CLS]. A
  query is filled up with [MASK] tokens, which are read like any other token. The punctuation of a passage has no vector. In
  ColBERTv2 and later models, [MASK] tokens attend to the query's own tokens, but no token attends to them.
- COIL (Gao et al. 2021): the key is the token, so only exact matches count. [CLS] has a longer vector, whose inner product is
  added. Here it is split into pieces with the dimensions of a token's vector. Each piece has its own key.
- ME-BERT (Luan et al. 2021): a query has only the vector of [CLS]. A passage has the vectors of its first m tokens. All
  vectors have the same key.

Symbols in shapes: b rows of a chunk, t width of the chunk, v vectors of a text, d dimensions, h hidden size.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from condensery.baselines.late_interaction.config import Method
from condensery.losses.gradient_cache import wide
from condensery.models.biencoder import QUERY, BiEncoder
from condensery.models.encoder import Encoder
from condensery.models.packing import PackedLayout
from condensery.models.precision import autocast
from condensery.ranges import Count, CountOrZero, Length
from condensery.tokens.batches import Chunk

UNUSED = -1  # key of a place without a vector


@dataclass(frozen=True)
class Interaction:
    """Which tokens of a text have a vector, and the sizes of the vectors.

    Attributes:
        method: colbert, coil or me_bert.
        dimensions: dimensions d of a vector.
        query_length, passage_length: maximum tokens of a query and a passage, with [CLS], [SEP] and the marker [Q] or [D].
        first: only for me_bert: number m of tokens with a vector, from the beginning of a passage.
        whole: only for coil: dimensions of the vector of [CLS], a multiple of ``dimensions``; 0 = [CLS] has no vector.
        mask: id of [MASK].
        markers: only for colbert: ids of [D] and [Q]; empty for the other methods.
        left_out: ids of tokens without a vector: punctuation marks in passages (colbert), or special tokens (coil).
        attended: only for colbert: whether the tokens of a query attend to the [MASK] tokens; None = no [MASK] is added.
    """

    method: Method
    dimensions: Count
    query_length: Length
    passage_length: Length
    first: CountOrZero = 0
    whole: CountOrZero = 0
    mask: CountOrZero = 0
    markers: tuple[int, ...] = ()
    left_out: tuple[int, ...] = ()
    attended: bool | None = True

    @property
    def lengths(self) -> tuple[int, int]:
        """Maximum tokens of a query and a passage without the marker, which the encoder inserts."""
        return self.query_length - bool(self.markers), self.passage_length - bool(self.markers)

    @property
    def most(self) -> int:
        """The largest number of vectors of a text."""
        others = max(self.query_length, self.passage_length) + self.whole // self.dimensions
        return self.first if self.method == "me_bert" else others


class TokenEncoder(BiEncoder):
    """Maps a text to vectors of its tokens, each with a key; one encoder reads queries and passages.

    Args:
        encoder: the backbone; its ``head`` maps states (k, h) to vectors (k, d).
        interaction: which tokens of a text have a vector.
        whole: only for coil: the layers that map a state of [CLS] (b, h) to its vector, which is longer than a token vector.
            Empty or None = [CLS] has no vector.
    """

    left_out: Tensor

    def __init__(self, encoder: Encoder, interaction: Interaction, whole: nn.Sequential | None = None) -> None:
        super().__init__(encoder)
        self.interaction, self.whole = interaction, nn.Sequential() if whole is None else whole
        self.register_buffer("left_out", torch.tensor(interaction.left_out, dtype=torch.long), persistent=False)

    def keyed(self, chunk: Chunk) -> Tensor:
        """Return the vectors of each row with their keys as last coordinate, (b, v, d + 1); key ``UNUSED`` = no vector."""
        interaction, query, own = self.interaction, chunk.tower == QUERY, chunk.lengths + 1
        chunk = self._marked(chunk) if interaction.markers else chunk
        layout, read = PackedLayout(chunk), replace(chunk, lengths=own).attention_mask[:, None, None]  # (b, 1, 1, t)
        visible = read if query and interaction.attended is False else None
        states = layout.tokens.pad(self.query(layout, visible=visible)[0])  # (b, t, h)
        ids, used = chunk.input_ids, chunk.attention_mask  # (b, t) each
        if interaction.method == "me_bert":
            states, used = states[:, : 1 if query else interaction.first], used[:, : 1 if query else interaction.first]
        elif interaction.method == "coil" or not query:
            used = used & ~torch.isin(ids, self.left_out)
        vectors = wide(self.query.head(states))  # (b, v, d)
        vectors = nn.functional.normalize(vectors, dim=-1) if interaction.method == "colbert" else vectors
        keys = ids if interaction.method == "coil" else torch.zeros_like(used, dtype=torch.long)  # (b, v)
        keys = keys.masked_fill(~used, UNUSED)
        if len(self.whole):
            pieces = wide(self.whole(states[:, 0])).unflatten(1, (-1, interaction.dimensions))  # (b, pieces, d)
            piece_keys = self.query.model.config.vocab_size + torch.arange(pieces.shape[1], device=keys.device)
            vectors = torch.cat([pieces.to(vectors), vectors], dim=1)
            keys = torch.cat([piece_keys.expand(len(keys), -1), keys], dim=1)
        return torch.cat([vectors, keys[..., None].to(vectors)], dim=2)

    def _marked(self, chunk: Chunk) -> Chunk:
        """Insert the marker after [CLS], and fill queries up with [MASK] (query augmentation, §3.2)."""
        marker = chunk.input_ids.new_full((len(chunk), 1), self.interaction.markers[chunk.tower])
        ids = torch.cat([chunk.input_ids[:, :1], marker, chunk.input_ids[:, 1:]], dim=1)  # (b, t + 1)
        lengths = chunk.lengths + 1
        if chunk.tower == QUERY and self.interaction.attended is not None:
            ids = nn.functional.pad(ids, (0, max(0, self.interaction.query_length - ids.shape[1])))
            ids = ids.where(torch.arange(ids.shape[1], device=ids.device) < lengths[:, None], self.interaction.mask)
            lengths = torch.full_like(lengths, ids.shape[1])
        return replace(chunk, input_ids=ids, lengths=lengths)

    def vectors(self, chunk: Chunk) -> Tensor:
        """Return the vectors of ``keyed`` as one row per text, (b, most * (d + 1)), for the gradient cache."""
        keyed = self.keyed(chunk)
        return nn.functional.pad(keyed, (0, 0, 0, self.interaction.most - keyed.shape[1]), value=UNUSED).flatten(1)


class _BestMatches(torch.autograd.Function):
    """Computes the formula at the head of this file. The backward pass reads only the best matches, not all products."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, query_keys: Tensor, passages: Tensor, passage_keys: Tensor) -> Tensor:
        """Return the scores (q, p); arguments (q, v, d), (q, v), (p, w, d) and (p, w)."""
        found = []
        with autocast(queries.device, "fp32"):
            for query, keys in zip(queries, query_keys, strict=True):  # all at once would take too much memory
                found.append((passages @ query.T).masked_fill_(passage_keys[..., None] != keys, -torch.inf).max(dim=1))
        best, matches = (torch.stack(part) for part in zip(*found, strict=True))  # (q, p, v) each
        used = (best != -torch.inf) & (query_keys != UNUSED)[:, None]  # (q, p, v)
        ctx.save_for_backward(queries, passages, matches, used)
        return torch.where(used, best, 0.0).sum(dim=2)

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor, None, Tensor, None]:
        """Return the gradients of query and passage vectors, from the gradients of the scores (q, p)."""
        queries, passages, matches, used = ctx.saved_tensors
        places = matches + passages.shape[1] * torch.arange(len(passages), device=matches.device)[:, None]  # (q, p, v)
        of_queries, of_passages = torch.empty_like(queries), torch.zeros_like(passages).flatten(0, 1)  # (p * w, d)
        for row, place in enumerate(places):
            weights = (gradients[row, :, None] * used[row])[..., None]  # (p, v, 1)
            of_queries[row] = (weights * passages.flatten(0, 1)[place]).sum(dim=0)
            of_passages.index_add_(0, place.flatten(), (weights * queries[row]).flatten(0, 1))
        return of_queries, None, of_passages.view_as(passages), None


def interaction_scores(queries: Tensor, passages: Tensor) -> Tensor:
    """Return the score of each query and passage, by the formula at the head of this file.

    Args:
        queries: (q, v, d + 1) token vectors as ``TokenEncoder.keyed`` returns them, with their keys as last coordinate.
        passages: (p, w, d + 1) token vectors of the passages, also with their keys.

    Returns:
        the scores, (q, p).
    """
    queries, passages = (part[:, (part[..., -1] != UNUSED).any(dim=0)] for part in (queries, passages))
    return _BestMatches.apply(queries[..., :-1], queries[..., -1], passages[..., :-1], passages[..., -1])
