"""Config of the stage that pre-trains by MASTER, with a decoder for each text to recover (Zhou et al. 2022)."""

from typing import Annotated, Any, Self

from pydantic import model_validator

from condensery.ranges import Count, Positive, PositiveShare
from condensery.stages.base import Input, RowLength
from condensery.stages.pretraining.config import PairDecoderConfig
from condensery.stages.registry import stage


@stage("pretrain_master", "pretrain_master:pretrain_master", version=1, makes="encoder", together=True)
class PretrainMasterConfig(PairDecoderConfig):
    """Pre-train by MASTER (Zhou et al. 2022): three weak decoders recover three texts from a passage's CLS vector.

    The texts are the passage itself, another passage of its document, and a query that was made for it. Each decoder reads
    the vector and one of the texts with masked tokens.
    """

    queries: Annotated[str | None, Input("queries")] = "queries"
    """the stage with the queries of the passages"""
    decoder_mask_rate: PositiveShare = 0.5
    """share of each decoder's tokens that are masked"""
    length: RowLength = 128
    """maximum tokens of a passage, including [CLS] and [SEP]"""
    batch_size: Count = 2048
    """passages per step"""
    epochs: Positive | None = 40
    """passes over the passages"""
    learning_rate: Positive = 3e-4
    """peak learning rate of AdamW"""

    @model_validator(mode="after")
    def _reads_both(self) -> Self:
        if self.queries is None:
            raise ValueError("queries: one of the three decoders recovers a query; name a stage with queries")
        if self.mixed_context:
            raise ValueError("mixed_context: every step reads a query and another passage; set it to 0")
        return self

    def objective(self) -> dict[str, Any]:
        """Return keyword arguments of ``Step``: the layers of three decoders, and four losses."""
        predicted = (self.mask_rate + 3 * self.decoder_mask_rate) / 4
        return {"head_layers": 3 * self.decoder_layers, "predicted": predicted, "losses": 4}
