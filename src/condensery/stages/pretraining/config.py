"""Configs of the stages that pre-train: the source of spans and pairs, the masking, and the head or decoder."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple, Self

from annotated_types import Ge, Le
from pydantic import model_validator

from condensery.models.checkpoints.config import BackboneConfig
from condensery.models.flops import Step
from condensery.ranges import Count, CountOrZero, Positive, PositiveShare, Share, Weight
from condensery.stages.base import FromRecipe, Input, Later, RowLength, Seed, StageConfig
from condensery.stages.checks import check_checkpoint, check_length, check_no_retriever
from condensery.stages.registry import stage
from condensery.stages.training_config import (
    CollectionConfig,
    EncoderStageConfig,
    OptimisedStageConfig,
    ValidatedConfig,
)
from condensery.stages.workload import (
    Read,
    Search,
    Work,
    checkpoint_bytes,
    known,
    product,
    search,
    together,
    total,
    with_encoder,
)

FILLED = 0.9  # share of a span's length that whole sentences fill

QUERY = 11.0  # mean tokens of a query that was made for a passage

SENTENCE = 30.0  # mean tokens of a query that is a sentence


class Texts(NamedTuple):
    """The texts that pre-training reads; None = not known.

    Attributes:
        items: items per epoch.
        texts: texts per item.
        tokens: mean tokens of a text.
    """

    items: float | None
    texts: int
    tokens: float | None


class SpanConfig(StageConfig):
    """Shared keys of the stages that pre-train on spans of text."""

    spans: Literal["sentences", "windows"] = "sentences"
    """sentences: packed to the length, as the papers' scripts do; windows: cut anywhere"""
    length: RowLength = 128
    """tokens of the longest span, [CLS] and [SEP] included"""
    short_probability: Share = 0.1
    """share of the spans that aim at a shorter length (spans: sentences)"""
    min_length: Count = 16
    """tokens of the shortest span; a document needs twice that"""
    epochs: Positive | None = 8
    """passes over the collection"""
    init: Annotated[str, Input("encoder", literal=("backbone",))] = "backbone"
    """backbone, or a stage with an encoder to start from"""
    learning_rate: Positive = 1e-4
    """the peak, of AdamW"""

    def work(self: Any, read: Read) -> Work:  # Any: another base class of the stage has the encoder's keys
        """Estimate the work of training steps of the objective on the backbone."""
        sizes = with_encoder(known(read, "tokens", "tokenizer", "init"), self.backbone, self.length)
        texts, step = self.texts(read), None
        if sizes.encoder is not None and texts.tokens is not None:
            rows, own = self.batch_size * texts.texts, self.objective()
            step = Step(sizes.encoder, rows, texts.tokens, self.budget, precision=self.precision, **own)
        work: Work = self.training(sizes, step, texts.items)
        return work

    def objective(self) -> dict[str, Any]:
        """Return the fields of ``Step`` by which the objective makes a step longer."""
        raise NotImplementedError

    def texts(self, read: Read) -> Texts:
        """Return the number and mean length of the spans, which lie one behind the other."""
        sizes = known(read, "tokens")
        each = self.span_tokens(sizes.text_tokens)
        return Texts(product(sizes.tokens, 1 / (each - 2)) if each else None, 1, each)

    def span_tokens(self, text: float | None) -> float | None:
        """Return the mean tokens of a span from texts of ``text`` tokens; None where the length is not known.

        Whole sentences leave some room in a span, and some spans aim at a shorter length.
        """
        if text is None:
            return None
        filled = FILLED * (1 - self.short_probability / 2) if self.spans == "sentences" else 1.0
        return 2 + max(1.0, min(text, filled * (self.length - 2)))


