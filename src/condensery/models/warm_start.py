"""The warm start: initial weights that already contain statistics of a collection's tokens.

At the beginning of training, the loss of a randomly initialised encoder stays on a plateau for millions of tokens, until its
states distinguish words. Co-occurrences of tokens can be counted without training. The warm start writes such statistics
into the weights. Its parts are:

- The token embeddings are set to ``token_vectors``, the truncated SVD of positive pointwise mutual information (Levy and
  Goldberg 2014).
- The bias of the vocabulary projection is set to log unigram frequencies, which a model learns first in masked language
  modelling.
- The value and output projections of attention are set near the identity (compare Trockman and Kolter 2023). A token's state
  then passes through the layers, and the CLS vector is about the mean of its text's token states.
- The keys of the first layer are set so that attention prefers rare tokens, as in smooth inverse frequency (Arora, Liang and
  Ma 2017). The attention to token w with frequency p(w) is proportional to (a / (a + p(w))) ** strength, as far as p(w) can
  be predicted from the embedding of w. Later layers take plain means, so CLS vectors of deeper models are closer to plain
  means.
- The position embeddings are scaled down, so that a token's position does not outweigh the token itself.

Symbols in shapes: V tokens of the vocabulary, d hidden size, h heads, e = d / h.
"""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedModel

from condensery.randomness import generator
from condensery.tokens.vocabulary import Vocabulary

# the constant a of smooth inverse frequency: about the frequency of the hundredth most frequent English word
SMOOTH = 1e-4
RIDGE = 1e-4  # ridge penalty in the fit of log weights, relative to the mean square of the states


@dataclass(frozen=True)
class WarmStart:
    """The parts of a warm start and their strengths.

    Attributes:
        unigram_bias: whether the bias of the vocabulary projection is set to log unigram frequencies.
        near_identity: multiple of the identity matrix that is added to value and output projections; 0 = not added.
        random_share: factor by which the random weights of value and output projections are multiplied; used if
            ``near_identity`` is not 0.
        rare_tokens: strength of the first layer's preference for rare tokens; 0 = no preference.
        position_scale: factor by which position and type embeddings are multiplied.
    """

    unigram_bias: bool = True
    near_identity: float = 1.0
    random_share: float = 0.3
    rare_tokens: float = 0.5
    position_scale: float = 0.1


