"""Configs of the stages that adapt a released retriever, and that choose the best of several encoders."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal

from annotated_types import Ge, Lt
from pydantic import Field, field_validator

from condensery.models.flops import Step
from condensery.ranges import Count, CountOrZero, Positive, PositiveShare, Share
from condensery.stages.base import Input, Later, Precision, RowLength, StageConfig
from condensery.stages.checks import NO_DEV, no_dev_queries
from condensery.stages.registry import stage
from condensery.stages.training_config import AROUND, CollectionConfig, OptimisedStageConfig
from condensery.stages.workload import Read, Search, Sizes, Work, checkpoint_bytes, known, search, together

SENTENCE = 30.0  # mean tokens of a query that is a sentence of its passage


@stage("distil_ranking", "distil_ranking:distil_ranking", version=2, makes="encoder")
class DistilRankingConfig(CollectionConfig, OptimisedStageConfig):
    """Distil a better ranking, such as the fusion of the retriever with BM25, into the retriever's query tower.

    No judgements are needed, because the queries are made from the text by another stage. The passage vectors do not change.
    """

    student: Annotated[str, Input("index")]
    """the retriever to train: the stage with its index, or with its encoder (the index is then built automatically)"""
    teacher: Annotated[str, Input("index")]
    """a stage with an index that ranks better, such as the fusion of BM25 and the student"""
    cross_encoders: Annotated[list[str], Input("cross_encoder"), Later()] = []
    """stages with cross-encoders, whose mean score replaces the teacher's score of each ranked passage (GPL: Wang et al.
    2022)"""
    queries: Annotated[str, Input("queries")] = "queries"
    """the stage with queries made from text; queries of about 500 passages (10 to 30 % of all) are reserved for keep_best"""
    number: Count = 4096
    """maximum number of training queries; the teacher searches for each query once"""
    depth: Count = 100
    """passages that the teacher ranks for each query"""
    query_length: RowLength = 64
    """maximum tokens of a query in training, including [CLS] and [SEP]; a lower maximum of the retriever applies instead"""
    temperature: Positive = 0.05
    """temperature of the student, which divides the inner products; .01 to .1 for cosines"""
    teacher_temperature: Positive = 0.05
    """temperature of the teacher, which divides its scores after these are scaled to [0, 1]"""
    batch_size: Count = 64
    """queries per step"""
    chunk_tokens: Count | Literal["auto"] = 4096
    """padded tokens in memory at once; a larger batch is processed in chunks"""
    steps: Count | None = 100
    """optimisation steps (a few minutes on a CPU); set exactly one of ``steps``, ``epochs`` and ``token_budget``, the other
    two to null"""
    learning_rate: Positive = 5e-5
    """peak learning rate of AdamW"""
    train_unmeasured: Annotated[bool, Later()] = False
    """train even if dev queries and queries of held-out passages are too few for ``keep_best`` to measure a gain"""

    def lengths(self) -> dict[str, int]:
        """Return no lengths. No length can be too long, because a lower maximum of the retriever applies instead."""
        return {}

    def work(self, read: Read) -> Work:
        """Estimate the work: the teacher ranks, cross-encoders read the ranked passages, and a step encodes only queries."""
        sizes = replace(known(read, "teacher", "student"), same_passages=True)
        if sizes.encoder is None:
            return Work(sizes)
        step = Step(sizes.encoder, self.batch_size, SENTENCE, self.budget, contrast=True, precision=self.precision)
        work = self.training(sizes, step, float(self.number))
        looked = search(known(read, "teacher"), float(self.number), self.depth)
        return Work(sizes, work.steps, step, together([looked, self._scoring(read)]).products, work.seconds, work.disk)

    def _scoring(self, read: Read) -> Search:
        """Return the work of the cross-encoders, which read each query with the passages that the teacher ranks."""
        pairs, found = float(self.number) * self.depth, Search(0.0, 0.0)
        for scorer in read.get("cross_encoders", ()):
            text = scorer.collection.passage_tokens
            if scorer.encoder is None or text is None:
                return Search(None, None)
            length = min(text + SENTENCE, scorer.passage_length or 512)
            scored = Step(scorer.encoder, pairs, length, self.budget, trained=False, precision=self.precision)
            found = together([found, Search(scored.flops, 0.0)])
        return found


class SampleConfig(CollectionConfig):
    """Shared keys of the stages that measure retrievers by MRR@10 on a sample of queries and passages."""

    queries: Annotated[str | None, Input("queries")] = None
    """a stage with queries made from the text; queries of held-out passages are used; a sentence that is a query is removed
    from its passage"""
    by: Literal["dev", "queries"] | None = None
    """dev: only dev queries; queries: only queries of the stage in ``queries``; null: both kinds, if both exist"""
    bm25_weight: Annotated[float, Ge(0), Lt(1)] = 0.0
    """weight of BM25 in its fusion with each measured retriever; 0: the retriever alone"""
    number: Count = 1000
    """maximum number of queries of each kind"""
    passages: CountOrZero = 500
    """passages that are sampled for each kind of queries, besides the relevant passages"""
    precision: Precision
    """numeric precision: fp32, bf16 or fp16"""
    chunk_tokens: Count = 4096
    """padded tokens that the encoder processes at once"""

    def work(self, read: Read) -> Work:
        """Estimate the work of encoding the sample's passages; the queries are few in comparison."""
        return self.encoding(known(read), 1)

    def encoding(self, sizes: Sizes, times: int) -> Work:
        """Return the work of encoding the sample's passages ``times`` times."""
        texts = sizes.collection
        if sizes.encoder is None or texts.passages is None or texts.passage_tokens is None:
            return Work(sizes)
        length = min(texts.passage_tokens, sizes.passage_length or 512)
        kinds = 1 if self.by or not texts.queries.get("dev") else 2
        rows = min(texts.passages, kinds * (self.passages + self.number))
        step = Step(sizes.encoder, rows, length, self.chunk_tokens, trained=False, precision=self.precision)
        return Work(sizes, times, step, seconds=AROUND, disk=checkpoint_bytes(sizes))