class MaskingConfig(StageConfig):
    """Shared keys of masked language modelling (MLM)."""

    mask_rate: PositiveShare = 0.15
    """share of the tokens that is masked and predicted"""
    whole_word: bool = True
    """mask whole words; false: single tokens"""
    mlm_weight: Weight = 1.0
    """weight of the MLM losses, of an auto-encoder the encoder's; 2 is what Condenser's released gradient cache amounts to"""

    def identity(self: Any) -> list[str]:
        """Return the same strings as ``EncoderStageConfig.identity``.

        Raises:
            UserError: the checkpoint is missing, or it is a released retriever, which would lose what it has learned.
        """
        if self.init == "backbone":
            check_no_retriever(self.backbone)
        return list(super().identity())  # type: ignore[misc]


class HeadConfig(StageConfig):
    """Shared keys of the Condenser head."""

    head_layers: CountOrZero = 2
    """transformer layers in the head; 0: no head"""
    skip_from: CountOrZero | None = None
    """the backbone layer whose token states the head reads; null: half of the layers"""
    late_mlm: bool = True
    """also train the last layer of the backbone to fill in the masked tokens"""

    def head(self) -> dict[str, Any]:
        """Return the fields of ``Step`` that describe the head."""
        return {"head_layers": self.head_layers, "losses": 1 + (self.late_mlm and self.head_layers > 0)}


class PairConfig(SpanConfig, OptimisedStageConfig):
    """Shared keys of the stages that pre-train on pairs: two spans of a text, or a passage and one of its queries."""

    pairs_within: Literal["document", "passage"] = "document"
    """without ``queries``: the two spans of a pair are of one document, or of one passage (a text of it)"""
    queries: Annotated[str | None, Input("queries")] = None
    """a stage that made queries: pairs are a passage and one of its queries; null: two spans of a document"""
    query_length: RowLength = 64
    """tokens of the longest query, [CLS] and [SEP] included"""
    candidates: Count = 5
    """how many of a passage's queries are drawn from, one a step"""
    mixed_context: Share = 0.0
    """with ``queries``: probability that a step pairs passages of a document instead; 0.5 in Wu et al. 2023"""

    @model_validator(mode="after")
    def _mixed_needs_queries(self) -> Self:
        if self.mixed_context and not self.queries:
            raise ValueError("mixed_context mixes passages into pairs with queries; name a stage in `queries`")
        return self

    def texts(self, read: Read) -> Texts:
        """Return the sizes of the pairs: two spans of each document or passage, or a passage and one of its queries."""
        sizes = known(read, "queries" if self.queries else "tokens")
        passages, tokens = sizes.collection.passages, sizes.collection.passage_tokens
        if self.queries:
            cut = None if tokens is None else min(tokens + 2, self.length)
            return Texts(passages, 2, product(0.5, total([cut, min(QUERY, self.query_length)])))
        if self.pairs_within == "document":
            passages, tokens = sizes.collection.documents or passages, sizes.text_tokens
        return Texts(passages, 2, self.span_tokens(product(0.5, tokens)))

    def lengths(self) -> dict[str, int]:
        """Return the lengths of inputs, in tokens, by key; without queries ``query_length`` is left out."""
        return {key: tokens for key, tokens in super().lengths().items() if self.queries or key != "query_length"}


class DecoderConfig(StageConfig):
    """Shared keys of the decoder of a masked auto-encoder."""

    decoder_layers: Count = 2
    """transformer layers in the decoder"""
    decoder_init: Literal["random", "last"] = "random"
    """the decoder's first weights: random, or last: those of the backbone's last layers"""
    decoder_mask_rate: PositiveShare
    """share of the tokens that the decoder does not see"""
    length: RowLength = 144
    """tokens of the longest span, [CLS] and [SEP] included"""
    short_probability: Share = 0.0
    """share of the spans that aim at a shorter length (spans: sentences)"""
    mask_rate: PositiveShare = 0.3
    """share of the encoder's tokens that is masked and predicted"""

    def decoding(self, encoder: float, decoder: float) -> dict[str, Any]:
        """Return the fields of ``Step`` that describe the decoder.

        ``encoder`` and ``decoder`` are the shares of the tokens that each of them predicts.
        """
        return {"head_layers": self.decoder_layers, "predicted": (encoder + decoder) / 2, "losses": 2}


