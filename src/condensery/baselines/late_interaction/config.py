"""Config of the stage that trains a retriever of token vectors."""

from dataclasses import replace
from typing import Literal, Self

from pydantic import model_validator

from condensery.ranges import Count, CountOrZero, Positive
from condensery.stages.base import TextLength
from condensery.stages.finetuning.config import QueriesConfig, training_work
from condensery.stages.registry import stage
from condensery.stages.training_config import EncoderStageConfig, ValidatedConfig
from condensery.stages.workload import Read, Work, known, with_encoder

Method = Literal["colbert", "coil", "me_bert"]


@stage("finetune_late_interaction", "training:finetune", version=2, makes="token_encoder", together=True)
class FinetuneLateInteractionConfig(QueriesConfig, ValidatedConfig, EncoderStageConfig):
    """Train ColBERT, COIL or ME-BERT, which compare vectors of tokens, on judged queries.

    For each query a step reads one positive and ``negatives_per_query`` hard negatives. The loss is that of the
    stage ``finetune``, computed from the scores of ``method``. The defaults are ColBERT's (Khattab and Zaharia 2020).
    """

    method: Method = "colbert"
    """colbert: each query token finds its best passage token; coil: only among equal tokens; me_bert: [CLS] finds the best
    of the first passage tokens"""
    dimensions: Count = 128
    """dimensions of a token's vector"""
    whole: CountOrZero = 0
    """coil: dimensions of the vector of [CLS], a multiple of ``dimensions``, whose inner product is added; 0: none, as in
    COIL-tok"""
    first: Count = 8
    """me_bert: number of first tokens of a passage that have a vector"""
    query_length: TextLength = 32
    """maximum tokens of a query, including [CLS], [SEP] and ColBERT's marker [Q]; colbert pads shorter queries with [MASK]"""
    passage_length: TextLength = 180
    """maximum tokens of a passage, including [CLS], [SEP] and ColBERT's marker [D]"""
    negatives_per_query: CountOrZero = 1
    """hard negatives sampled from the pool each time a query is used"""
    temperature: Positive = 1.0
    """temperature of the loss, which divides the scores"""
    batch_size: Count = 32
    """queries per step"""
    epochs: Positive | None = 3
    """passes over the queries"""
    learning_rate: Positive = 3e-6
    """peak learning rate of AdamW"""

    @model_validator(mode="after")
    def _whole_in_pieces(self) -> Self:
        if self.whole % self.dimensions or (self.whole and self.method != "coil"):
            raise ValueError(f"whole is {self.whole}; set a multiple of dimensions with method=coil, and 0 otherwise")
        return self

    def work(self, read: Read) -> Work:
        """Estimate the work of the training steps, which read queries, their positives and their hard negatives."""
        sizes = with_encoder(known(read, "tokens", "tokenizer", "init"), self.backbone, self.passage_length)
        each = 1 + (self.negatives_per_query if self.negatives or self.labels else 0)
        vectors = min((sizes.collection.passage_tokens or self.passage_length) + 2, self.passage_length)
        vectors = min(vectors, self.first) if self.method == "me_bert" else vectors + self.whole // self.dimensions
        sizes = replace(sizes, token_vectors=vectors, token_numbers=vectors * self.dimensions)
        return training_work(self, sizes, each, self.passage_length, contrast=True)  # type: ignore[arg-type]  # same keys
