"""Configs of the stages that pre-train: the source of spans and pairs, the masking, and the head or decoder."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from condensery.models.checkpoints.config import BackboneConfig
from condensery.models.flops import Step
from condensery.stages.base import Input, StageConfig
from condensery.stages.checks import check_checkpoint, check_length, check_no_retriever
from condensery.stages.registry import stage
from condensery.stages.training_config import (
    CollectionConfig,
    Count,
    EncoderStageConfig,
    OptimisedStageConfig,
    Share,
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

Rate = Annotated[float, Field(gt=0, le=1)]

Length = Annotated[int, Field(ge=8)]

FILLED = 0.9  # share of a span's length that whole sentences fill

QUERY = 11.0  # mean tokens of a query that was made for a passage

Temperature = Annotated[float, Field(gt=0)]

SENTENCE = 30.0  # mean tokens of a query that is a sentence

Amount = Annotated[float, Field(ge=0)]


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
    """Shared keys of the stages that pre-train on spans of text.

    Attributes:
        spans: whether spans end with ``sentences`` or are plain ``windows`` of tokens.
        length: tokens of the longest span, [CLS] and [SEP] included.
        short_probability: share of the spans that aim at a shorter length (spans: sentences).
        min_length: tokens of the shortest span.
    """

    spans: Literal["sentences", "windows"]
    length: Length
    short_probability: Share
    min_length: Count

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
    """Shared keys of masked language modelling (MLM).

    Attributes:
        mask_rate: share of the tokens that is predicted.
        whole_word: whether whole words are masked, or single tokens.
        mlm_weight: weight of the MLM losses.
    """

    mask_rate: Rate
    whole_word: bool
    mlm_weight: Annotated[float, Field(ge=0)]

    def identity(self: Any) -> list[str]:
        """Return the same strings as ``EncoderStageConfig.identity``.

        Raises:
            UserError: the checkpoint is missing, or it is a released retriever, which would lose what it has learned.
        """
        if self.init == "backbone":
            check_no_retriever(self.backbone)
        return list(super().identity())  # type: ignore[misc]


class HeadConfig(StageConfig):
    """Shared keys of the Condenser head.

    Attributes:
        head_layers: transformer layers in the head; 0 = no head.
        skip_from: the backbone layer whose token states the head reads; null = half of the backbone's layers.
        late_mlm: whether the backbone's last layer is also trained to fill in the masked tokens.
    """

    head_layers: Annotated[int, Field(ge=0)]
    skip_from: Annotated[int, Field(ge=0)] | None
    late_mlm: bool

    def head(self) -> dict[str, Any]:
        """Return the fields of ``Step`` that describe the head."""
        return {"head_layers": self.head_layers, "losses": 1 + (self.late_mlm and self.head_layers > 0)}


class PairConfig(SpanConfig, OptimisedStageConfig):
    """Shared keys of the stages that pre-train on pairs: two spans of a text, or a passage and one of its queries.

    Attributes:
        pairs_within: without ``queries``, whether the spans of a pair come from one document or from one passage.
        queries: the stage that made queries; pairs are then a passage and one of its queries. Null takes two spans.
        query_length: tokens of the longest query, [CLS] and [SEP] included.
        candidates: how many of a passage's queries are drawn from, one in each step.
        mixed_context: with ``queries``, the probability that a step pairs passages of a document instead.
    """

    pairs_within: Literal["document", "passage"]
    queries: Annotated[str | None, Input("queries")]
    query_length: Length
    candidates: Count
    mixed_context: Share

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
    """Shared keys of the decoder of a masked auto-encoder.

    Attributes:
        decoder_layers: transformer layers in the decoder.
        decoder_init: the decoder's first weights: ``random``, or ``last`` for copies of the backbone's last layers.
        decoder_mask_rate: share of the tokens that is masked for the decoder.
    """

    decoder_layers: Count
    decoder_init: Literal["random", "last"]
    decoder_mask_rate: Rate

    def decoding(self, encoder: float, decoder: float) -> dict[str, Any]:
        """Return the fields of ``Step`` that describe the decoder.

        ``encoder`` and ``decoder`` are the shares of the tokens that each of them predicts.
        """
        return {"head_layers": self.decoder_layers, "predicted": (encoder + decoder) / 2, "losses": 2}


@stage("pretrain_mlm", "pretrain:pretrain_mlm", version=3, makes="encoder", together=True)
class PretrainMlmConfig(MaskingConfig, SpanConfig, ValidatedConfig, EncoderStageConfig):
    """Pre-train by masked language modelling on spans: the baseline."""

    def objective(self) -> dict[str, Any]:
        """Return the fields of ``Step``: a share ``mask_rate`` of the tokens is predicted."""
        return {"predicted": self.mask_rate}


@stage("pretrain_condenser", "pretrain:pretrain_condenser", version=3, makes="encoder", together=True)
class PretrainCondenserConfig(HeadConfig, MaskingConfig, SpanConfig, ValidatedConfig, EncoderStageConfig):
    """Pre-train a Condenser (Gao and Callan 2021a): MLM on spans through a head that needs the late CLS state."""

    def objective(self) -> dict[str, Any]:
        """Return the fields of ``Step``: the head predicts, and with ``late_mlm`` the backbone does too."""
        return {"predicted": self.mask_rate, **self.head()}


@stage("pretrain_cocondenser", "pretrain:pretrain_cocondenser", version=4, makes="encoder", together=True)
class PretrainCoCondenserConfig(PairConfig, HeadConfig, MaskingConfig, ValidatedConfig, EncoderStageConfig):
    """Pre-train a coCondenser (Gao and Callan 2021b): Condenser and the contrast of pairs.

    With ``queries`` it is query-as-context pre-training (Wu et al. 2023).

    Attributes:
        temperature: divides the inner products of the contrast.
        contrast_weight: weight of the contrast against MLM.
    """

    temperature: Annotated[float, Field(gt=0)]
    contrast_weight: Annotated[float, Field(ge=0)]

    def objective(self) -> dict[str, Any]:
        """Return the fields of ``Step``: those of the head, and the contrast."""
        return {"predicted": self.mask_rate, **self.head(), "contrast": True}


@stage("pretrain_cotmae", "pretrain:pretrain_cotmae", version=1, makes="encoder", together=True)
class PretrainCotmaeConfig(DecoderConfig, PairConfig, MaskingConfig, ValidatedConfig, EncoderStageConfig):
    """Pre-train by CoT-MAE (Wu et al. 2022): the decoder reads the other text of the pair.

    Attributes:
        decoder: ``masked`` fills in masked tokens, as in the paper. ``causal`` predicts the next token, as in the released
            code.
        both_directions: whether each text is the context of the other. False: only the second is the context of the first.
    """

    decoder: Literal["masked", "causal"]
    both_directions: bool

    def objective(self) -> dict[str, Any]:
        """Return the fields of ``Step``; a causal decoder predicts every token."""
        return self.decoding(self.mask_rate, self.decoder_mask_rate if self.decoder == "masked" else 1.0)


@stage("pretrain_retromae", "pretrain:pretrain_retromae", version=1, makes="encoder", together=True)
class PretrainRetromaeConfig(DecoderConfig, MaskingConfig, SpanConfig, ValidatedConfig, EncoderStageConfig):
    """Pre-train by RetroMAE (Xiao et al. 2022): the decoder reads the same text as the encoder.

    Attributes:
        decoder: ``enhanced``, with one layer, predicts every token, each from another sample of tokens. ``masked`` is the
            decoder of CoT-MAE.
    """

    decoder: Literal["enhanced", "masked"]

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
    """Pre-train by the inverse cloze task (Lee et al. 2019): a sentence finds the passage that it was taken from.

    Attributes:
        query_length: tokens of the longest sentence, [CLS] and [SEP] included.
        keep_sentence: probability that the sentence stays in its passage.
        temperature: divides the inner products.
    """

    query_length: Length
    keep_sentence: Share
    temperature: Annotated[float, Field(gt=0)]

    def objective(self) -> dict[str, Any]:
        """Return the fields of ``Step``: the contrast."""
        return {"contrast": True}

    def texts(self, read: Read) -> Texts:
        """Return the sizes of the pairs: a span and a sentence of it, about a fifth of the span."""
        items, _, tokens = super().texts(read)
        return Texts(items, 2, product(0.6, tokens))


@stage("pretrain_contrastive", "pretrain:pretrain_contrastive", version=1, makes="encoder", together=True)
class PretrainContrastiveConfig(PairConfig, ValidatedConfig, EncoderStageConfig):
    """Pre-train a released retriever by the contrast of coCondenser's pairs, in the retriever's own vectors.

    Attributes:
        temperature: divides the inner products of the contrast.
        learn_temperature: whether training begins with this temperature and learns it.
    """

    temperature: Annotated[float, Field(gt=0)]
    learn_temperature: bool

    def objective(self) -> dict[str, Any]:
        """Return the fields of ``Step``: the contrast."""
        return {"contrast": True}


@stage("distil_ranking", "distil_ranking:distil_ranking", version=2, makes="encoder")
class DistilRankingConfig(CollectionConfig, OptimisedStageConfig):
    """Train the tower of queries to rank as a better ranking does, without judgements; the passage vectors stay.

    Attributes:
        student: the stage with the retriever's index.
        teacher: an index that ranks better, such as BM25 and the student joined.
        cross_encoders: stages with cross-encoders, which score the teacher's passages in its place (GPL: Wang et al. 2022).
            The mean of several counts.
        queries: the stage that made queries from the text.
        number: queries that are trained on, at most.
        depth: passages that the teacher ranks for each query.
        query_length: tokens of the longest query while training; the retriever's own length counts where it is shorter.
        temperature: divides the inner products.
        teacher_temperature: divides the teacher's scores, which are scaled to [0, 1].
    """

    student: Annotated[str, Input("index")]
    teacher: Annotated[str, Input("index")]
    cross_encoders: Annotated[list[str], Input("cross_encoder")]
    queries: Annotated[str, Input("queries")]
    number: Count
    depth: Count
    query_length: Annotated[int, Field(ge=8)]
    temperature: Temperature
    teacher_temperature: Temperature

    def lengths(self) -> dict[str, int]:
        """Return no lengths: the retriever's own length counts where it is shorter, so none can be too long."""
        return {}

    def by_content(self) -> set[str]:
        """Return ``cross_encoders`` where there are none: the key was added later, and older ids stay valid."""
        return super().by_content() | (set() if self.cross_encoders else {"cross_encoders"})

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

    Attributes:
        tokens: the stage with the tokens, whose documents are counted.
        dim: dimensions that are kept.
        window: two tokens count as neighbours within this many tokens; nearer ones count more (1 / distance).
        smoothing: the power to which the counts of context tokens are raised in the PMI; 1 = no smoothing.
    """

    tokens: Annotated[str, Input("tokens")]
    dim: Annotated[int, Field(ge=1)]
    window: Annotated[int, Field(ge=1, le=40)]
    smoothing: Annotated[float, Field(gt=0, le=1)]

    def work(self, read: Read) -> Work:
        """Estimate the work of counting pairs of neighbouring tokens and of the SVD of their matrix."""
        sizes = known(read)
        return Work(sizes, seconds=product(6.6e-6, sizes.tokens), disk=product(4.0 * self.dim, sizes.vocabulary))


@stage("warm_start", "warm_start:warm_start", version=1, makes="encoder")
class WarmStartConfig(StageConfig):
    """Make an encoder from the co-occurrences of a collection's tokens, without training.

    A backbone with a name is trained already and is taken as it is.

    Attributes:
        vectors: the stage whose token vectors initialise the token embeddings; null draws noise.
        length: tokens of the longest text, for a stage that searches with the encoder as it is.
        unigram_bias: whether the bias of the vocabulary projection starts at the log frequencies of the tokens.
        near_identity: multiple of the identity matrix that value and output projections of attention start with; 0 = none.
        random_share: share of the random weights of these projections that stays beside the identity.
        rare_tokens: how strongly the first layer prefers rare tokens; 0 = no preference.
        position_scale: factor of the position and type embeddings.
        seed: of the random weights.
    """

    tokenizer: Annotated[str, Input("tokenizer")]
    tokens: Annotated[str, Input("tokens")]
    vectors: Annotated[str | None, Input("token_vectors")]
    backbone: BackboneConfig
    length: Annotated[int, Field(ge=8)]
    unigram_bias: bool
    near_identity: Amount
    random_share: Amount
    rare_tokens: Amount
    position_scale: Amount
    seed: Annotated[int, Field(ge=0)]

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