@stage("pretrain_mlm", "pretrain:pretrain_mlm", version=3, makes="encoder", together=True)
class PretrainMlmConfig(MaskingConfig, SpanConfig, ValidatedConfig, EncoderStageConfig):
    """Pre-train by masked language modelling on spans: the baseline."""

    batch_size: Count = 1024
    """spans a step"""

    def objective(self) -> dict[str, Any]:
        """Return the fields of ``Step``: a share ``mask_rate`` of the tokens is predicted."""
        return {"predicted": self.mask_rate}


@stage("pretrain_condenser", "pretrain:pretrain_condenser", version=3, makes="encoder", together=True)
class PretrainCondenserConfig(HeadConfig, MaskingConfig, SpanConfig, ValidatedConfig, EncoderStageConfig):
    """Pre-train a Condenser (Gao and Callan 2021a): MLM on spans through a head that needs the late CLS state."""

    batch_size: Count = 1024
    """spans a step"""

    def objective(self) -> dict[str, Any]:
        """Return the fields of ``Step``: the head predicts, and with ``late_mlm`` the backbone does too."""
        return {"predicted": self.mask_rate, **self.head()}


@stage("pretrain_cocondenser", "pretrain:pretrain_cocondenser", version=4, makes="encoder", together=True)
class PretrainCoCondenserConfig(PairConfig, HeadConfig, MaskingConfig, ValidatedConfig, EncoderStageConfig):
    """Pre-train a coCondenser (Gao and Callan 2021b): Condenser and the contrast of two spans of each document.

    With ``queries`` it is query-as-context (Wu et al. 2023): the contrast of a passage and a query that was made for it.
    """

    temperature: Positive = 1.0
    """divides the inner products of the contrast"""
    contrast_weight: Weight = 1.0
    """weight of the contrast against MLM"""
    batch_size: Count = 2000
    """documents (passages, with ``queries``) a step, two texts each"""

    def objective(self) -> dict[str, Any]:
        """Return the fields of ``Step``: those of the head, and the contrast."""
        return {"predicted": self.mask_rate, **self.head(), "contrast": True}


@stage("pretrain_cotmae", "pretrain:pretrain_cotmae", version=1, makes="encoder", together=True)
class PretrainCotmaeConfig(DecoderConfig, PairConfig, MaskingConfig, ValidatedConfig, EncoderStageConfig):
    """Pre-train by CoT-MAE (Wu et al. 2022): a shallow decoder fills in one text of a pair from the other's vector.

    Pairs are two spans of a document, or with ``queries`` a passage and a query that was made for it.
    """

    decoder: Literal["masked", "causal"] = "masked"
    """masked: it fills in masked tokens (the paper); causal: it predicts the next token (the released code)"""
    both_directions: bool = True
    """each text is the context of the other; false: only the second (the query) is the context of the first"""
    decoder_mask_rate: PositiveShare = 0.45
    """share of the context's tokens that a masked decoder predicts"""
    batch_size: Count = 8192
    """pairs a step; 16,384 texts with both directions"""
    steps: Count | None = 50000
    """optimisation steps; give this, ``epochs`` or ``token_budget``, and set the other two to null"""
    epochs: Positive | None = None
    """passes over the collection"""
    learning_rate: Positive = 4e-4
    """the peak, of AdamW"""

    def objective(self) -> dict[str, Any]:
        """Return the fields of ``Step``; a causal decoder predicts every token."""
        return self.decoding(self.mask_rate, self.decoder_mask_rate if self.decoder == "masked" else 1.0)


