"""Contrastive pre-training of an existing retriever, with the retriever's own pooling, normalisation and prefixes."""

import math
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from condensery.distributed import rank, share_of
from condensery.errors import UserError
from condensery.losses.contrast import Contrast, span_contrast
from condensery.losses.cross_batch import across_processes
from condensery.losses.gradient_cache import ChunkEncoder
from condensery.losses.mlm import MaskedPrediction
from condensery.models.biencoder import BiEncoder
from condensery.models.checkpoints.retrievers import SavedRetriever, load_lm_head, save_retriever
from condensery.models.pretraining import PooledLanguageModel
from condensery.ranges import Positive, Weight, check_values
from condensery.training.data.span_batches import SpanBatch
from condensery.training.data.spans import Masking
from condensery.training.modules.encoders import TowersModule
from condensery.training.modules.optimisation import PathOrName
from condensery.training.modules.pretraining import PAIRS

COLDEST = 0.01  # the smallest value of a learned temperature (CLIP)
# The temperature's learning rate is this multiple of the learning rate of the weights. If the weights learn at 2e-5,
# 100 steps change the temperature's logarithm by 0.2 at most.
TEMPERATURE_RATE = 100.0


class ContrastiveModule(TowersModule):
    """coCondenser's contrastive loss (Gao and Callan 2021b, eq. 6-7) on a retriever's own vectors, with or without MLM.

    A released retriever has its own pooling, normalisation and prefixes, which also apply when it is used for search. This
    module trains the retriever with the same pooling, normalisation and prefixes. It trains on pairs of texts from a
    collection (Contriever: Izacard et al. 2022, §3; query-as-context: Wu et al. 2023, §3.1).

    Args:
        model: see ``TowersModule``; one tower reads both texts of a pair.
        temperature: divisor of the inner products; for cosines .01 to .1 is usual.
        learn_temperature: train the logarithm of the temperature with the encoder, starting from ``temperature``. The
            temperature stays at .01 or above (CLIP: Radford et al. 2021, §2.5).
        mlm_weight: factor of an MLM loss that is added (eq. 7 of Gao and Callan 2021b, on masked texts); 0 = no token is
            masked and no LM head is loaded. A checkpoint without an LM head is trained without MLM, and a line says so.
        lm_head: folder or hub name of the checkpoint with the LM head; None = ``model``, if that is a folder or a name.
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
        mlm_weight: Weight = 0.0,
        lm_head: PathOrName | None = None,
        **others: Any,
    ) -> None:
        check_values(type(self), locals())
        super().__init__(model, **others)
        if not self.model.shared:
            raise UserError(f"{type(self).__name__}: this retriever has two towers; give one with a single tower")
        if learn_temperature and temperature < COLDEST:
            raise UserError(f"temperature={temperature:g}: with learn_temperature it must be {COLDEST:g} or more")
        self.temperature, self.learn_temperature = temperature, learn_temperature
        if learn_temperature:
            self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))
        lm_head = model if lm_head is None and isinstance(model, str | Path) else lm_head
        head = load_lm_head(lm_head, self.model.passage) if mlm_weight and lm_head is not None else None
        if mlm_weight and head is None and rank() == 0:
            print(f"{lm_head or 'the model'}: has no MLM head, so mlm_weight has no effect", flush=True)
        self.mlm = None if head is None else PooledLanguageModel(head, self.model.passage).train()
        self.mlm_weight = mlm_weight
        self._remember(locals())

    @property
    def reached(self) -> float:
        """The current value of the temperature."""
        if not self.learn_temperature:
            return self.temperature
        return math.exp(max(float(self.log_temperature.detach()), math.log(COLDEST)))

    def on_fit_start(self) -> None:
        """Check the data as ``TowersModule`` does. Also check that tokens are masked if and only if MLM is on.

        Raises:
            UserError: the data do not fit.
        """
        super().on_fit_start()
        masking = getattr(self._data, "masking", None)
        if isinstance(masking, Masking) and (masking.rate is None) != (self.mlm is None):
            if self.mlm is None:
                raise UserError("ContrastiveModule: MLM is off (mlm_weight); give the data module mask_rate=None")
            raise UserError("ContrastiveModule: mlm_weight needs masked tokens; give the data module a mask_rate")

    def objective(self, batch: SpanBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """Return the encoder, with MLM if there is a head, and the contrastive loss over the vectors of all processes."""
        if self.mlm is not None:
            predicted = MaskedPrediction(self.mlm, share_of(batch.masked), self.mlm_weight)
            return predicted, across_processes(self._contrast)
        return self.model, across_processes(self._contrast)

    def _contrast(self, vectors: Tensor) -> Tensor:
        learned = self.log_temperature.clamp(min=math.log(COLDEST)).exp() if self.learn_temperature else None
        return span_contrast(vectors, self.temperature if learned is None else learned)

    def _save(self, folder: Path, tokenizer: PathOrName, lengths: tuple[int, int]) -> None:
        language_model = None if self.mlm is None else self.mlm.language_model
        save_retriever(SavedRetriever(self.model, *lengths, language_model), folder, tokenizer)

    def rate_shares(self) -> dict[nn.Parameter, float]:
        """Return the factors of the learning rate as ``TrainingModule`` does, and a larger factor for the temperature."""
        return super().rate_shares() | ({self.log_temperature: TEMPERATURE_RATE} if self.learn_temperature else {})
