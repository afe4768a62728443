"""Stage ``train_term_weights``: trains DeepCT's model on the training queries of each passage (Dai and Callan 2019, §3.2)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condensery.baselines.term_weights.config import TrainTermWeightsConfig
from condensery.baselines.term_weights.model import TermWeights, new_term_weights, save_term_weights
from condensery.baselines.term_weights.words import ReadText, query_term_recall, read_texts
from condensery.distributed import share_of
from condensery.losses.contrast import Contrast
from condensery.losses.gradient_cache import ChunkEncoder, wide
from condensery.retrieval.indexes.terms import Analyser
from condensery.stages.base import Context
from condensery.stages.training import initial_towers, loop_settings, run_training
from condensery.text.collection import Collection
from condensery.tokens.batches import Chunk, chunks, flatten
from condensery.tokens.tokenizer import load_tokenizer
from condensery.tokens.vocabulary import Vocabulary
from condensery.training.data.data_module import StepDataModule
from condensery.training.data.steps import ALL, Batch, Share, items_of_step
from condensery.training.modules.optimisation import TrainingModule

NO_TARGET = -1.0  # target of a token that does not begin a word


def train_term_weights(config: TrainTermWeightsConfig, context: Context) -> dict[str, Any]:
    """Train on all passages that are a positive of a query of the split, and save a Hugging Face folder.

    Raises:
        UserError: the split has no positive.
    """
    collection, tokenizer = Collection(context.input("corpus")), load_tokenizer(context.input("tokenizer"))
    batches = WeightBatches(config, collection, tokenizer)
    if not len(batches.passages):
        raise context.error("split", f"the split {config.split} has no positive to learn from")
    towers = initial_towers(config, context, Vocabulary.of(tokenizer), separate=False)
    module = TermWeightsModule(new_term_weights(towers.passage, config.seed), **config.optimiser())
    data, settings = StepDataModule(batches, context.runtime.workers), loop_settings(config, batches)
    values = run_training(module, data, settings, config, context, None)
    save_term_weights(module.model, context.folder, context.input("tokenizer"), config.length)
    return {"passages": len(batches.passages), **values}


@dataclass(frozen=True)
class WeightChunk(Chunk):
    """A chunk of passages, with the target weight of each token.

    Shape: weights: (b, t) float32, ``NO_TARGET`` for a token that is not the first of a word.
    """

    weights: Tensor = field(default_factory=lambda: torch.empty(0))


class WeightBatches:
    """Makes batches of passages with their targets, every passage once per epoch. Tokenises the texts of each batch."""

    def __init__(self, config: TrainTermWeightsConfig, collection: Collection, tokenizer: Any) -> None:
        self.config, self.collection, self.tokenizer = config, collection, tokenizer
        self.analyser = Analyser(stemmer="porter")
        self.queries = _queries_of_passages(collection.qrels(config.split).positives())
        self.passages = np.array(sorted(self.queries), np.int64)
        self.budget = config.budget

    def steps_an_epoch(self) -> int:
        """Return the number of batches in one pass over the passages; the last batch may be short."""
        return -(-len(self.passages) // self.config.batch_size)

    def batch(self, step: int, share: Share = ALL) -> Batch:
        """Return the batch of step ``step`` (from 0), or the part of the batch that ``share`` names."""
        _, items = items_of_step(step, self.config.batch_size, len(self.passages), self.config.seed)
        rows, replicated = share.of(self.passages[items])
        read = read_texts(self.collection.passages.full_texts(rows), self.tokenizer, self.config.length)
        targets = [self._targets(row, text) for row, text in zip(rows.tolist(), read, strict=True)]
        plain = chunks(*flatten([text.ids for text in read]), self.budget, self.tokenizer.pad_token_id)
        made = [self._with_weights(chunk, targets) for chunk in plain]
        return Batch(chunks=made, tokens=sum(len(text.ids) for text in read), replicated=replicated)

    def _targets(self, row: int, text: ReadText) -> NDArray[np.float32]:
        """Return the target of each token (t,) of the passage ``row``."""
        asked = self.collection.queries.column("text").take(self.queries[row])
        terms = [set(self.analyser.terms(query)) for query in asked]
        targets = np.full(len(text.ids), NO_TARGET, np.float32)
        targets[text.places] = query_term_recall(text.words, terms, self.analyser)
        return targets

    def _with_weights(self, chunk: Chunk, targets: Sequence[NDArray[np.float32]]) -> WeightChunk:
        weights = np.full(chunk.input_ids.shape, NO_TARGET, np.float32)  # (b, t)
        for place, row in enumerate(chunk.rows.tolist()):
            weights[place, : len(targets[row])] = targets[row]
        return WeightChunk(**{**vars(chunk), "weights": torch.from_numpy(weights)})


def _queries_of_passages(positives: Mapping[int, NDArray[np.integer]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for query, passages in positives.items():
        for passage in passages.tolist():
            found.setdefault(passage, []).append(query)
    return found


class Regression:
    """Wraps the model as a ``ChunkEncoder`` without vectors. The chunks' losses add up to the mean squared error of a batch.

    loss = sum over words (y - y')^2 / number of words (Dai and Callan 2019, §3.1, as a mean). ``targets``: number of words.
    """

    def __init__(self, model: TermWeights, targets: float) -> None:
        self.model, self.targets = model, targets

    def vectors(self, chunk: Chunk) -> Tensor:
        """Return zeros (b, 1), because no loss compares vectors."""
        return chunk.input_ids.new_zeros((len(chunk), 1), dtype=torch.float32)

    def encode(self, chunk: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Return zeros (b, 1), and the chunk's contribution to the loss of the batch."""
        errors = (wide(self.model.weights(chunk)) - chunk.weights) ** 2  # (b, t)
        loss = torch.where(chunk.weights >= 0, errors, errors.new_zeros(())).sum()
        return self.vectors(chunk), {"weight": loss / (self.targets or 1)}


class TermWeightsModule(TrainingModule):
    """Trains a ``TermWeights`` by regression on the targets of its batches."""

    model: TermWeights

    def objective(self, batch: Batch) -> tuple[ChunkEncoder, Contrast | None]:
        """Return the encoder with the regression loss; there is no contrastive loss."""
        targets = sum(int((chunk.weights >= 0).sum()) for chunk in batch.chunks if isinstance(chunk, WeightChunk))
        return Regression(self.model, share_of(targets)), None
