"""Configs of the stages that evaluate models, rankings and data."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from annotated_types import Ge
from pydantic import Field, ValidationInfo, field_validator, model_validator

from condensery.evaluation.names import known_metric, split_metric
from condensery.models.checkpoints.config import BackboneConfig
from condensery.models.flops import Step
from condensery.ranges import Count, CountOrZero, Share, Weight
from condensery.stages.base import FromRecipe, Input, Later, Precision, RowLength, Seed, StageConfig
from condensery.stages.checks import Split, not_encoded, unmeasurable
from condensery.stages.registry import stage
from condensery.stages.workload import Read, Work, known, product, search, total, with_encoder
from condensery.text.hashes import content_hashes
from condensery.text.sheets import filled_sheets

BACKBONE = "backbone"


@stage("attention_entropy", "attention_entropy:attention_entropy", version=1, makes="entropy")
class AttentionEntropyConfig(StageConfig):
    """Measure how broadly the CLS token attends: the entropy of its attention in nats, by layer.

    The entropy is the mean over heads and texts (Gao and Callan 2021a, §5, figure 2). If queries and passages have
    separate towers, the passage tower is measured.
    """

    data_checks = {"tokens": ["long_texts"]}
    encoders: Annotated[list[str], Input("encoder", literal=(BACKBONE,)), Field(min_length=1)]
    """stages with an encoder, fine-tuned or not; the word backbone means the initial checkpoint"""
    backbone: Annotated[BackboneConfig, FromRecipe("backbone")]
    """settings of the encoder: the group ``backbone``"""
    tokens: Annotated[str, Input("tokens")] = "tokens"
    """the stage with the token ids of the collection"""
    texts: Literal["passages", "documents"] = "passages"
    """sampled texts: passages or whole documents, both from the separate documents if there are any"""
    number: Count = 1000
    """number of sampled texts; fewer if the collection has fewer"""
    length: RowLength = 128
    """maximum tokens of a text, including [CLS] and [SEP]; longer texts are truncated"""
    min_length: Annotated[int, Ge(2)] = 16
    """minimum tokens of a text; short texts would lower the entropy, which is at most the logarithm of the length"""
    chunk_tokens: Count = 16384
    """padded tokens in memory at once"""
    seed: Seed
    """random seed of the sampled texts, and of the weights of a backbone from scratch"""

    def work(self, read: Read) -> Work:
        """Estimate the work: each encoder reads the texts once."""
        sizes = with_encoder(known(read), self.backbone)
        text = sizes.collection.passage_tokens if self.texts == "passages" else sizes.text_tokens
        if sizes.encoder is None or text is None:
            return Work(sizes)
        rows = float(len(self.encoders) * self.number)
        step = Step(sizes.encoder, rows, min(text + 2, self.length), self.chunk_tokens, trained=False)
        return Work(sizes, 1, step, seconds=0.0, disk=1e4)

    @model_validator(mode="after")
    def _some_fit(self) -> Self:
        if self.min_length > self.length:
            raise ValueError(f"min_length={self.min_length} is longer than length={self.length}")
        return self


@stage("audit_pairs", "audit_pairs:audit_pairs", version=1, makes="audit")
class AuditPairsConfig(StageConfig):
    """Audit whether the contexts of pre-training are related to their passages, by annotators and by ranks of BM25.

    There are two samples of pairs, ``pairs`` and ``proxy_pairs``. The smaller sample is the beginning of the larger one.
    """

    passages: Annotated[str, Input("passages")] = "passages"
    """the stage with the passages"""
    queries: Annotated[str | None, Input("queries")] = "queries"
    """the stage with the queries of the passages; null: only pairs of passages"""
    pairs: Count = 200
    """pairs of each kind on the sheets for annotators"""
    annotators: Count = 3
    """annotators who judge each pair; the majority decides, and a tie counts as low"""
    groups: Count = 1
    """number of groups of annotators, among which the pairs are divided; Wu et al. 2023 (appendix): two groups of three"""
    sheets: Path | Annotated[list[Path], Field(min_length=1)] | None = None
    """the filled-in sheets, as a folder or a list of files; null: write empty sheets"""
    proxy_pairs: CountOrZero = 2000
    """pairs of each kind that BM25 ranks, or fewer if the data has fewer; 0: no ranks"""
    context_words: Count = 256
    """number of words at the beginning of a context that form BM25's query"""
    k1: Weight = 0.9
    """saturation of the term frequency, as in the stage bm25"""
    b: Share = 0.4
    """strength of the length normalisation, as in the stage bm25"""
    stopwords: str = "english"
    """stop words that are removed: english or none"""
    stemmer: str = "porter"
    """stemmer: a Snowball algorithm, or none"""
    seed: Seed
    """random seed of the choice and the order of the pairs"""

    def work(self, read: Read) -> Work:
        """Estimate the work of building a BM25 index and scoring ``proxy_pairs`` pairs of each kind."""
        sizes = known(read)
        return Work(sizes, seconds=total([product(4e-6, sizes.tokens), 1e-4 * self.proxy_pairs]), disk=1e5)

    @field_validator("groups")
    @classmethod
    def _a_pair_for_each(cls, groups: int, info: ValidationInfo) -> int:
        if groups > info.data.get("pairs", groups):
            raise ValueError(f"{groups} groups are more than the pairs of each kind; lower groups, or raise pairs")
        return groups

    def _filled(self) -> list[Path]:
        return [] if self.sheets is None else filled_sheets(self.sheets)

    def by_content(self) -> set[str]:
        """Return ``sheets``, because the id depends on the content of the sheets, not on their paths."""
        return {"sheets"}

    def identity(self) -> list[str]:
        """Return the content hashes of the filled-in sheets, sorted, so that their order and paths do not matter.

        Raises:
            UserError: the sheets are missing.
        """
        return sorted(content_hashes(self._filled()))