@stage("pretrain_retromae", "pretrain:pretrain_retromae", version=1, makes="encoder", together=True)
class PretrainRetromaeConfig(DecoderConfig, MaskingConfig, SpanConfig, ValidatedConfig, EncoderStageConfig):
    """Pre-train by RetroMAE (Xiao et al. 2022): a one-layer decoder fills in the text itself from its vector."""

    decoder: Literal["enhanced", "masked"] = "enhanced"
    """enhanced: every token is predicted, each from another sample of tokens; masked: as CoT-MAE's"""
    decoder_layers: Count = 1
    """transformer layers in the decoder; an enhanced one has one"""
    decoder_mask_rate: PositiveShare = 0.5
    """share of the tokens that the decoder does not see"""
    batch_size: Count = 256
    """spans a step"""

    def objective(self) -> dict[str, Any]:
        """Return the fields of ``Step``; an enhanced decoder predicts every token."""
        return self.decoding(self.mask_rate, self.decoder_mask_rate if self.decoder == "masked" else 1.0)

    @model_validator(mode="after")
    def _enhanced_is_one_layer(self) -> Self:
        if self.decoder == "enhanced" and self.decoder_layers != 1:
            raise ValueError(
                "decoder_layers: an enhanced decoder has one layer; set decoder_layers=1 or decoder=masked"
            )
        return self


@stage("pretrain_ict", "pretrain:pretrain_ict", version=1, makes="encoder", together=True)
class PretrainIctConfig(SpanConfig, ValidatedConfig, EncoderStageConfig):
    """Pre-train by the inverse cloze task (Lee et al. 2019): a sentence finds the passage that it was taken from."""

    query_length: RowLength = 64
    """tokens of the longest sentence, [CLS] and [SEP] included"""
    keep_sentence: Share = 0.0
    """probability that the sentence stays in its passage; 0.1 in Lee et al."""
    temperature: Positive = 1.0
    """divides the inner products"""
    batch_size: Count = 4096
    """passages a step, one sentence each"""

    def objective(self) -> dict[str, Any]:
        """Return the fields of ``Step``: the contrast."""
        return {"contrast": True}

    def texts(self, read: Read) -> Texts:
        """Return the sizes of the pairs: a span and a sentence of it, about a fifth of the span."""
        items, _, tokens = super().texts(read)
        return Texts(items, 2, product(0.6, tokens))


@stage("pretrain_contrastive", "pretrain:pretrain_contrastive", version=1, makes="encoder", together=True)
class PretrainContrastiveConfig(PairConfig, ValidatedConfig, EncoderStageConfig):
    """Pre-train a released retriever by contrast, in the vectors that it is searched with.

    These have its pooling, normalisation and prefixes. Pairs are those of coCondenser: two spans of a document, or with
    ``queries`` a passage and one of its queries.
    """

    temperature: Positive = 0.05
    """divides the inner products of the contrast; for cosines .01 to .1"""
    learn_temperature: bool = False
    """begin with this temperature and learn it"""
    batch_size: Count = 64
    """documents (passages, with ``queries``) a step, two texts each"""
    steps: Count | None = 150
    """optimisation steps, a few minutes on a CPU; give this, ``epochs`` or ``token_budget``, and set the other two to
    null"""
    epochs: Positive | None = None
    """passes over the collection"""
    learning_rate: Positive = 2e-5
    """the peak, of AdamW; 1e-5 to 5e-5 leave a released retriever what it knows"""

    def objective(self) -> dict[str, Any]:
        """Return the fields of ``Step``: the contrast."""
        return {"contrast": True}


