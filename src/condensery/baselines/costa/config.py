"""Config of the stage that pre-trains by COSTA's contrastive span prediction (Ma et al. 2022)."""

from typing import Annotated, Any

from pydantic import AfterValidator

from condensery.ranges import Count, Positive, Weight
from condensery.stages.pretraining.config import PretrainMlmConfig
from condensery.stages.registry import stage


def _ascending(lengths: tuple[int, int]) -> tuple[int, int]:
    if lengths[0] > lengths[1]:
        raise ValueError(f"[{lengths[0]}, {lengths[1]}]: give the least number of words first, then the most")
    return lengths


Words = Annotated[tuple[Count, Count], AfterValidator(_ascending)]  # least and most words of a span


@stage("pretrain_costa", "pretrain_costa:pretrain_costa", version=1, makes="encoder", together=True)
class PretrainCostaConfig(PretrainMlmConfig):
    """Pre-train by COSTA (Ma et al. 2022): MLM, and a contrastive loss between each text and random spans of it.

    By their length, spans are called words, phrases, sentences and paragraphs. A span's vector is the mean of its tokens'
    states. The negatives are other texts and their spans.
    """

    spans_each: Count = 5
    """spans of a text for each granularity: words, phrases, sentences and paragraphs"""
    phrase: Words | None = (4, 16)
    """least and most words of a phrase; null: no phrases. A text that is too short for a granularity has no such spans"""
    sentence: Words | None = (16, 64)
    """least and most words of a sentence; null: no sentences"""
    paragraph: Words | None = (64, 128)
    """least and most words of a paragraph; null: no paragraphs"""
    projector: bool = True
    """whether two layers, not used in retrieval, map the text's vector before it is compared with its spans' vectors"""
    temperature: Positive = 1.0
    """temperature of the contrastive loss, which divides the inner products"""
    contrast_weight: Weight = 0.1
    """weight of the contrastive loss relative to MLM"""

    @property
    def granularities(self) -> tuple[tuple[int, int], ...]:
        """The least and the most words of a span of each granularity, single words first."""
        return ((1, 1), *filter(None, (self.phrase, self.sentence, self.paragraph)))

    def objective(self) -> dict[str, Any]:
        """Return keyword arguments of ``Step``: the arguments for MLM, and ``contrast``."""
        return {**super().objective(), "contrast": True}