def token_vectors(left: NDArray[np.float64], values: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Return token embeddings (V, d) from the truncated SVD of token associations, U √S (Levy and Goldberg 2014).

    A random rotation spreads the singular values over the dimensions, so that no dimension dominates in LayerNorm and in the
    attention heads. The rotation does not change inner products. Each embedding is scaled to length 1; the embedding of a
    token without any association is zero.

    Args:
        left: (V, d) left singular vectors.
        values: (d,) singular values.
        seed: seed of the rotation.
    """
    rotation, _ = np.linalg.qr(generator(seed, "rotation").standard_normal((len(values), len(values))))  # (d, d)
    vectors = left * np.sqrt(values) @ rotation  # (V, d)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)  # (V, 1)
    known = lengths > 1e-9 * lengths.max(initial=1e-300)  # (V, 1)
    return np.where(known, vectors / np.where(known, lengths, 1.0), 0.0)


@torch.no_grad()
def warm_up(
    model: PreTrainedModel,
    vectors: NDArray[np.float64] | None,
    counts: NDArray[np.int64],
    vocabulary: Vocabulary,
    parts: WarmStart,
) -> None:
    """Write a warm start into a randomly initialised model, in place.

    Args:
        model: a randomly initialised ``BertForMaskedLM`` or ``RobertaForMaskedLM``.
        vectors: (V, d) embeddings from ``token_vectors``. A token with a row of zeros keeps its random embedding. None =
            all tokens keep their random embeddings.
        counts: (V,) number of occurrences of each token in the collection.
        vocabulary: vocabulary of the tokens.
        parts: the parts to write.
    """
    backbone: Any = model.base_model
    embeddings = backbone.embeddings
    if vectors is not None:
        _write_embeddings(embeddings.word_embeddings.weight, vectors)
    if parts.unigram_bias:
        shares = np.log((counts + 1) / (counts + 1).sum())  # (V,)
        output: Any = model.get_output_embeddings()
        output.bias[: len(shares)] = torch.from_numpy(shares).to(output.bias)
    for table in (embeddings.position_embeddings, embeddings.token_type_embeddings):
        table.weight.mul_(parts.position_scale)
    if parts.near_identity:
        for layer in backbone.encoder.layer:
            for projection in (layer.attention.self.value, layer.attention.output.dense):
                _near_identity(projection, parts)
    if parts.rare_tokens:
        _prefer_rare_tokens(backbone, counts, vocabulary, parts.rare_tokens)


@torch.no_grad()
def warm_up_generator(model: PreTrainedModel, vectors: NDArray[np.float64], parts: WarmStart | None = None) -> None:
    """Write a warm start into a randomly initialised T5, in place, so that its first outputs resemble its input.

    Token embeddings, which the vocabulary projection shares, are set to ``vectors``. The decoder's cross-attention gets
    value and output projections near the identity, so that it adds the mean of the input's states to the next output. The
    output projections of self-attention and feed-forward keep their random weights, multiplied by ``random_share``.

    Args:
        model: a randomly initialised ``T5ForConditionalGeneration`` whose heads together are as wide as its states.
        vectors: (V, d) embeddings from ``token_vectors``; tokens with a row of zeros keep their random embeddings.
        parts: only ``near_identity`` and ``random_share`` are used; the other parts do not exist in a T5.
    """
    parts, whole = parts or WarmStart(), cast(Any, model)
    _write_embeddings(whole.get_input_embeddings().weight, vectors)
    for block in (*whole.encoder.block, *whole.decoder.block):
        for sublayer in block.layer:
            if hasattr(sublayer, "EncDecAttention"):
                _near_identity(sublayer.EncDecAttention.v, parts)
                _near_identity(sublayer.EncDecAttention.o, parts)
            elif hasattr(sublayer, "SelfAttention"):
                sublayer.SelfAttention.o.weight.mul_(parts.random_share)
            else:
                sublayer.DenseReluDense.wo.weight.mul_(parts.random_share)


def _write_embeddings(table: nn.Parameter, vectors: NDArray[np.float64]) -> None:
    """Write the vectors that are not zero into their rows of ``table``, scaled to the random rows' standard deviation."""
    known = vectors.any(axis=1)  # (V,)
    if not known.any():
        return
    scale = float(table.std()) / vectors[known].std()
    table[torch.from_numpy(np.flatnonzero(known))] = torch.from_numpy(vectors[known] * scale).to(table)


def _near_identity(projection: nn.Linear, parts: WarmStart) -> None:
    projection.weight.mul_(parts.random_share)
    projection.weight.diagonal().add_(parts.near_identity)


def _prefer_rare_tokens(backbone: Any, counts: NDArray[np.int64], vocabulary: Vocabulary, strength: float) -> None:
    """Make the first layer prefer rare tokens, through one dimension of each attention head.

    In this dimension every attention query has the same bias. A token's key approximates the log of the token's weight by a
    linear map of the token's embedding. The map is fitted by ridge regression, in which tokens are weighted by frequency.
    """
    frequency = counts / max(1, counts.sum())  # (V,)
    wanted = -strength * np.log1p(frequency / SMOOTH)  # (V,)
    wanted[vocabulary.special] = wanted.min()  # [CLS] and [SEP] are in every text and carry no information
    weight = frequency.copy()  # (V,)
    weight[vocabulary.special] = 0.05  # about every twentieth token is [CLS], and about every twentieth is [SEP]
    embeddings = backbone.embeddings
    rows = embeddings.word_embeddings.weight[: len(counts)] + embeddings.token_type_embeddings.weight[0]  # (V, d)
    states = embeddings.LayerNorm(rows).double().numpy()  # (V, d), the input of the first layer without positions
    share = weight[:, None] / weight.sum()  # (V, 1)
    centred, aim = states - (share * states).sum(axis=0), wanted - (share[:, 0] * wanted).sum()  # (V, d), (V,)
    square = centred.T @ (share * centred)  # (d, d)
    ridge = RIDGE * np.trace(square) / len(square) * np.eye(len(square))  # (d, d)
    direction = np.linalg.solve(square + ridge, centred.T @ (share[:, 0] * aim))  # (d,)
    attention = backbone.encoder.layer[0].attention.self
    size = attention.attention_head_size
    attention.key.weight[::size] = torch.from_numpy(direction).to(attention.key.weight)  # dimension 0 of each head
    attention.query.bias[::size] = size**0.5  # cancels the division of the scores by sqrt(e)