@stage("distil_ranking", "distil_ranking:distil_ranking", version=2, makes="encoder")
class DistilRankingConfig(CollectionConfig, OptimisedStageConfig):
    """Train the tower of queries to rank as a better ranking does, such as its own joined with BM25.

    Nothing is judged: the queries are those of a stage that made them of the text. The vectors of the passages stay.
    """

    student: Annotated[str, Input("index")]
    """the retriever: a stage with its vectors, or with an encoder, which is encoded first"""
    teacher: Annotated[str, Input("index")]
    """a stage with an index that ranks better, such as BM25 and the student joined"""
    cross_encoders: Annotated[list[str], Input("cross_encoder"), Later()] = []
    """stages with cross-encoders, which score what the teacher ranks in its place (GPL: Wang et al. 2022); the mean of
    several counts"""
    queries: Annotated[str, Input("queries")] = "queries"
    """the stage that made queries of the text; about 500 passages (10 to 30 %) are held out for keep_best"""
    number: Count = 4096
    """queries that are trained on, at most; the teacher is asked each once"""
    depth: Count = 100
    """passages that the teacher ranks for each query"""
    query_length: RowLength = 64
    """tokens of the longest query while training, [CLS] and [SEP] included; at most that of the retriever"""
    temperature: Positive = 0.05
    """divides the inner products; for cosines .01 to .1"""
    teacher_temperature: Positive = 0.05
    """divides the teacher's scores, which are scaled to [0, 1]"""
    batch_size: Count = 64
    """queries a step"""
    chunk_tokens: Count | Literal["auto"] = 4096
    """padded tokens that are in memory together; a larger batch is accumulated"""
    steps: Count | None = 100
    """optimisation steps, a few minutes on a CPU; give this, ``epochs`` or ``token_budget``, and set the other two to
    null"""
    learning_rate: Positive = 5e-5
    """the peak, of AdamW"""

    def lengths(self) -> dict[str, int]:
        """Return no lengths: the retriever's own length counts where it is shorter, so none can be too long."""
        return {}

    def work(self, read: Read) -> Work:
        """Estimate the work: the teacher ranks, cross-encoders read its passages, and steps of queries alone are made."""
        sizes = replace(known(read, "teacher", "student"), same_passages=True)
        if sizes.encoder is None:
            return Work(sizes)
        step = Step(sizes.encoder, self.batch_size, SENTENCE, self.budget, contrast=True, precision=self.precision)
        work = self.training(sizes, step, float(self.number))
        looked = search(known(read, "teacher"), float(self.number), self.depth)
        return Work(sizes, work.steps, step, together([looked, self._scoring(read)]).products, work.seconds, work.disk)

    def _scoring(self, read: Read) -> Search:
        """Return the matrix products of the cross-encoders, which read each query with the teacher's passages."""
        pairs, found = float(self.number) * self.depth, Search(0.0, 0.0)
        for scorer in read.get("cross_encoders", ()):
            text = scorer.collection.passage_tokens
            if scorer.encoder is None or text is None:
                return Search(None, None)
            length = min(text + SENTENCE, scorer.passage_length or 512)
            scored = Step(scorer.encoder, pairs, length, self.budget, trained=False, precision=self.precision)
            found = together([found, Search(scored.flops, 0.0)])
        return found


@stage("token_vectors", "token_vectors:token_vectors", version=1, makes="token_vectors", adapts="tokens")
class TokenVectorsConfig(StageConfig):
    """Compute token vectors by truncated SVD of the positive pointwise mutual information (PMI) of tokens.

    The stage is added by itself where a warm start needs it.
    """

    tokens: Annotated[str, Input("tokens")] = "tokens"
    """the stage with the tokens, whose documents are counted"""
    dim: Annotated[Count, FromRecipe("backbone.hidden")]
    """dimensions that are kept; those of the backbone that shall begin with them"""
    window: Annotated[int, Ge(1), Le(40)] = 10
    """two tokens of a document are neighbours within so many tokens; nearer ones count more (1 / distance)"""
    smoothing: PositiveShare = 0.75
    """power of the counts of the context tokens; 1: no smoothing"""

    def work(self, read: Read) -> Work:
        """Estimate the work of counting pairs of neighbouring tokens and of the SVD of their matrix."""
        sizes = known(read)
        return Work(sizes, seconds=product(6.6e-6, sizes.tokens), disk=product(4.0 * self.dim, sizes.vocabulary))


