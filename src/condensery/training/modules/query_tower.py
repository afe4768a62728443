"""Training of the tower that encodes queries, while the vectors of all passages are frozen."""

from functools import partial
from types import MappingProxyType
from typing import Any

from torch import Tensor

from condensery.arguments import check_numbers
from condensery.distributed import processes
from condensery.errors import UserError
from condensery.losses.contrast import Contrast
from condensery.losses.distillation import KLDivergence
from condensery.losses.gradient_cache import ChunkEncoder
from condensery.models.biencoder import BiEncoder
from condensery.training.batches.rankings import RankingBatch
from condensery.training.modules.encoders import TowersModule
from condensery.training.modules.frozen_passages import check_student, freeze_passages
from condensery.training.modules.optimisation import PathOrName


class QueryTowerModule(TowersModule):
    """The tower of queries learns the rankings of a teacher, such as BM25 and the retriever itself joined.

    It is trained on ``RankingDataModule``, and begins with the checkpoint of the student there.

    Only queries are encoded, and the index of the passages stays what it is (fixed document vectors: ADORE, Zhan et al.
    2021, §4.2). The loss is the KL divergence of the softmax over the passages of the batch from that of the teacher's
    scores (Lin et al. 2020).

    Args:
        model: see ``TowersModule``; of a retriever with one tower its queries get a copy.
        temperature: divides the inner products; cosines want .01 to .1.
        teacher_temperature: divides the teacher's scores, which lie in [0, 1].
        others: see ``TowersModule``.

    Raises:
        UserError: the checkpoint cannot be loaded, a number is out of its range, or ``towers`` says shared.
    """

    usual_rate = 5e-5

    trained_on = MappingProxyType({"ranking": "RankingDataModule"})

    def __init__(
        self,
        model: PathOrName | BiEncoder,
        *,
        temperature: float = 0.05,
        teacher_temperature: float = 0.05,
        **others: Any,
    ) -> None:
        check_numbers(type(self).__name__, locals())
        super().__init__(model, **{"towers": "separate", **others})
        freeze_passages(self)
        self.loss = KLDivergence(temperature, teacher_temperature)
        self._remember(model=model)

    def on_fit_start(self) -> None:
        """Raise ``UserError``, too, where the passages' vectors are those of another encoder, or several processes train.

        Each process would know its own passages alone.
        """
        super().on_fit_start()
        check_student(self)
        if processes() > 1:
            raise UserError(f"{type(self).__name__} trains in one process; give the Trainer devices=1")

    def objective(self, batch: RankingBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """The divergence from the teacher, over all passages that it ranked for a query of the batch."""
        return self.model, partial(self._divergence, batch)

    def _divergence(self, batch: RankingBatch, queries: Tensor) -> Tensor:
        passages, teacher = batch.passages.to(queries), batch.teacher.to(queries)
        loss: Tensor = self.loss(queries, passages, teacher.argmax(dim=1), teacher=teacher)
        return loss
