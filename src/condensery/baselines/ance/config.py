"""Config of the stage of ANCE (Xiong et al. 2021)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from condensery.models.flops import Step
from condensery.ranges import Count, Positive
from condensery.stages.base import StageConfig, TextLength
from condensery.stages.finetuning.config import QueriesConfig, training_work
from condensery.stages.registry import stage
from condensery.stages.training_config import EncoderStageConfig, ValidatedConfig
from condensery.stages.workload import Read, Work, known, product, search, total, with_encoder


@stage("finetune_ance", "training:finetune_ance", version=1, makes="encoder", together=True)
class FinetuneAnceConfig(QueriesConfig, ValidatedConfig, EncoderStageConfig):
    """Train a bi-encoder on hard negatives that are mined again from the current weights while training goes on (ANCE).

    Before the first step, and again every ``refresh_every`` steps, all passages are encoded with the current weights. In the
    next steps, the negatives of a query are drawn from its best passages. ``init`` is a retriever that has learned from
    BM25's negatives (the paper's warm-up). Lists of ``negatives``, if any, are pooled with the mined lists.
    """

    refresh_every: Count = 10000
    """steps after which negatives are mined again; ``steps`` or more: mined only once, before the first step"""
    depth: Count = 200
    """best passages of a query from which its negatives are drawn; relevant passages do not count"""
    negatives_per_query: Count = 1
    """hard negatives drawn for a query each time it is used"""
    in_batch: bool = False
    """false: a query is compared only with its own negatives, as in ANCE; true: with all passages of the batch"""
    towers: Literal["shared", "separate"] = "shared"
    """shared: one encoder for queries and passages; separate: one encoder for each"""
    temperature: Positive = 1.0
    """temperature of the loss, which divides the inner products"""
    query_length: TextLength = 64
    """maximum tokens of a query, including [CLS] and [SEP]"""
    passage_length: TextLength = 512
    """maximum tokens of a passage"""
    batch_size: Count = 64
    """queries per step"""
    epochs: Positive | None = 10
    """passes over the queries"""
    learning_rate: Positive = 5e-6
    """peak learning rate of AdamW"""

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Also report ``negative_weights``, because the negatives that training mines have no weight."""
        if self.negative_weights:
            return "negative_weights", "the negatives that training mines have no weight; set this to null"
        return super().input_error(inputs)

    def work(self, read: Read) -> Work:
        """Estimate the work of the steps, and of encoding and searching all passages at each refresh."""
        sizes = with_encoder(known(read, "tokens", "tokenizer", "init"), self.backbone, self.passage_length)
        each, longest, texts, size = 1 + self.negatives_per_query, self.passage_length, sizes.collection, sizes.encoder
        work = training_work(self, sizes, each, longest, contrast=True)  # type: ignore[arg-type]  # it has the keys
        queries, passages = self.train_queries or texts.queries.get(self.split), texts.passages
        if size is None or not (work.steps and queries and passages and texts.passage_tokens):
            return replace(work, products=None)
        refreshes = math.ceil(work.steps / self.refresh_every)
        encoded = Step(size, passages, min(texts.passage_tokens + 2, longest), self.budget, trained=False)
        asked = min(float(queries), float(self.refresh_every * self.batch_size))
        searched = search(replace(sizes, dimensions=size.hidden), asked, self.depth)
        products = product(refreshes, total([encoded.flops, searched.products]))
        return replace(work, products=products, seconds=total([work.seconds, product(refreshes, searched.seconds)]))
