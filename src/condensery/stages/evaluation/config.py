"""Configs of the stages that measure."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from annotated_types import Ge
from pydantic import Field, ValidationInfo, field_validator, model_validator

from condensery.errors import UserError
from condensery.evaluation.names import split_metric
from condensery.models.checkpoints.config import BackboneConfig
from condensery.models.flops import Step
from condensery.ranges import Count, CountOrZero, Share, Weight
from condensery.stages.base import FromRecipe, Input, Precision, RowLength, Seed, StageConfig
from condensery.stages.checks import Split, not_encoded, unmeasurable
from condensery.stages.registry import stage
from condensery.stages.workload import Read, Work, known, product, search, total, with_encoder
from condensery.text.hashes import content_hashes
from condensery.text.sheets import filled_sheets

BACKBONE = "backbone"


@stage("attention_entropy", "attention_entropy:attention_entropy", version=1, makes="entropy")
class AttentionEntropyConfig(StageConfig):
    """Measure how broadly the CLS token attends: the entropy of its attention in nats, by layer.

    It is the mean over heads and texts (Gao and Callan 2021a, §5, figure 2). Of separate towers the tower of passages is
    measured.
    """

    encoders: Annotated[list[str], Input("encoder", literal=(BACKBONE,)), Field(min_length=1)]
    """stages with an encoder, tuned or not; the word backbone stands for the model that training begins with"""
    backbone: Annotated[BackboneConfig, FromRecipe("backbone")]
    """the group ``backbone``"""
    tokens: Annotated[str, Input("tokens")] = "tokens"
    """the stage with the tokens"""
    texts: Literal["passages", "documents"] = "passages"
    """what is drawn at random: passages (where documents are separate, theirs) or whole documents"""
    number: Count = 1000
    """texts that are drawn; fewer where there are not so many"""
    length: RowLength = 128
    """tokens that a text is cut to, [CLS] and [SEP] included"""
    min_length: Annotated[int, Ge(2)] = 16
    """tokens of the shortest text: the entropy is at most the logarithm of the length"""
    chunk_tokens: Count = 16384
    """padded tokens that are in memory together"""
    seed: Seed
    """of the texts, and of the weights of a backbone from scratch"""

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
    """Ask annotators, and without people BM25, whether the contexts of pre-training are related to their passages.

    The smaller of the two samples, ``pairs`` and ``proxy_pairs``, is the beginning of the larger.
    """

    passages: Annotated[str, Input("passages")] = "passages"
    """the stage with the passages"""
    queries: Annotated[str | None, Input("queries")] = "queries"
    """the stage with their queries; null: only pairs of passages"""
    pairs: Count = 200
    """pairs of each kind on the sheets for annotators"""
    annotators: Count = 3
    """annotators who judge each pair; the majority decides, a tie is low"""
    groups: Count = 1
    """groups of annotators, each for its share of the pairs; 2 in the paper's appendix, of six annotators"""
    sheets: Path | Annotated[list[Path], Field(min_length=1)] | None = None
    """the filled sheets, a folder or a list of files; null: write empty ones"""
    proxy_pairs: CountOrZero = 2000
    """pairs of each kind that BM25 ranks; fewer where there are fewer; 0: no ranks"""
    context_words: Count = 256
    """words of a context, from its beginning, that BM25 searches with"""
    k1: Weight = 0.9
    """saturation of term frequency, as in bm25"""
    b: Share = 0.4
    """strength of the length normalisation, as in bm25"""
    stopwords: str = "english"
    """english or none"""
    stemmer: str = "porter"
    """a Snowball algorithm, or none"""
    seed: Seed
    """of the choice of pairs and of their order"""

    def work(self, read: Read) -> Work:
        """Estimate the work of indexing the passages by their words and scoring ``proxy_pairs`` pairs of each kind."""
        sizes = known(read)
        return Work(sizes, seconds=total([product(4e-6, sizes.tokens), 1e-4 * self.proxy_pairs]), disk=1e5)

    @field_validator("groups")
    @classmethod
    def _a_pair_for_each(cls, groups: int, info: ValidationInfo) -> int:
        if groups > info.data.get("pairs", groups):
            raise ValueError(f"{groups} groups are more than there are pairs of each kind")
        return groups

    def _filled(self) -> list[Path]:
        return [] if self.sheets is None else filled_sheets(self.sheets)

    def by_content(self) -> set[str]:
        """Return ``sheets``, which count by content."""
        return {"sheets"}

    def identity(self) -> list[str]:
        """Return the content hashes of the filled sheets, sorted, so that order and place do not matter.

        Raises:
            UserError: the sheets are missing.
        """
        return sorted(content_hashes(self._filled()))


