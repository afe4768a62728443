"""Config of the stage that pre-trains by LexMAE, with a bag of words between encoder and decoder (Shen et al. 2022)."""

from typing import Any, Self

from pydantic import model_validator

from condensery.ranges import Count, Positive, PositiveShare, Share, Weight
from condensery.stages.pretraining.config import SpanDecoderConfig
from condensery.stages.registry import stage


@stage("pretrain_lexmae", "pretrain_lexmae:pretrain_lexmae", version=1, makes="encoder", together=True)
class PretrainLexmaeConfig(SpanDecoderConfig):
    """Pre-train by LexMAE (Shen et al. 2022): a weak decoder fills in a text from a bag of words of the encoder's logits.

    The bag of words takes the place of the CLS vector. So the MLM head learns which words matter to a text. Fine-tune the
    result by finetune_splade, which uses this head.
    """

    lexical_start: bool = False
    """begin with an MLM head that weights only a text's own tokens; needed after a warm start, whose head is random"""
    decoder_mask_rate: PositiveShare = 0.5
    """share of the decoder's tokens that are masked, including those that are masked for the encoder"""
    whole_word: bool = False
    """mask whole words; false: mask single tokens"""
    batch_size: Count = 2048
    """spans per step"""
    epochs: Positive | None = 20
    """passes over the collection"""
    learning_rate: Positive = 3e-4
    """peak learning rate of AdamW"""
    warmup_ratio: Share = 0.05
    """share of the steps in which the learning rate rises; afterwards it falls linearly to zero"""
    max_grad_norm: Weight = 0.0
    """gradient norm above which gradients are clipped; 0: no clipping"""

    @model_validator(mode="after")
    def _more_for_the_decoder(self) -> Self:
        if self.decoder_mask_rate <= self.mask_rate:
            raise ValueError(
                f"decoder_mask_rate: {self.decoder_mask_rate} must be above mask_rate={self.mask_rate}, because it includes"
                " the tokens that are masked for the encoder"
            )
        return self

    def objective(self) -> dict[str, Any]:
        """Return keyword arguments of ``Step``; the bag of words needs the logits of every token, besides the losses."""
        return self.decoding(1.0 + self.mask_rate, self.decoder_mask_rate)
