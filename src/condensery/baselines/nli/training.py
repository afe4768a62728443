"""Stage ``finetune_nli``: trains a sentence encoder on the labels of pairs (Reimers and Gurevych 2019)."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from condensery.baselines.nli.config import FinetuneNliConfig
from condensery.baselines.nli.reading import LABELS
from condensery.distributed import share_of
from condensery.losses.contrast import Contrast, weighted
from condensery.losses.gradient_cache import ChunkEncoder
from condensery.models.biencoder import BiEncoder
from condensery.stages.base import Context
from condensery.stages.training import initial_towers, train_and_save
from condensery.tokens.artifacts import Sentences
from condensery.training.data.data_module import StepDataModule
from condensery.training.modules.encoders import TowersModule
from condensery.training.modules.sentence_encoder import SentenceBatch, SentenceBatches


def pair_features(first: Tensor, second: Tensor) -> Tensor:
    """Return (u, v, |u - v|) for the vectors u and v (b, d) of b pairs: (b, 3d)."""
    return torch.cat([first, second, (first - second).abs()], dim=1)


class NliModule(TowersModule):
    """Trains an encoder with the classification objective of Sentence-BERT (Reimers and Gurevych 2019).

    The label of a pair with the vectors u and v is predicted by

        o = softmax(W (u, v, |u - v|) + b),

    and the loss is the cross-entropy. ``save_pretrained`` saves the encoder, without W and b.

    Args:
        model: see ``TowersModule``.
        others: further arguments of ``TowersModule``.
    """

    def __init__(self, model: str | Path | BiEncoder, **others: Any) -> None:
        super().__init__(model, **others)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.classifier = nn.Linear(3 * self.model.hidden_size, len(LABELS))  # W and b

    def objective(self, batch: SentenceBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """Return the encoder, and the loss: a mean over the pairs of all processes."""
        labels, number = batch.scores.long(), len(batch.scores)  # (b,)

        def loss(vectors: Tensor) -> Tensor:
            features = pair_features(vectors[:number], vectors[number:])  # (b, 3d)
            weight, bias = (part.to(features.dtype) for part in (self.classifier.weight, self.classifier.bias))
            return nn.functional.cross_entropy(nn.functional.linear(features, weight, bias), labels)

        return self.model, weighted(loss, number / share_of(number))


def finetune_nli(config: FinetuneNliConfig, context: Context) -> dict[str, Any]:
    """Train one encoder for all sentences and save the last step's weights as a checkpoint."""
    pairs = Sentences(context.input("nli"))
    rows, labels = pairs.rows("train"), pairs.scores("train")
    sizes = config.values_of("batch_size", "length", "budget", "seed")
    batches = SentenceBatches(pairs.store, pairs.vocabulary, rows, labels, **sizes)
    module = NliModule(initial_towers(config, context, pairs.vocabulary, separate=False), **config.optimiser())
    data = StepDataModule(batches, context.runtime.workers)
    lengths = config.length, config.length
    values = train_and_save(module, data, config, context, lengths, named=pairs.about["name"])
    return {"examples": len(rows), **values}
