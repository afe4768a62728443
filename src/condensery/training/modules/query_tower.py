"""Training of the query tower while the passage vectors are frozen."""

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
from condensery.ranges import Positive, check_values
from condensery.training.data.ranking_batches import RankingBatch
from condensery.training.modules.encoders import TowersModule
from condensery.training.modules.optimisation import PathOrName


class QueryTowerModule(TowersModule):
    """Trains the query tower on the rankings of a teacher, such as a fusion of BM25 and the retriever itself.

    Train this module on ``RankingDataModule``, starting from the checkpoint of the data module's student.

    Only queries are encoded, and the passage index does not change (fixed document vectors: ADORE, Zhan et al. 2021, §4.2).
    The loss is the KL divergence between the teacher's and the retriever's softmax over the passages of the batch (Lin et
    al. 2020).

    Args:
        model: see ``TowersModule``; if the retriever has one tower, the query tower is a copy of this tower.
        temperature: divisor of the inner products; for cosines .01 to .1 is usual.
        teacher_temperature: divisor of the teacher's scores, which lie in [0, 1].
        others: further arguments of ``TowersModule``.

    Raises:
        UserError: the checkpoint cannot be loaded, a number is out of its range, or ``towers`` is shared.
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
        check_values(type(self), locals())
        super().__init__(model, **{"towers": "separate", **others})
        self.freeze_passages()
        self.loss = KLDivergence(temperature, teacher_temperature)
        self._remember(locals())

    def on_fit_start(self) -> None:
        """Check the data as ``TowersModule`` does.

        Also raise ``UserError`` with several processes, because each process would see only its own passages.
        """
        super().on_fit_start()
        if processes() > 1:
            raise UserError(f"{type(self).__name__} trains in one process; give the Trainer devices=1")

    def objective(self, batch: RankingBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """Return the encoder, and the divergence over all passages that the teacher ranked for the batch."""
        return self.model, partial(self._divergence, batch)

    def _divergence(self, batch: RankingBatch, queries: Tensor) -> Tensor:
        passages, teacher = batch.passages.to(queries), batch.teacher.to(queries)  # (c, d), (q, c)
        return self.loss(queries, passages, teacher.argmax(dim=1), teacher=teacher)
