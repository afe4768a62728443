"""Config of the stage that pre-trains by SEED, with a weak auto-regressive decoder (Lu et al. 2021)."""

from typing import Any

from condensery.ranges import Count, Positive, PositiveShare
from condensery.stages.base import RowLength
from condensery.stages.pretraining.config import SpanDecoderConfig
from condensery.stages.registry import stage


@stage("pretrain_seed", "pretrain_seed:pretrain_seed", version=1, makes="encoder", together=True)
class PretrainSeedConfig(SpanDecoderConfig):
    """Pre-train by SEED (Lu et al. 2021): a weak decoder predicts each token from the CLS vector and a few previous tokens.

    The encoder is also trained by MLM. So the CLS vector must hold the information that the few previous tokens lack.
    """

    attention_span: Count = 2
    """number of tokens before the predicted token that each layer of the decoder sees"""
    decoder_layers: Count = 3
    """Transformer layers of the decoder"""
    length: RowLength = 512
    """maximum tokens of a span, including [CLS] and [SEP]"""
    mask_rate: PositiveShare = 0.15
    """share of the encoder's tokens that are masked and predicted; the decoder reads the text without masks"""
    batch_size: Count = 2048
    """spans per step"""
    learning_rate: Positive = 4e-4
    """peak learning rate of AdamW"""

    def objective(self) -> dict[str, Any]:
        """Return keyword arguments of ``Step``; the decoder predicts every token."""
        return self.decoding(self.mask_rate, 1.0)
