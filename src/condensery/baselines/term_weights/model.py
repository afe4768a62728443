"""The model of term weights: a linear layer on each token's last state (Dai and Callan 2019, §3.1)."""

from pathlib import Path

import torch
from torch import Tensor, nn

from condensery.models.biencoder import BiEncoder
from condensery.models.checkpoints.retrievers import SavedRetriever, load_retriever, save_retriever
from condensery.models.encoder import Encoder
from condensery.models.packing import PackedLayout
from condensery.models.pooling import head_of
from condensery.models.vectors import DenseShape
from condensery.tokens.batches import Chunk


class TermWeights(nn.Module):
    """An encoder whose head, a linear layer to one dimension, is applied to every token instead of to the pooled states."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def weights(self, chunk: Chunk) -> Tensor:
        """Return the weight w x + b of each token (b, t) of a chunk; the weights of padding have no meaning."""
        layout = PackedLayout(chunk)
        states = layout.tokens.pad(self.encoder(layout)[0])  # (b, t, d)
        return self.encoder.head(states)[..., 0]


def new_term_weights(encoder: Encoder, seed: int) -> TermWeights:
    """Return a model on an encoder. A linear layer, initialised with the seed ``seed``, replaces the encoder's head."""
    torch.manual_seed(seed)
    encoder.head = head_of([DenseShape(encoder.model.config.hidden_size, 1, activation="Identity")])
    return TermWeights(encoder)


def save_term_weights(model: TermWeights, folder: Path, tokenizer: Path, length: int) -> None:
    """Save the model with its tokenizer and its maximum input length in tokens, in the format of a retriever."""
    save_retriever(SavedRetriever(BiEncoder(model.encoder), length, length), folder, tokenizer)


def load_term_weights(folder: Path) -> tuple[TermWeights, int]:
    """Return a saved model, and its maximum input length in tokens."""
    saved = load_retriever(folder)
    return TermWeights(saved.model.passage), saved.passage_length
