"""Training of the tower that encodes queries, while the vectors of all passages are frozen."""

from functools import partial
from types import MappingProxyType
from typing import Any

from torch import Tensor

from condensery.distributed import processes
from condensery.errors import UserError
from condensery.losses.contrast import Contrast
from condensery.losses.distillation import KLDivergence
from condensery.losses.gradient_cache import ChunkEncoder
from condensery.models.biencoder import BiEncoder
from condensery.ranges import Positive, check_numbers
from condensery.training.data.ranking_batches import RankingBatch
from condensery.training.modules.encoders import TowersModule
from condensery.training.modules.optimisation import PathOrName


class QueryTowerModule(TowersModule):
    """Trains the tower of queries on the rankings of a teacher, such as a fusion of BM25 and the retriever itself.

    The data are those of ``RankingDataModule``; the module begins with the checkpoint of the data module's student.

    Only queries are encoded, and the index of the passages does not change (fixed document vectors: ADORE, Zhan et al.
    2021, §4.2). The loss is the KL divergence of the softmax over the passages of the batch from the softmax of the teacher's
    scores (Lin et al. 2020).

    Args:
        model: see ``TowersModule``; where the retriever has one tower, the queries get a copy of it.
        temperature: divides the inner products; for cosines .01 to .1 is usual.
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
        temperature: Positive = 0.05,
        teacher_temperature: Positive = 0.05,
        **others: Any,
    ) -> None:
        check_numbers(type(self), locals())
        super().__init__(model, **{"towers": "separate", **others})
        self.freeze_passages()
        self.loss = KLDivergence(temperature, teacher_temperature)
        self._remember(temperature=temperature, teacher_temperature=teacher_temperature)

    def on_fit_start(self) -> None:
        """Check the data as ``TowersModule`` does.

        Raise ``UserError``, too, where several processes train: each process would have only its own passages.
        """
        super().on_fit_start()
        if processes() > 1:
            raise UserError(f"{type(self).__name__} trains in one process; give the Trainer devices=1")

    def objective(self, batch: RankingBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """Return the encoder, and the divergence from the teacher over all passages that it ranked for the batch."""
        return self.model, partial(self._divergence, batch)

    def _divergence(self, batch: RankingBatch, queries: Tensor) -> Tensor:
        passages, teacher = batch.passages.to(queries), batch.teacher.to(queries)  # (c, d), (q, c)
        return self.loss(queries, passages, teacher.argmax(dim=1), teacher=teacher)