@stage("keep_best", "keep_best:keep_best", version=4, makes="encoder")
class KeepBestConfig(SampleConfig):
    """Keep the best of the initial encoder and its interpolations with trained encoders (WiSE-FT), by MRR@10.

    The best trained candidate is kept if two conditions hold. On dev queries and queries of held-out passages together, it
    is better than the initial encoder with p below ``level``. On dev queries alone, it is not worse. Otherwise the initial
    encoder is kept.
    """

    data_checks = {"corpus": ["dev_queries"]}
    start: Annotated[str, Input("encoder")]
    """the stage with the encoder that training started from (the initial encoder)"""
    trained: Annotated[list[str], Input("encoder"), Field(min_length=1)]
    """stages with encoders that were trained from the initial encoder"""
    shares: Annotated[list[Share], Field(min_length=1)] = [0.25, 0.5, 0.75, 1.0]
    """interpolation shares of the trained weights that are tried; the remaining share is the initial encoder's"""
    level: PositiveShare = 0.05
    """keep the best candidate if its gain has a p-value below this (randomisation test) and it is not worse on dev queries;
    1: no test"""
    add_left_out_queries: Annotated[bool, Later()] = False
    """if there are fewer dev queries than ``number``, also measure on the training queries that ``leave_out_dev_passages``
    excluded from training"""

    @field_validator("shares")
    @classmethod
    def _of_the_trained(cls, shares: list[float]) -> list[float]:
        if 0 in shares or len(set(shares)) < len(shares):
            raise ValueError("shares must be different numbers above 0; the initial weights (0) are always tried")
        return sorted(shares)

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report ``add_left_out_queries`` if a stage of ``trained`` trained on these queries; report missing dev queries."""
        left_out = (getattr(config, "leave_out_dev_passages", True) for config in inputs["trained"])
        if self.add_left_out_queries and not all(left_out):
            wanted = "set leave_out_dev_passages=true in the stages of `trained`, or this key to false"
            return "add_left_out_queries", f"true, but a stage of `trained` trains on these queries; {wanted}"
        if self.by == "dev" and no_dev_queries(inputs["corpus"]):
            return "by", NO_DEV
        return super().input_error(inputs)

    def work(self, read: Read) -> Work:
        """Estimate the work of encoding the sample's passages.

        The initial encoder encodes the passages, and so does each candidate whose passage tower differs from the initial one.
        """
        others = sum(not sizes.same_passages for sizes in read.get("trained", ()))
        return self.encoding(known(read), 1 + others * len(self.shares))


@stage("validate", "validate:validate", version=2, makes="validation")
class ValidateConfig(SampleConfig):
    """Measure one retriever by MRR@10, on dev queries and on queries of held-out passages.

    The key ``choose`` selects one of several checkpoints by this metric.
    """

    retriever: Annotated[str, Input("encoder")]
    """the stage with the encoder"""