@stage("warm_start", "warm_start:warm_start", version=1, makes="encoder")
class WarmStartConfig(StageConfig):
    """Make an encoder from the co-occurrences of a collection's tokens, without training.

    Models that are pre-trained from nothing start there. A backbone with a name (backbone=bert_base) is trained already
    and is taken as it is.
    """

    tokenizer: Annotated[str, Input("tokenizer")] = "tokenizer"
    """the stage with the tokenizer, saved beside the weights"""
    tokens: Annotated[str, Input("tokens")] = "tokens"
    """the stage with the tokens, which are counted"""
    vectors: Annotated[str | None, Input("token_vectors"), FromRecipe(".tokens")]
    """the stage token_vectors (or tokens: it is added), which the token embeddings begin with; null: with noise"""
    backbone: Annotated[BackboneConfig, FromRecipe("backbone")]
    """the group ``backbone``"""
    length: RowLength = 128
    """tokens of the longest text, for a stage that searches with the encoder as it is"""
    unigram_bias: bool = True
    """the bias of the vocabulary projection begins with the log frequencies of the tokens"""
    near_identity: Weight = 1.0
    """value and output projections of attention begin with so many times the identity; 0: with noise alone"""
    random_share: Weight = 0.3
    """share of the random weights of these projections that stays beside the identity"""
    rare_tokens: Weight = 0.5
    """how strongly the first layer attends to rare tokens rather than to frequent ones; 0: not at all"""
    position_scale: Weight = 0.1
    """factor of the position and type embeddings"""
    seed: Seed
    """of the random weights"""

    @model_validator(mode="after")
    def _fits_the_backbone(self) -> Self:
        if self.backbone.name is None:  # a checkpoint tells its size only when it is loaded
            check_length("length", self.length, self.backbone.max_positions)
            if self.backbone.family not in ("bert", "roberta"):
                raise ValueError(
                    f"backbone.family is {self.backbone.family}; a warm start is written into bert or roberta"
                )
        return self

    def identity(self) -> list[str]:
        """Return no further strings: the id depends on the fields alone.

        Raises:
            UserError: the checkpoint to start from is a missing folder, or a released retriever.
        """
        check_checkpoint(self.backbone.name, "backbone.name")
        check_no_retriever(self.backbone)
        return []

    def work(self, read: Read) -> Work:
        """Estimate the work of drawing and writing the weights."""
        sizes = with_encoder(known(read), self.backbone)
        return Work(sizes, seconds=3.0, disk=checkpoint_bytes(sizes))

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report token vectors whose size is not the backbone's."""
        if self.backbone.name is not None:
            return None
        return other_dimensions(self.vectors, inputs["vectors"], self.backbone.hidden)


def other_dimensions(name: str | None, configs: Sequence[StageConfig], hidden: int) -> tuple[str, str] | None:
    """Return the complaint about token vectors that do not have ``hidden`` dimensions, or None.

    Args:
        name: the stage that the field ``vectors`` names.
        configs: the config of that stage, if there is one.
        hidden: dimensions of the model that begins with the vectors.

    Returns:
        the field and the text, as ``StageConfig.input_error`` returns them.
    """
    dims = [config.dim for config in configs if isinstance(config, TokenVectorsConfig)]
    if not dims or dims[0] == hidden:
        return None
    return "vectors", f"{name} has {dims[0]} dimensions, the model {hidden}; set its dim"


CondenserConfig = PretrainMlmConfig | PretrainCondenserConfig | PretrainCoCondenserConfig
AutoEncoderConfig = PretrainCotmaeConfig | PretrainRetromaeConfig
TowersConfig = PretrainIctConfig | PretrainContrastiveConfig
AnyConfig = CondenserConfig | AutoEncoderConfig | TowersConfig
