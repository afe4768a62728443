"""Configs of the stages that train a bi-encoder or a cross-encoder on judged queries."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ValidationInfo, field_validator

from condensery.losses.registry import check_loss, check_name, makers_of, teaching, twice_taught
from condensery.models.flops import Step
from condensery.ranges import Count, CountOrZero, Positive
from condensery.stages.base import Input, Later, Operational, PairLength, Seed, StageConfig, TextLength
from condensery.stages.checks import Split, missing_split, not_encoded, plugin_code
from condensery.stages.registry import stage
from condensery.stages.trainer_options import identity
from condensery.stages.training_config import EncoderStageConfig, ValidatedConfig
from condensery.stages.workload import QUESTION, Read, Sizes, Work, known, with_encoder


class AdaptiveConfig(StageConfig):
    """Keys of ``batching: adaptive``, which builds batches of pairs that are hard to distinguish (Zhao et al., §3.2).

    ``Scheduler`` builds the batches: it starts from random pairs and swaps pairs as long as a swap makes the batch harder.
    """

    similarity: Literal["bm25", "encoder", "bm25_then_encoder"] = "bm25_then_encoder"
    """similarity that measures hardness: bm25; encoder, as trained at the start of each epoch; bm25_then_encoder: BM25 in the
    first epoch, then the encoder"""
    neighbours: Count = 100
    """number of nearest passages per query, and of nearest queries per passage, whose similarity is computed; all other
    pairs get the same default"""
    beam: Count = 1
    """beam width of the search for swaps; 1: greedy search"""


class QueriesConfig(StageConfig):
    """Shared keys for the training queries and the sources of their negatives."""

    data_checks: ClassVar[Mapping[str, Sequence[str]]] = {
        "corpus": ["judged", "apart_from_dev"],
        "negatives": ["of_these_queries"],
    }
    negatives: Annotated[list[str], Input("negatives")] = []
    """stages with hard negatives (mine, read_negatives), whose lists are pooled"""
    negative_depths: list[Count] | None = None
    """for each source of negatives, how many of a query's best negatives enter the pool; null: all"""
    negative_weights: list[Positive] | None = None
    """for each source of negatives, its sampling weight, independent of its depth; null: all passages are equally likely"""
    labels: Annotated[list[str], Input("labels")] = []
    """stages with labels (pseudo_label), whose queries are trained on in addition to the judged queries"""
    split: Split = "train"
    """the split whose queries are trained on"""
    train_queries: Count | None = None
    """number of queries to train on, drawn with the seed; a smaller set is a subset of a larger one; null: all"""
    positives: Annotated[Literal["one", "each"], Later()] = "one"
    """one: a query is used once per epoch, with a randomly drawn positive; each: once with each of its positives"""
    leave_out_dev_passages: Annotated[bool, Later()] = False
    """exclude training queries that share a relevant passage with a dev query; dev then measures retrieval of passages
    without training queries"""
    negatives_per_query: CountOrZero = 7
    """hard negatives sampled from the pool each time a query is used"""
    seed: Seed
    """random seed of initial weights, dropout, data order, masks and all other random numbers"""

    @field_validator("negative_depths", "negative_weights")
    @classmethod
    def _one_a_source(cls, values: list[Any] | None, info: ValidationInfo) -> list[Any] | None:
        sources = info.data.get("negatives", [])
        if values is not None and len(values) != len(sources):
            raise ValueError(
                f"{len(values)} numbers for {len(sources)} sources of negatives; give one for each or null"
            )
        return values

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a split that the collection lacks."""
        return missing_split(self.split, inputs["corpus"])


@stage("finetune", "finetune:finetune", version=4, makes="encoder", together=True)
class FinetuneConfig(QueriesConfig, ValidatedConfig, EncoderStageConfig):
    """Train a bi-encoder on judged queries.

    For each query a step reads one positive and ``negatives_per_query`` hard negatives.

    With ``passages`` the passage vectors come from an index, so a hard negative costs only one inner product. ``init`` must
    then be the retriever of that index, or a query tower that was trained from this retriever. Without ``text_queries`` most
    passages are never a positive, so training teaches the query tower to rank such passages low.
    """

    data_checks = {**QueriesConfig.data_checks, "text_queries": ["same_passages"]}
    teacher: Annotated[list[str], Input("pair_scores"), Later()] = []
    """stages with teacher scores (score_pairs), for distillation losses; if several stages score a pair, the first
    stage's score is used"""
    in_batch_teacher: Annotated[str | None, Input("index"), Later()] = None
    """a stage with an index or encoder, which scores each query with every passage of its batch (TCT-ColBERT); only the
    loss dual_supervision also takes ``teacher``"""
    passages: Annotated[str | None, Input("index"), Later()] = None
    """a stage with an index or an encoder, whose passage vectors stay frozen: only the query tower is trained (ADORE);
    null: passages are encoded too"""
    text_queries: Annotated[str | None, Input("queries"), Later()] = None
    """a stage that makes queries from the passages; training also uses these, each with its passage as the positive;
    null: judged queries only"""
    validation_candidates: Annotated[str | None, Input("index"), Later()] = None
    """a stage with an index; validation ranks each dev positive among 99 of the index's best 1,000 passages (Zhao et al.),
    and also logs MRR@100"""
    text_batch_size: Count = 48
    """queries of ``text_queries`` per step, in addition to ``batch_size``"""
    shared_negatives: Annotated[CountOrZero, Later()] = 0
    """number of passages drawn at random from the collection in each step, as negatives of all queries; needs
    ``passages``"""
    towers: Literal["shared", "separate"] = "shared"
    """shared: one encoder for queries and passages; separate: one encoder for each"""
    query_length: TextLength | None = 32
    """maximum tokens of a query, including [CLS] and [SEP]; null: as many as the retriever in ``init`` reads"""
    passage_length: TextLength | None = 128
    """maximum tokens of a passage; null: as many as the retriever in ``init`` reads; with ``passages``, the length of that
    index is used instead"""
    mask_known_positives: bool = True
    """true: a query's other relevant passages in the batch (by judgement or identical text) are no negatives; false:
    negatives, as in the papers' code"""
    temperature: Positive = 1.0
    """temperature of the loss, which divides the inner products"""
    loss: str | dict[str, Any] = "info_nce"
    """info_nce; with a teacher: margin_mse, kl, rank_consistent, dual_supervision; passage_centric (PAIR); learning_to_rank
    (Zhao et al.); matryoshka. With options: {name: kl, teacher_temperature: 2.0}"""
    batching: Literal["random", "sequential", "adaptive"] = "random"
    """which queries form a batch: random, sequential (in file order) or adaptive (hard to distinguish, Zhao et al.)"""
    adaptive: AdaptiveConfig = AdaptiveConfig()
    """settings of ``batching: adaptive``"""
    batch_size: Count = 8
    """queries per step"""
    epochs: Positive | None = 3
    """passes over the queries"""
    learning_rate: Positive = 5e-6
    """peak learning rate of AdamW"""

    def lengths(self) -> dict[str, int]:
        """Return the lengths that are set; no length with frozen passages, because the retriever's lengths are then used."""
        given = {key: tokens for key, tokens in super().lengths().items() if tokens is not None}
        return given if self.passages is None else {}

    def work(self, read: Read) -> Work:
        """Estimate the work of the training steps, which read queries, their positives and their hard negatives."""
        sizes = known(read, "tokens", "tokenizer", "init")
        longest = self.passage_length or sizes.passage_length or self.backbone.max_positions
        sizes = with_encoder(sizes, self.backbone, longest)
        each = 1 + (self.negatives_per_query if self.negatives or self.labels else 0)
        if self.passages is not None:
            sizes, each = replace(sizes, same_passages=True), 0
        texts = self.text_batch_size if self.text_queries else 0
        return training_work(self, sizes, each, longest, contrast=True, texts=texts)

    def by_content(self) -> set[str]:
        """Return further fields on which the id does not depend.

        These fields are ``text_batch_size`` without ``text_queries``, and ``validation_candidates`` if no callback monitors a
        metric.
        """
        watched = any(part.startswith("validation ") for part in identity(self.callbacks, self.validations()))
        unused = set() if self.text_queries else {"text_batch_size"}
        return super().by_content() | unused | (set() if watched else {"validation_candidates"})

    def identity(self) -> list[str]:
        """Also return the content hash of the file that defines a plugin's loss, and how ``text_queries`` are used."""
        same = ["text_queries with the same text share their positives"] if self.text_queries else []
        return [*super().identity(), *plugin_code(makers_of(self.loss)), *same]

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a loss without the teacher that it needs, or with a teacher that it cannot use.

        Also report a missing split, ``shared_negatives`` without frozen passages, and ``chunk_tokens: auto`` with adaptive
        batches.
        """
        if self.shared_negatives and self.passages is None:
            advice = "set passages to an index, or this key to 0"
            return "shared_negatives", f"all these passages would be encoded in each step; {advice}"
        if self.batching == "adaptive" and self.chunk_tokens == "auto":
            late = "adaptive batches are made during training"
            return "chunk_tokens", f"auto measures a batch before training, but {late}; give a number"
        (takes, needs), name = teaching(self.loss), check_name(self.loss)
        given = [key for key in ("teacher", "in_batch_teacher") if getattr(self, key)]
        if needs and not given:
            advice = "set teacher to stages of kind score_pairs"
            return "loss", f"{name} learns from a teacher's scores, but no teacher is set; {advice}"
        if given and not takes:
            return given[0], f"the loss {name} takes no teacher's scores; set loss to margin_mse or kl"
        takes_both, needs_both = twice_taught(self.loss)
        if needs_both and len(given) < 2:
            return "loss", f"{name} learns from two teachers; set both teacher and in_batch_teacher"
        if len(given) > 1 and not takes_both:
            return "in_batch_teacher", f"the loss {name} learns from one teacher; set only one of the two"
        missing = not_encoded(self.split, "in_batch_teacher", inputs.get("in_batch_teacher", ()))
        return missing or super().input_error(inputs)

    @field_validator("loss")
    @classmethod
    def _is_known(cls, loss: str | dict[str, Any]) -> str | dict[str, Any]:
        check_loss(loss)
        return loss


@stage(
    "train_cross_encoder", "train_cross_encoder:train_cross_encoder", version=2, makes="cross_encoder", together=True
)
class TrainCrossEncoderConfig(QueriesConfig, ValidatedConfig, EncoderStageConfig):
    """Train a cross-encoder, which reads a query and a passage together and gives the pair one score.

    For each query a step reads one positive and ``negatives_per_query`` negatives. Without ``negatives`` the negatives are
    sampled from the collection. The validation metric is MRR@10: for each query the cross-encoder ranks a positive and nine
    passages that BM25 retrieves from the sample. The stages rerank, denoise and pseudo_label use the cross-encoder.
    """

    data_checks = {**QueriesConfig.data_checks, "corpus": ["judged", "apart_from_dev", "enough_passages"]}
    negatives_per_query: Count = 4
    """negatives sampled each time a query is used"""
    query_length: TextLength = 32
    """maximum tokens of a query, including [CLS] and [SEP]"""
    length: PairLength = 160
    """maximum tokens of query and passage together; the passage is truncated to what the query leaves"""
    loss: Literal["pointwise", "listwise"] = "pointwise"
    """pointwise: each pair is classified separately, which denoise and pseudo_label require; listwise: softmax over the
    query's passages"""
    batch_size: Count = 16
    """queries per step"""
    chunk_tokens: Count | Literal["auto"] = 4096
    """padded tokens in memory at once; a larger batch is processed in chunks of whole queries"""
    validation_queries: Annotated[CountOrZero, Operational()] = 100
    """dev queries in the sample; 0: no validation"""
    epochs: Positive | None = 2
    """passes over the queries"""
    learning_rate: Positive = 2e-5
    """peak learning rate of AdamW"""

    def work(self, read: Read) -> Work:
        """Estimate the work of the training steps, which read pairs: a query and a passage as one input."""
        sizes = with_encoder(known(read, "tokens", "tokenizer", "init"), self.backbone, self.length)
        return training_work(self, sizes, 1 + self.negatives_per_query, self.length, contrast=False)


