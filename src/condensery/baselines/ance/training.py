"""Stage ``finetune_ance``: trains a bi-encoder whose hard negatives are mined again as it learns (Xiong et al. 2021)."""

import shutil
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from condensery.baselines.ance.batches import AnceBatch, RefreshedBatches
from condensery.baselines.ance.config import FinetuneAnceConfig
from condensery.baselines.ance.refresh import Refresh
from condensery.distributed import share_of
from condensery.losses.contrast import Contrast
from condensery.losses.gradient_cache import ChunkEncoder
from condensery.models.biencoder import BiEncoder
from condensery.ranges import Positive
from condensery.retrieval.no_negatives import left_out_by_text
from condensery.stages.base import Context
from condensery.stages.finetuning.training_queries import training_queries, triple_data
from condensery.stages.sharing import process_group
from condensery.stages.training import initial_towers, train_and_save
from condensery.text.collection import Collection
from condensery.tokens.artifacts import Tokens
from condensery.training.data.data_module import StepDataModule
from condensery.training.data.triple_batches import TripleBatch, TripleBatches
from condensery.training.modules.biencoder import BiEncoderModule

REFRESHED = "refreshed"  # subfolder with the mined negatives, removed after training


def pairwise_loss(positive: Tensor, negative: Tensor) -> Tensor:
    """Return the loss of ANCE for each pair of a positive p+ and a negative p- of a query q (Xiong et al. 2021, §2 and §4):

        -log (exp s(q, p+) / (exp s(q, p+) + exp s(q, p-))) = log (1 + exp (s(q, p-) - s(q, p+))).

    Args:
        positive: (q,) scores of the positives.
        negative: (q, k) scores of the negatives.

    Returns:
        the loss of each pair (q, k).
    """
    return nn.functional.softplus(negative - positive[:, None])


class AnceModule(BiEncoderModule):
    """Trains a bi-encoder on the batches of ``RefreshedBatches``.

    Args:
        model: the retriever.
        in_batch: True = InfoNCE over all passages of the batch; False = ``pairwise_loss``, over each query's own negatives.
        temperature: divisor of the inner products.
        others: further arguments of ``BiEncoderModule``.
    """

    def __init__(self, model: BiEncoder, *, in_batch: bool = False, temperature: Positive = 1.0, **others: Any) -> None:
        super().__init__(model, temperature=temperature, **others)
        self.in_batch, self.temperature = in_batch, temperature
        self._remember(locals())

    def objective(self, batch: TripleBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """Return the encoder, and the mean loss over the pairs of all processes."""
        encoder, contrast = super().objective(batch)
        if self.in_batch:
            return encoder, contrast
        assert isinstance(batch, AnceBatch)
        free = ~batch.known.gather(1, batch.hard)  # (q, k), False where the positive replaces a missing negative
        pairs, number = share_of(int(free.sum())), len(batch.positive)

        def pairwise(vectors: Tensor) -> Tensor:
            queries, passages = vectors[:number], vectors[number:]  # (q, d), (p, d)
            positive = (queries * passages[batch.positive]).sum(dim=1) / self.temperature  # (q,)
            negative = torch.einsum("qd,qkd->qk", queries, passages[batch.hard]) / self.temperature  # (q, k)
            return torch.where(free, pairwise_loss(positive, negative), 0.0).sum() / max(pairs, 1.0)

        return encoder, pairwise


def finetune_ance(config: FinetuneAnceConfig, context: Context) -> dict[str, Any]:
    """Train the retriever and save the last step's weights as a checkpoint; return the metrics for the manifest."""
    collection, tokens = Collection(context.input("corpus")), Tokens(context.input("tokens"))
    training = training_queries(config, context, collection)
    by_text = left_out_by_text(training.by_text, context.stage_name)
    towers = initial_towers(config, context, tokens.vocabulary, config.towers == "separate")
    lengths, own = (config.query_length, config.passage_length), {"negatives_per_query": config.negatives_per_query}
    triples = triple_data(config, context, training, lengths, towers.settings, **own).batches
    assert isinstance(triples, TripleBatches)
    folder, runtime = context.folder / REFRESHED, context.runtime
    batches = RefreshedBatches(triples, config.refresh_every, folder)
    how: Any = (partial(process_group, runtime), runtime.threads, runtime.search_device)
    refresh = Refresh(batches, config.depth, context.folder, context.stage_name, *how)
    module = AnceModule(towers, in_batch=config.in_batch, temperature=config.temperature, **config.optimiser())
    data = StepDataModule(batches, runtime.workers)
    values = train_and_save(module, data, config, context, lengths, callbacks=[refresh])
    shutil.rmtree(folder, ignore_errors=True)
    return {"queries": len(training.rows), **by_text, **values}
