"""Config of the stage that pre-trains by SimLM's replaced language modelling (Wang et al. 2023)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import model_validator

from condensery.models.flops import EncoderSize, Step
from condensery.ranges import Count, Positive, PositiveShare, Share, Weight
from condensery.stages.base import Input, StageConfig
from condensery.stages.checks import content_of_model, model_folder
from condensery.stages.pretraining.config import MaskingConfig, SpanDecoderConfig
from condensery.stages.registry import stage
from condensery.stages.workload import Read, Work, known, product

Predict = Literal["all", "replaced"]
ELECTRA = EncoderSize(12, 256, 1024, 4, 30522)  # ELECTRA-base's generator


@stage("pretrain_simlm", "pretrain_simlm:pretrain_simlm", version=1, makes="encoder", together=True)
class PretrainSimlmConfig(SpanDecoderConfig):
    """Pre-train by SimLM (Wang et al. 2023): encoder and decoder recover tokens that a frozen generator has replaced.

    A masked language model fills in the masked tokens of a text twice, which gives two texts. The encoder reads one of the
    two. A shallow decoder reads the encoder's CLS vector and the other text, in which more tokens are replaced.
    """

    generator: Annotated[str | None, Input("encoder")] = None
    """the stage with the generator, a masked language model (such as pretrain_mlm); null: use ``generator_name``"""
    generator_name: str | None = "google/electra-base-generator"
    """hub name or folder of the generator, which must have the tokenizer's vocabulary; null: use the stage ``generator``"""
    generator_revision: str | None = None
    """commit, tag or branch of the generator on the Hugging Face hub"""
    predict: Predict = "all"
    """all: both losses cover every token, as in the authors' code; replaced: only the replaced tokens"""
    decoder_init: Literal["random", "last"] = "last"
    """initial weights of the decoder; random, or last = copied from the backbone's last layers"""
    decoder_mask_rate: PositiveShare = 0.5
    """share of the decoder's tokens that are replaced, including those that are replaced for the encoder"""
    mask_rate: PositiveShare = 0.3
    """share of the encoder's tokens that are replaced"""
    batch_size: Count = 2048
    """spans per step"""
    steps: Count | None = 80000
    """optimisation steps; set exactly one of ``steps``, ``epochs`` and ``token_budget``, the other two to null"""
    epochs: Positive | None = None
    """passes over the collection"""
    learning_rate: Positive = 3e-4
    """peak learning rate of AdamW"""
    warmup_ratio: Share = 0.05
    """share of the steps in which the learning rate rises; afterwards it falls linearly to zero"""
    weight_decay: Weight = 0.0
    """weight decay of AdamW; biases and LayerNorm weights are not decayed"""

    @model_validator(mode="after")
    def _one_generator(self) -> Self:
        if (self.generator is None) == (self.generator_name is None):
            raise ValueError("give either generator or generator_name, and set the other to null")
        return self

    @model_validator(mode="after")
    def _more_for_the_decoder(self) -> Self:
        if self.decoder_mask_rate <= self.mask_rate:
            raise ValueError(
                f"decoder_mask_rate: {self.decoder_mask_rate} must be above mask_rate={self.mask_rate}, because it includes"
                " the tokens that are replaced for the encoder"
            )
        return self

    @property
    def further_rate(self) -> float:
        """Share of the encoder's unmasked tokens that are masked for the decoder, to reach ``decoder_mask_rate``."""
        return (self.decoder_mask_rate - self.mask_rate) / (1 - self.mask_rate)

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a generator that was not trained by masked language modelling."""
        if all(isinstance(config, MaskingConfig) for config in inputs["generator"]):
            return None
        return "generator", f"{self.generator} is no masked language model; name a stage of kind pretrain_mlm"

    def objective(self) -> dict[str, Any]:
        """Return keyword arguments of ``Step``: the shares of tokens that encoder and decoder predict."""
        every = self.predict == "all"
        return self.decoding(1.0 if every else self.mask_rate, 1.0 if every else self.decoder_mask_rate)

    def work(self, read: Read) -> Work:
        """Estimate the work of training steps, in which the generator reads each text twice."""
        work, size = super().work(read), known(read, "generator").encoder or ELECTRA
        if work.step is None:
            return work
        twice = Step(size, 2 * work.step.rows, work.step.length, self.budget, trained=False)
        filled = work.step.tokens * (self.mask_rate + self.decoder_mask_rate)
        return replace(work, products=product(work.steps, twice.flops + size.projection(filled)))

    def by_content(self) -> set[str]:
        """Also return ``generator_name`` if it is a folder. The id then depends on the folder's content, not its path."""
        return super().by_content() | ({"generator_name"} if model_folder(self.generator_name) else set())

    def identity(self) -> list[str]:
        """Also return the content hashes of a generator in a folder.

        Raises:
            UserError: the folder does not exist, or holds no checkpoint; or as ``MaskingConfig.identity``.
        """
        return [*super().identity(), *content_of_model(self.generator_name, "stage.pretrain_simlm.generator_name")]
