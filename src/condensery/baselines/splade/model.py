"""The encoder of SPLADE, its losses, and its checkpoint, which sentence-transformers opens as ``SparseEncoder``.

Symbols in shapes: b rows of a chunk, V tokens of the vocabulary, q queries, p passages of a batch.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from condensery.losses.info_nce import InfoNCE
from condensery.models.biencoder import BiEncoder
from condensery.models.checkpoints.backbone import load_masked_language_model
from condensery.models.checkpoints.metadata import ABOUT, read_about
from condensery.models.checkpoints.sentence_transformers import ABOUT as THEIR_ABOUT
from condensery.models.checkpoints.sentence_transformers import TRANSFORMER, read_expected, write_list
from condensery.models.checkpoints.weights import save_checkpoint
from condensery.models.encoder import Encoder
from condensery.models.largest_logits import largest_logits
from condensery.models.packing import PackedLayout
from condensery.system.files import write_json
from condensery.tokens.batches import Chunk
from condensery.tokens.tokenizer import load_tokenizer
from condensery.tokens.vocabulary import Vocabulary

OWN = 0.55  # cosine that separates a state's own token embedding from other embeddings, after a warm start
POOLING = "1_SpladePooling"  # folder of sentence-transformers' module


class SparseEncoder(BiEncoder):
    """Maps a text to one weight for each token of the vocabulary (SPLADE with max pooling, Formal et al. 2021b, eq. 6).

    The weight of token j is the largest log(1 + ReLU(w_ij)), where w_ij is the logit of j at the text's token i. One encoder
    reads queries and passages.

    Args:
        language_model: a masked language model of transformers.
        activation: ``relu``, or ``log1p_relu`` for weights of log(1 + log(1 + ReLU(w_ij))) (Shen et al. 2025).
    """

    language_model: Any  # a PreTrainedModel; its parts are accessed by name

    def __init__(self, language_model: PreTrainedModel, activation: str = "relu") -> None:
        super().__init__(Encoder(language_model.base_model))
        self.language_model, self.activation = language_model, activation

    @property
    def hidden_size(self) -> int:
        """The number of weights of a text, V."""
        return int(self.language_model.config.vocab_size)

    def vectors(self, chunk: Chunk) -> Tensor:
        """Return the weights of each text, (b, V)."""
        layout = PackedLayout(chunk)
        states = self.query.family.transform(self.language_model, self.query(layout)[0])
        layer = self.language_model.get_output_embeddings()
        largest = largest_logits(states, layer, token_slices(layout, chunk.lengths), least=0.0)  # (b, V)
        weights = largest.log1p()  # log1p rises with the logit, so the maximum can come first
        return weights.log1p() if self.activation == "log1p_relu" else weights


def token_slices(layout: PackedLayout, lengths: Tensor) -> list[slice]:
    """Return the place of each text's tokens among all packed tokens. ``lengths``: (b,) number of tokens of each text."""
    first = (layout.positions == 0).nonzero()[:, 0]  # (b,)
    return [slice(begin, begin + length) for begin, length in zip(first.tolist(), lengths.tolist(), strict=True)]


@torch.no_grad()
def start_lexically(language_model: Any) -> None:
    """Set the MLM head such that only the logits of a text's own tokens are above 0.

    The dense layer of the head becomes the identity. After a warm start, a token's state has length √d and a direction close
    to its embedding e. Its logit for its own token is then near √d |e|, and its other logits are lower. The bias of
    all tokens is -OWN √d |e|, with the mean length |e| of embeddings. So only a text's own tokens keep a logit above 0.
    """
    output = language_model.get_output_embeddings()
    others = {output, *language_model.base_model.modules()}
    (dense,) = (part for part in language_model.modules() if isinstance(part, nn.Linear) and part not in others)
    nn.init.eye_(dense.weight)
    bias = -OWN * output.in_features**0.5 * float(output.weight.norm(dim=1).mean())
    for layer, value in ((dense, 0.0), (output, bias)):
        if layer.bias is not None:
            nn.init.constant_(layer.bias, value)


class SpladeLoss(InfoNCE):
    """InfoNCE plus the FLOPS regularisation of queries and passages (Formal et al. 2021a, eq. 4-5; Paria et al. 2020).

    The regularisation of n vectors is the sum over the vocabulary of the squared mean weight. Its factor rises as the square
    of the step, up to the step ``ramp_steps``.

    Args:
        query_flops, passage_flops: factors of the regularisation after the ramp.
        ramp_steps: length of the ramp; 0 = there is none.
        temperature: divisor of the inner products.

    Attributes:
        step: index of the training step, from 0; set by the module.
    """

    step = 0

    def __init__(self, query_flops: float, passage_flops: float, ramp_steps: int = 0, temperature: float = 1.0) -> None:
        super().__init__(temperature)
        self.factors, self.ramp_steps = (query_flops, passage_flops), ramp_steps

    def forward(  # type: ignore[override]  # without a teacher
        self, queries: Tensor, passages: Tensor, positive: Tensor, known: Tensor | None = None
    ) -> Tensor:
        """Return the loss, a scalar; arguments as in ``RetrievalLoss``: queries (q, V), passages (p, V)."""
        ramp = min(1.0, (self.step / self.ramp_steps) ** 2) if self.ramp_steps else 1.0
        loss = super().forward(queries, passages, positive, known)
        for factor, weights in zip(self.factors, (queries, passages), strict=True):
            loss = loss + ramp * factor * flops(weights)
        return loss


def flops(weights: Tensor) -> Tensor:
    """Return the FLOPS regularisation of n vectors (n, V): the sum over the vocabulary of the squared mean weight."""
    return weights.mean(dim=0).square().sum()


def save_sparse_encoder(model: SparseEncoder, folder: Path, tokenizer: Path | str, lengths: tuple[int, int]) -> None:
    """Save the model with the files of sentence-transformers, whose ``SparseEncoder`` computes the same scores from them."""
    save_checkpoint(model.language_model, load_tokenizer(tokenizer), folder)
    write_json(folder / ABOUT, dict(zip(("query_length", "passage_length"), lengths, strict=True)))
    pooling = "sparse_encoder.modules.splade_pooling.SpladePooling"
    write_list(folder, {"": "base.modules.transformer.Transformer", POOLING: pooling})
    write_json(folder / TRANSFORMER, {"transformer_task": "fill-mask", "max_seq_length": lengths[1]})
    settings = {"pooling_strategy": "max", "activation_function": model.activation}
    write_json(folder / POOLING / "config.json", {**settings, "embedding_dimension": model.hidden_size})
    write_json(folder / THEIR_ABOUT, {"model_type": "SparseEncoder", "prompts": {}, "similarity_fn_name": "dot"})


def load_sparse_encoder(folder: Path) -> tuple[SparseEncoder, int, int]:
    """Load a folder that ``save_sparse_encoder`` wrote: the encoder, and the maximum tokens of a query and a passage."""
    about = read_about(folder, "query_length", "passage_length")
    activation = read_expected(folder / POOLING / "config.json", dict).get("activation_function", "relu")
    return sparse_encoder_of(folder, activation), about["query_length"], about["passage_length"]


def sparse_encoder_of(folder: Path, activation: str = "relu") -> SparseEncoder:
    """Return the encoder with the masked language model in a folder. A missing MLM head is listed in its ``new_parts``."""
    return SparseEncoder(load_masked_language_model(folder, Vocabulary.of(load_tokenizer(folder))), activation)
