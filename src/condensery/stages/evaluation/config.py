"""Configs of the stages that measure."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from condensery.errors import UserError
from condensery.evaluation.names import split_metric
from condensery.models.checkpoints.config import BackboneConfig
from condensery.models.flops import Step
from condensery.stages.base import Input, StageConfig
from condensery.stages.checks import Split, not_encoded, unmeasurable
from condensery.stages.registry import stage
from condensery.stages.workload import Read, Work, known, product, search, total, with_encoder
from condensery.text.hashes import content_hashes
from condensery.text.sheets import filled_sheets

BACKBONE = "backbone"

Count = Annotated[int, Field(gt=0)]


@stage("attention_entropy", "attention_entropy:attention_entropy", version=1, makes="entropy")
class AttentionEntropyConfig(StageConfig):
    """Measure how broadly the CLS token attends: the entropy of its attention, by layer.

    Attributes:
        encoders: stages with checkpoints, fine-tuned or not. The word ``backbone`` stands for the backbone before training.
            Of separate towers the tower of passages is measured.
        backbone: the backbone that training begins with.
        texts: whether passages or whole documents are drawn.
        number: texts that are drawn at random; fewer where there are not so many.
        length: tokens that a text is cut to, [CLS] and [SEP] included.
        min_length: tokens of the shortest text that is drawn; the entropy is at most the logarithm of the length.
        chunk_tokens: padded tokens that are in memory together.
        seed: of the texts, and of the weights of a backbone from scratch.
    """

    encoders: Annotated[list[str], Input("encoder", literal=(BACKBONE,)), Field(min_length=1)]
    backbone: BackboneConfig
    tokens: Annotated[str, Input("tokens")]
    texts: Literal["passages", "documents"]
    number: Annotated[int, Field(gt=0)]
    length: Annotated[int, Field(ge=8)]
    min_length: Annotated[int, Field(ge=2)]
    chunk_tokens: Annotated[int, Field(gt=0)]
    seed: Annotated[int, Field(ge=0)]

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
    """Ask annotators and BM25 whether the contexts of pre-training are related to their passages.

    The smaller of the two samples, ``pairs`` and ``proxy_pairs``, is the beginning of the larger.

    Attributes:
        passages: the stage with the passages.
        queries: the stage with their queries; null audits pairs of passages alone.
        pairs: pairs of each kind on the sheets, which annotators judge.
        annotators: annotators of each pair; the majority decides.
        groups: groups of annotators, each for its share of the pairs.
        sheets: the filled sheets, as files or a folder; null writes empty sheets.
        proxy_pairs: pairs of each kind that BM25 ranks; 0 = no ranks.
        context_words: words of a context, from its beginning, that BM25 searches with.
        k1, b, stopwords, stemmer: as of the stage bm25.
        seed: of the choice and the order of pairs.
    """

    passages: Annotated[str, Input("passages")]
    queries: Annotated[str | None, Input("queries")]
    pairs: Count
    annotators: Count
    groups: Count
    sheets: Path | Annotated[list[Path], Field(min_length=1)] | None
    proxy_pairs: Annotated[int, Field(ge=0)]
    context_words: Count
    k1: Annotated[float, Field(ge=0)]
    b: Annotated[float, Field(ge=0, le=1)]
    stopwords: str
    stemmer: str
    seed: Annotated[int, Field(ge=0)]

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
    """Rank the passages for the queries of a split and measure the ranking.

    A passage that is the query itself, by its id and its text, is not ranked (``own_passages``).

    Attributes:
        index: the stage with the index, or an encoder, which is encoded first.
        split: the split whose queries are ranked.
        metrics: MRR@k, Recall@k, NDCG@k, Success@k, MAP and P@k; Hit@k where answers are known.
        depth: passages ranked for each query; at least the largest cutoff of ``metrics``.
        candidates: an index from whose best passages a few are drawn for each query. They are ranked with one positive
            instead of all passages (Zhao et al., §4.1). Null ranks all passages.
        candidates_number: passages that are drawn besides the positive.
        candidates_depth: best passages of ``candidates`` that they are drawn from.
        ignore_identical_ids: whether the id alone makes a passage the query itself, as in BEIR's own evaluation.
    """

    index: Annotated[str, Input("index")]
    corpus: Annotated[str, Input("corpus")]
    split: Split
    metrics: Annotated[list[str], Field(min_length=1)]
    depth: Annotated[int, Field(gt=0)]
    candidates: Annotated[str | None, Input("index")]
    candidates_number: Annotated[int, Field(gt=0)]
    candidates_depth: Annotated[int, Field(gt=0)]
    ignore_identical_ids: bool

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
    """Measure an encoder on a sentence task: Spearman's correlation for pairs, accuracy for triplets.

    Attributes:
        encoder: the stage with any checkpoint; its longest input is that of its training.
        sentences: the stage with the examples.
        split: the split of the examples.
        chunk_tokens: padded tokens that are in memory together.
    """

    encoder: Annotated[str, Input("encoder")]
    sentences: Annotated[str, Input("sentences")]
    split: Split
    precision: Literal["fp32", "bf16", "fp16"]
    chunk_tokens: Annotated[int, Field(gt=0)]

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
