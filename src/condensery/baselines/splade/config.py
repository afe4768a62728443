"""Config of the stage that trains SPLADE."""

from condensery.ranges import Count, CountOrZero, Positive, Weight
from condensery.stages.base import TextLength
from condensery.stages.finetuning.config import QueriesConfig, training_work
from condensery.stages.registry import stage
from condensery.stages.training_config import EncoderStageConfig, ValidatedConfig
from condensery.stages.workload import Read, Work, known, with_encoder


@stage("finetune_splade", "training:finetune", version=1, makes="sparse_encoder", together=True)
class FinetuneSpladeConfig(QueriesConfig, ValidatedConfig, EncoderStageConfig):
    """Train SPLADE (Formal et al. 2021) on judged queries, with the loss of finetune and FLOPS regularisation.

    For each query a step reads one positive and ``negatives_per_query`` hard negatives. The checkpoint in ``init``
    should have an MLM head, as pre-trained encoders and warm starts do. An encoder without an MLM head gets a random head.
    """

    query_flops: Weight = 3e-4
    """weight of the FLOPS regularisation of queries; a larger weight leaves fewer terms"""
    passage_flops: Weight = 1e-4
    """weight of the FLOPS regularisation of passages"""
    ramp_steps: CountOrZero = 50000
    """steps in which both regularisation weights rise quadratically from 0; 0: full weights from the start"""
    lexical_start: bool = False
    """begin with an MLM head that weights only a text's own tokens; needed after a warm start, whose head is random"""
    query_length: TextLength = 32
    """maximum tokens of a query, including [CLS] and [SEP]"""
    passage_length: TextLength = 256
    """maximum tokens of a passage, including [CLS] and [SEP]"""
    negatives_per_query: CountOrZero = 1
    """hard negatives sampled from the pool each time a query is used"""
    temperature: Positive = 1.0
    """temperature of the loss, which divides the inner products"""
    batch_size: Count = 124
    """queries per step"""
    epochs: Positive | None = 3
    """passes over the queries"""
    learning_rate: Positive = 2e-5
    """peak learning rate of AdamW"""

    def work(self, read: Read) -> Work:
        """Estimate the work of the training steps, which read queries, their positives and their hard negatives."""
        sizes = with_encoder(known(read, "tokens", "tokenizer", "init"), self.backbone, self.passage_length)
        each = 1 + (self.negatives_per_query if self.negatives or self.labels else 0)
        return training_work(self, sizes, each, self.passage_length, contrast=True)  # type: ignore[arg-type]  # same keys