def training_work(
    config: FinetuneConfig | TrainCrossEncoderConfig,
    sizes: Sizes,
    passages: int,
    longest: int,
    contrast: bool,
    texts: int = 0,
) -> Work:
    """Estimate the work of training. A step has ``batch_size`` queries, or all queries if there are fewer.

    Args:
        config: the stage that trains.
        sizes: sizes of the stage's inputs.
        passages: passages per query.
        longest: maximum tokens of a passage, or of a pair.
        contrast: whether queries and passages are encoded separately. Otherwise the model reads a query and a passage as one
            input.
        texts: number of queries per step that are made from the text. Each of these queries adds its passage if the stage
            encodes passages.
    """
    queries, text, step = sizes.collection.queries.get(config.split), sizes.collection.passage_tokens, None
    items = sizes.collection.pairs.get(config.split, queries) if config.positives == "each" else queries
    if config.train_queries is not None:
        items = config.train_queries * (items / queries if items and queries else 1.0)
    if sizes.encoder is not None and text is not None:
        question = min(QUESTION, config.query_length or QUESTION)
        each = min(text + 2, longest) if contrast else min(text + 1 + question, longest)
        batch = config.batch_size if config.labels else min(config.batch_size, items or math.inf)  # labels add queries
        rows = batch * (passages + contrast) + texts * (1 + min(passages, 1))
        length = (passages * each + contrast * question) / (passages + contrast)
        step = Step(sizes.encoder, rows, length, config.budget, contrast=contrast, precision=config.precision)
    return config.training(sizes, step, items)