@stage(
    "evaluate",
    "evaluate:evaluate",
    version=3,
    makes="evaluation",
    adapts="index",
    together="shared_search",
)
class EvaluateConfig(StageConfig):
    """Rank the passages for the queries of a split and measure the ranking; added by itself for every row of the table.

    A passage that is the query itself, by its id and its text, is not ranked (``own_passages``).
    """

    index: Annotated[str, Input("index")]
    """the stage with an index, or with an encoder, which is encoded first"""
    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    split: Annotated[Split, FromRecipe("table.split")]
    """whose queries are ranked: train, dev, test, dl19 or dl20"""
    metrics: Annotated[list[str], Field(min_length=1), FromRecipe("table.metrics")]
    """MRR@k, Recall@k, NDCG@k, Success@k, MAP, P@k; Hit@k where answers are known"""
    depth: Count = 1000
    """passages ranked for each query; at least the largest k of ``metrics``"""
    candidates: Annotated[str | None, Input("index")] = None
    """a stage with an index: only a positive and passages drawn from its best are ranked (Zhao et al.); null: all
    passages"""
    candidates_number: Count = 99
    """passages that are drawn besides the positive"""
    candidates_depth: Count = 1000
    """best passages of ``candidates`` that they are drawn from"""
    ignore_identical_ids: bool = False
    """what is the query itself is not ranked. false: the same id and text; true: the same id, as in BEIR's evaluation"""

    @field_validator("metrics")
    @classmethod
    def _known(cls, metrics: list[str]) -> list[str]:
        try:
            for name in metrics:
                split_metric(name)
        except UserError as error:
            raise ValueError(str(error)) from None
        return metrics

    @field_validator("depth")
    @classmethod
    def _deep_enough(cls, depth: int, info: ValidationInfo) -> int:
        cutoff = max((split_metric(name)[1] or 0 for name in info.data.get("metrics", [])), default=0)
        if depth < cutoff:
            raise ValueError(f"{depth} is too few to measure the metrics, which look at {cutoff} passages")
        return depth

    def work(self, read: Read) -> Work:
        """Estimate the work of searching all queries of the split; a line of the packed run takes ten bytes."""
        sizes = known(read, "corpus", "index")
        queries = sizes.collection.queries.get(self.split)
        looked = search(sizes, queries, self.depth)
        return Work(sizes, products=looked.products, seconds=looked.seconds, disk=product(10.0 * self.depth, queries))

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a split that the collection or the index does not have, or metrics that cannot be measured on it."""
        missing = unmeasurable(self.metrics, self.split, inputs["corpus"])
        return missing or not_encoded(self.split, "index", inputs["index"])


@stage(
    "evaluate_sentences",
    "evaluate_sentences:evaluate_sentences",
    version=2,
    makes="evaluation",
)
class EvaluateSentencesConfig(StageConfig):
    """Measure an encoder on a sentence task, for a row of the table.

    Pairs are measured by Spearman's correlation of cosines and scores, triplets by accuracy. The longest input is that of
    the encoder's training.
    """

    encoder: Annotated[str, Input("encoder")]
    """the stage with an encoder, tuned or not"""
    sentences: Annotated[str, Input("sentences")] = "sentences"
    """the stage with the examples"""
    split: Annotated[Split, FromRecipe("table.split")]
    """train, dev or test"""
    precision: Precision
    """fp32, bf16 or fp16"""
    chunk_tokens: Count = 16384
    """padded tokens that are in memory together"""

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
