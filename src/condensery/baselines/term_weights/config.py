"""Configs of the stages that train a model of term weights, and that index passages by its weights."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

from annotated_types import Ge, Le

from condensery.models.flops import Step
from condensery.ranges import Count, Positive
from condensery.stages.base import Input, Operational, Precision, RowLength, StageConfig
from condensery.stages.checks import Split, missing_split
from condensery.stages.indexes.config import Bm25Config
from condensery.stages.registry import stage
from condensery.stages.training_config import EncoderStageConfig
from condensery.stages.workload import Read, Work, known, with_encoder


@stage("train_term_weights", "train_term_weights:train_term_weights", version=2, makes="term_weights")
class TrainTermWeightsConfig(EncoderStageConfig):
    """Train a model that predicts, for each word of a passage, what share of the passage's queries use the word (DeepCT).

    The target of a word is query term recall (Dai and Callan 2019): the share of the passage's judged queries that
    contain the word. As in BM25, words are compared by their Porter stems, and English stop words are left out.
    """

    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    split: Split = "train"
    """the split whose queries and positives are trained on"""
    length: RowLength = 128
    """maximum tokens of a passage with its title, including [CLS] and [SEP]"""
    batch_size: Count = 16
    """passages per step"""
    epochs: Positive | None = 3
    """passes over the passages that have a query"""
    learning_rate: Positive = 2e-5
    """peak learning rate of AdamW"""

    def work(self, read: Read) -> Work:
        """Estimate the work of the training steps. A step reads ``batch_size`` passages.

        The number of passages that have a query is assumed to equal the number of queries.
        """
        sizes = with_encoder(known(read, "corpus", "tokenizer", "init"), self.backbone, self.length)
        text, size, step = sizes.collection.passage_tokens, sizes.encoder, None
        if text is not None and size is not None:
            step = Step(size, self.batch_size, min(text + 2, self.length), self.budget, precision=self.precision)
        return self.training(sizes, step, sizes.collection.queries.get(self.split))

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a split that the collection lacks."""
        return missing_split(self.split, inputs["corpus"])


@stage("weighted_bm25", "weighted_bm25:weighted_bm25", version=2, makes="index")
class WeightedBm25Config(Bm25Config):
    """Build a BM25 index whose term frequencies are predicted weights (DeepCT-Index: Dai and Callan 2019).

    The term frequency of a word in a passage is its weight times ``scale``, rounded. A word that occurs several times
    gets its largest weight. Words beyond the model's maximum length are left out.
    """

    weights: Annotated[str, Input("term_weights")]
    """the stage with the model of term weights (train_term_weights)"""
    scale: Annotated[int, Ge(1), Le(10_000)] = 100
    """term frequency of a word with weight 1 (the paper's N)"""
    precision: Precision
    """numeric precision: fp32, bf16 or fp16"""
    chunk_tokens: Count = 8192
    """tokens that the model reads at once, padding included"""
    shard_size: Annotated[Count, Operational()] = 20000
    """passages per shard file; a restart keeps complete shards"""

    def work(self, read: Read) -> Work:
        """Estimate the work: the model reads every passage once, and BM25 indexes the weighted words."""
        sizes = known(read, "corpus", "weights")
        size, rows, text = sizes.encoder, sizes.collection.passages, sizes.collection.passage_tokens
        if size is None or rows is None or text is None:
            return super().work(read)
        length = min(text + 2, sizes.passage_length or 128)
        step = Step(size, rows, length, self.chunk_tokens, trained=False, precision=self.precision)
        return replace(super().work(read), steps=1, step=step)
