"""Configs of the stages of RocketQAv2 (Ren et al. 2021)."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from condensery.models.flops import Step
from condensery.ranges import Count, Positive, Share
from condensery.stages.base import Input, PairLength, StageConfig, TextLength
from condensery.stages.finetuning.config import QueriesConfig
from condensery.stages.registry import stage
from condensery.stages.training_config import EncoderStageConfig, ValidatedConfig
from condensery.stages.workload import QUESTION, Read, Work, known, with_encoder

Divergence = Literal["of_retriever", "of_reranker"]


@stage("train_jointly", "train_jointly:train_jointly", version=1, makes="encoder", together=True)
class TrainJointlyConfig(QueriesConfig, ValidatedConfig, EncoderStageConfig):
    """Train a retriever and a re-ranker together, by dynamic listwise distillation (RocketQAv2).

    Both models score the same list for each query: a positive and ``negatives_per_query`` negatives. The re-ranker learns
    which passage is the positive, and both models learn to agree. The artifact is the retriever, and ``joint_reranker``
    extracts the re-ranker from it.
    """

    data_checks: ClassVar = {**QueriesConfig.data_checks, "corpus": ["judged", "apart_from_dev", "enough_passages"]}
    init_reranker: Annotated[str, Input("cross_encoder")]
    """the stage with the initial re-ranker (train_cross_encoder)"""
    negatives_per_query: Count = 127
    """negatives in a query's list, besides the positive"""
    divergence: Divergence = "of_retriever"
    """of_retriever: KL(retriever || re-ranker); of_reranker: KL(re-ranker || retriever); both models get the gradient"""
    towers: Literal["shared", "separate"] = "separate"
    """shared: one encoder for queries and passages; separate: one encoder for each"""
    temperature: Positive = 1.0
    """divisor of the retriever's inner products"""
    query_length: TextLength = 32
    """maximum tokens of a query, including [CLS] and [SEP]"""
    passage_length: TextLength = 128
    """maximum tokens of a passage that the retriever reads"""
    length: PairLength = 160
    """maximum tokens of query and passage together, as the re-ranker reads them"""
    batch_size: Count = 96
    """queries per step"""
    epochs: Positive | None = 2
    """passes over the queries"""
    warmup_ratio: Share = 0.0
    """share of the steps in which the learning rate rises; afterwards it falls linearly to zero"""
    learning_rate: Positive = 1e-5
    """peak learning rate of AdamW"""

    def work(self, read: Read) -> Work:
        """Estimate the work of the training steps. The retriever reads each passage alone, the re-ranker with its query."""
        sizes = with_encoder(known(read, "tokens", "tokenizer", "init"), self.backbone, self.passage_length)
        queries, text, step = sizes.collection.queries.get(self.split), sizes.collection.passage_tokens, None
        if sizes.encoder is not None and text is not None:
            listed, question = 1 + self.negatives_per_query, min(QUESTION, self.query_length)
            alone, beside = min(text + 2, self.passage_length), min(text + 1 + question, self.length)
            rows = self.batch_size * (2 * listed + 1)
            length = (listed * (alone + beside) + question) / (2 * listed + 1)
            step = Step(sizes.encoder, rows, length, self.budget, contrast=True, precision=self.precision)
        return self.training(sizes, step, self.train_queries or queries)


@stage("joint_reranker", "train_jointly:joint_reranker", version=1, makes="cross_encoder")
class JointRerankerConfig(StageConfig):
    """Extract the re-ranker that train_jointly trained together with a retriever."""

    trained: Annotated[str, Input("encoder")]
    """the stage of kind train_jointly"""
    tokens: Annotated[str, Input("tokens")] = "tokens"
    """the stage with the token ids that the re-ranker reads"""

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report an encoder that was trained without a re-ranker."""
        if all(isinstance(config, TrainJointlyConfig) for config in inputs["trained"]):
            return None
        return "trained", f"{self.trained} has no re-ranker; name a stage of kind train_jointly"

    def work(self, read: Read) -> Work:
        """Estimate almost no work, because the re-ranker is only copied."""
        return Work(known(read), seconds=0.1)