@stage("evaluate", "evaluate:evaluate", version=3, makes="evaluation", adapts="index", together="shared_search")
class EvaluateConfig(StageConfig):
    """Rank the passages for the queries of a split, and measure the rankings.

    This stage is added automatically for each row of a table. If a query is itself a passage, with the same id and text,
    the passage is excluded from the query's ranking (``own_passages``).
    """

    data_checks = {"corpus": ["measurable"]}
    index: Annotated[str, Input("index")]
    """the stage with an index, or with an encoder (the index is then built automatically)"""
    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    split: Annotated[Split, FromRecipe("table.split")]
    """the split whose queries are evaluated: train, dev, test, dl19 or dl20"""
    metrics: Annotated[list[str], Field(min_length=1), FromRecipe("table.metrics")]
    """metrics: MRR@k, Recall@k, NDCG@k, Success@k, MAP, P@k; Hit@k if answers are known"""
    depth: Count = 1000
    """passages ranked for each query; at least the largest k of ``metrics``"""
    candidates: Annotated[str | None, Input("index")] = None
    """a stage with an index, from whose best passages candidates are sampled; only these and a positive are ranked (Zhao et
    al.); null: all passages"""
    candidates_number: Count = 99
    """with ``candidates``: number of sampled passages besides the positive"""
    candidates_depth: Count = 1000
    """number of best passages of the index ``candidates`` from which passages are sampled"""
    ignore_identical_ids: bool = False
    """which passage counts as the query itself and is excluded. false: same id and text; true: same id, as in BEIR's
    evaluation"""
    timed: Annotated[CountOrZero, Later()] = 0
    """number of queries that are encoded and searched again, one at a time, to measure the time per query; 0: not
    measured"""

    @field_validator("metrics")
    @classmethod
    def _known(cls, metrics: list[str]) -> list[str]:
        return [known_metric(name) for name in metrics]

    @field_validator("depth")
    @classmethod
    def _deep_enough(cls, depth: int, info: ValidationInfo) -> int:
        cutoff = max((split_metric(name)[1] or 0 for name in info.data.get("metrics", [])), default=0)
        if depth < cutoff:
            raise ValueError(f"{depth} is less than the {cutoff} passages that the metrics look at; raise it")
        return depth

    def work(self, read: Read) -> Work:
        """Estimate the work of searching for all queries of the split; a line of the compressed run takes ten bytes."""
        sizes = known(read, "corpus", "index")
        queries = sizes.collection.queries.get(self.split)
        looked = search(sizes, queries, self.depth)
        return Work(sizes, products=looked.products, seconds=looked.seconds, disk=product(10.0 * self.depth, queries))

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a split that the collection or the index lacks, or metrics that cannot be measured on the split."""
        missing = unmeasurable(self.metrics, self.split, inputs["corpus"])
        if missing and missing[0] == "split":
            return missing[0], f"{missing[1]}, or set table.optional=true to leave the table out"
        return missing or not_encoded(self.split, "index", inputs["index"])


@stage("evaluate_sentences", "evaluate_sentences:evaluate_sentences", version=2, makes="evaluation")
class EvaluateSentencesConfig(StageConfig):
    """Measure an encoder on a sentence task, for a row of the table.

    The metric of pairs is Spearman's correlation of cosines and scores; the metric of triplets is accuracy. Sentences are
    truncated to the maximum length that the encoder was trained with.
    """

    encoder: Annotated[str, Input("encoder")]
    """the stage with an encoder, fine-tuned or not"""
    sentences: Annotated[str, Input("sentences")] = "sentences"
    """the stage with the examples"""
    split: Annotated[Split, FromRecipe("table.split")]
    """the split that is measured: train, dev or test"""
    precision: Precision
    """numeric precision: fp32, bf16 or fp16"""
    chunk_tokens: Count = 16384
    """padded tokens in memory at once"""

    def work(self, read: Read) -> Work:
        """Estimate the work of encoding every sentence of the split once."""
        sizes = known(read)
        texts, size = sizes.sentences, sizes.encoder
        if texts is None or size is None:
            return Work(sizes)
        rows = texts.examples[self.split] * texts.each
        length = min(texts.tokens + 2, sizes.passage_length or 128)
        step = Step(size, rows, length, self.chunk_tokens, trained=False, precision=self.precision)
        return Work(sizes, 1, step, seconds=0.0, disk=8.0 * rows)
