"""Stage ``pretrain_master``: MLM, and three decoders, each with another task (Zhou et al. 2022).

Symbols in shapes: b rows of a chunk, d hidden size.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from condensery.baselines.master.batches import TASKS, MasterDataModule, contexts
from condensery.baselines.master.config import PretrainMasterConfig
from condensery.distributed import share_of
from condensery.errors import UserError
from condensery.losses.contrast import Contrast
from condensery.losses.gradient_cache import ChunkEncoder
from condensery.losses.mlm import MaskedPrediction
from condensery.models.masked_autoencoder import DecoderShape, Init, MaskedAutoEncoder
from condensery.models.packing import PackedLayout
from condensery.ranges import check_values
from condensery.stages.base import Context
from condensery.stages.pretraining.pretrain import autoencoder, fit_and_save, pair_data
from condensery.tokens.batches import Chunk
from condensery.training.data.span_batches import ContextMasking, SpanBatch
from condensery.training.modules.optimisation import PathOrName
from condensery.training.modules.pretraining import MaskedAutoEncoderModule

LOSSES = tuple(f"mlm_{task}" for task in TASKS)


class SeveralDecoders(MaskedPrediction):
    """``MaskedPrediction`` of an auto-encoder that has one decoder for each of the chunk's decoder texts.

    Args:
        model, masked, weight: as in ``MaskedPrediction``.
        decoders: the layers of each decoder by the name of its loss, in the order of the texts.
    """

    model: MaskedAutoEncoder

    def __init__(
        self,
        model: MaskedAutoEncoder,
        decoders: Mapping[str, nn.ModuleList],
        masked: Mapping[str, float],
        weight: Mapping[str, float],
    ) -> None:
        super().__init__(model, masked, weight)
        self.decoders = decoders

    def encode(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the CLS vectors (b, d) and the chunk's contribution to each loss."""
        model, layout = self.model, PackedLayout(chunk)
        assert layout.masked is not None
        assert chunk.targets is not None
        hidden, _ = model.encoder(layout, layout.cls, layout.masked)
        cls = hidden[: len(chunk)]  # (b, d)
        states, targets = {"mlm_late": hidden[len(chunk) :]}, {"mlm_late": chunk.targets}
        for (name, decoder), context in zip(self.decoders.items(), contexts(chunk), strict=True):
            assert context.targets is not None
            states[name], targets[name] = model.decode(cls, context, decoder), context.targets
        losses = model.cross_entropy(states, targets)
        return cls, {name: loss.sum() * self._scale(name) for name, loss in losses.items()}


class MasterModule(MaskedAutoEncoderModule):
    """MASTER (Zhou et al. 2022): MLM in the encoder and in three weak decoders, which all read the passage's CLS vector.

    A decoder reads [h ; x], where h is the CLS vector of the masked passage and x one of three texts with masked tokens: the
    passage itself, another passage of its document, and a query that was made for it. CE is a mean over the masked tokens.

        L = mlm_weight CE(encoder) + CE(decoder of itself) + CE(decoder of the other passage) + CE(decoder of the query)

    All losses share the MLM head. Only the decoder of the passage itself is saved, beside the backbone. Train it on
    ``MasterDataModule``.

    Args:
        model: folder or hub name of a checkpoint of the BERT family; or a ``MaskedAutoEncoder`` with a masked decoder, which
            recovers the passage itself. The other decoders have the same shape.
        decoder_init: initial weights of the decoders: random, or the weights of the backbone's last layers.
        others: further arguments of ``MaskedAutoEncoderModule``, except ``decoder``.

    Raises:
        UserError: the model has another decoder; or as ``MaskedAutoEncoderModule``.
    """

    trained_on = MappingProxyType({"query": "MasterDataModule"})
    usual_rate = 3e-4

    def __init__(self, model: PathOrName | MaskedAutoEncoder, *, decoder_init: Init = "random", **others: Any) -> None:
        check_values(type(self), locals())
        super().__init__(model, decoder="masked", decoder_init=decoder_init, **others)
        if self.model.shape.kind != "masked":
            raise UserError(f"MasterModule: the decoder is {self.model.shape.kind}; give a masked one")
        torch.manual_seed(self.seed)
        made = {
            task: MaskedAutoEncoder(self.model.language_model, self.model.shape, decoder_init) for task in TASKS[1:]
        }
        self.decoders = nn.ModuleDict({task: one.decoder for task, one in made.items()})
        self._remember(locals())

    def objective(self, batch: SpanBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """Return the encoder with all losses, each a mean over its own predicted tokens of the batch."""
        decoders: dict[str, Any] = dict(zip(LOSSES, (self.model.decoder, *self.decoders.values()), strict=True))
        read = [[context.masked for context in contexts(chunk)] for chunk in batch.chunks]
        if any(len(masked) != len(LOSSES) for masked in read):
            raise UserError("MasterModule is trained on MasterDataModule, whose passages have a text for each decoder")
        numbers = (sum(map(len, masked)) for masked in zip(*read, strict=True))
        counts = {name: share_of(number) for name, number in zip(LOSSES, numbers, strict=True)}
        weights = {"mlm_late": self.mlm_weight, **dict.fromkeys(LOSSES, 1.0)}
        return SeveralDecoders(self.model, decoders, {"mlm_late": share_of(batch.masked), **counts}, weights), None


def pretrain_master(config: PretrainMasterConfig, context: Context) -> dict[str, Any]:
    """Train the encoder by MLM, and by decoders that recover the passage, another passage of its document, and its query."""
    decoder = ContextMasking("partner", False, config.decoder_mask_rate)
    data = pair_data(config, context, decoder, MasterDataModule)
    model = autoencoder(config, DecoderShape("masked", config.decoder_layers), context, data.vocabulary)
    own = config.values_of("decoder_init", "mlm_weight")
    return fit_and_save(MasterModule(model, **own, **config.optimiser()), data, config, context)
