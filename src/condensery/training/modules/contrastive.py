"""Contrastive pre-training of an existing retriever, with the retriever's own pooling, normalisation and prefixes."""

import math
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from condensery.errors import UserError
from condensery.losses.contrast import Contrast, span_contrast
from condensery.losses.cross_batch import across_processes
from condensery.losses.gradient_cache import ChunkEncoder
from condensery.models.biencoder import BiEncoder
from condensery.ranges import Positive, check_numbers
from condensery.training.data.span_batches import SpanBatch
from condensery.training.data.spans import Masking
from condensery.training.modules.encoders import TowersModule
from condensery.training.modules.optimisation import PathOrName
from condensery.training.modules.pretraining import PAIRS

COLDEST = 0.01  # the smallest value of a learned temperature (CLIP)
# The temperature's learning rate divided by that of the weights. At 2e-5, 100 steps change log temperature by .2 at most.
TEMPERATURE_RATE = 100.0


class ContrastiveModule(TowersModule):
    """coCondenser's contrastive loss (Gao and Callan 2021b, eq. 6-7) on a retriever's own vectors, without MLM.

    A released retriever has its own pooling, normalisation and prefixes, which also apply when it is used for search. This
    module trains the retriever with the same pooling, normalisation and prefixes. It trains on pairs of texts from a
    collection (Contriever: Izacard et al. 2022, §3; query-as-context: Wu et al. 2023, §3.1).

    Args:
        model: see ``TowersModule``; one tower reads both texts of a pair.
        temperature: divisor of the inner products; for cosines .01 to .1 is usual.
        learn_temperature: train the logarithm of the temperature with the encoder, starting from ``temperature``. The
            temperature stays at .01 or above (CLIP: Radford et al. 2021, §2.5).
        others: further arguments of ``TowersModule``.

    Raises:
        UserError: the checkpoint cannot be loaded or has separate towers, or a number is out of its range.
    """

    usual_rate = 2e-5

    trained_on = MappingProxyType(PAIRS)

    def __init__(
        self,
        model: PathOrName | BiEncoder,
        *,
        temperature: Positive = 0.05,
        learn_temperature: bool = False,
        **others: Any,
    ) -> None:
        check_numbers(type(self), locals())
        super().__init__(model, **others)
        if not self.model.shared:
            raise UserError(
                f"{type(self).__name__}: the two texts of a pair go through one tower; this retriever has two"
            )
        if learn_temperature and temperature < COLDEST:
            raise UserError(f"temperature={temperature:g}: one that is learned begins at {COLDEST:g} or above")
        self.temperature, self.learn_temperature = temperature, learn_temperature
        if learn_temperature:
            self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))
        self._remember(temperature=temperature, learn_temperature=learn_temperature)

    @property
    def reached(self) -> float:
        """The current value of the temperature."""
        return (
            math.exp(max(float(self.log_temperature.detach()), math.log(COLDEST)))
            if self.learn_temperature
            else self.temperature
        )

    def on_fit_start(self) -> None:
        """Check the data as ``TowersModule`` does. Also raise ``UserError`` if the data module masks tokens."""
        super().on_fit_start()
        masking = getattr(self._data, "masking", None)
        if isinstance(masking, Masking) and masking.rate is not None:
            raise UserError("ContrastiveModule reads whole texts: give the data module mask_rate=None")

    def objective(self, batch: SpanBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """Return the encoder, and the contrastive loss over the vectors of all processes."""
        return self.model, across_processes(self._contrast)

    def _contrast(self, vectors: Tensor) -> Tensor:
        learned = self.log_temperature.clamp(min=math.log(COLDEST)).exp() if self.learn_temperature else None
        return span_contrast(vectors, self.temperature if learned is None else learned)

    def rate_shares(self) -> dict[nn.Parameter, float]:
        """Return the factors of the learning rate as ``TrainingModule`` does, with the temperature's larger factor."""
        own = {self.log_temperature: TEMPERATURE_RATE} if self.learn_temperature else {}
        return {**super().rate_shares(), **own}
