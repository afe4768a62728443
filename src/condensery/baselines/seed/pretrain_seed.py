"""Stage ``pretrain_seed``: MLM and a weak auto-regressive decoder (Lu et al. 2021)."""

from typing import Any

from condensery.baselines.seed.config import PretrainSeedConfig
from condensery.errors import UserError
from condensery.models.masked_autoencoder import DecoderShape, MaskedAutoEncoder
from condensery.ranges import Count, Weight, check_values
from condensery.stages.base import Context
from condensery.stages.pretraining.pretrain import autoencoder, fit_and_save, span_data
from condensery.training.data.span_batches import ContextMasking
from condensery.training.modules.optimisation import PathOrName
from condensery.training.modules.pretraining import MaskedAutoEncoderModule


class SeedModule(MaskedAutoEncoderModule):
    """SEED (Lu et al. 2021): L = L_MLM + L_dec, where the decoder is auto-regressive and sees only a few tokens.

        L_dec = mean over all tokens x_t of -log P(x_t | x_(t-k), ..., x_(t-1), h), k = ``attention_span``, h the CLS vector

    With n layers, a prediction depends on n (k - 1) + 1 tokens, because a layer reads states that already depend on earlier
    tokens.

    Args:
        model: folder or hub name of a checkpoint of the BERT family; or a ``MaskedAutoEncoder`` with a causal decoder.
        attention_span: number k of tokens before the predicted token that a layer of the decoder sees.
        decoder_layers: number of decoder layers. Ignored with a ``MaskedAutoEncoder``.
        mlm_weight: factor of the encoder's MLM loss.
        others: further arguments of ``MaskedAutoEncoderModule``, except ``decoder``.

    Raises:
        UserError: the model has another decoder; or as ``MaskedAutoEncoderModule``.
    """

    def __init__(
        self,
        model: PathOrName | MaskedAutoEncoder,
        *,
        attention_span: Count = 2,
        decoder_layers: Count = 3,
        mlm_weight: Weight = 1.0,
        **others: Any,
    ) -> None:
        check_values(type(self), locals())
        super().__init__(model, decoder="causal", decoder_layers=decoder_layers, mlm_weight=mlm_weight, **others)
        if self.model.shape.kind != "causal":
            raise UserError(f"SeedModule: the decoder is {self.model.shape.kind}; give a causal one")
        self.model.span = attention_span
        self._remember(locals())


def pretrain_seed(config: PretrainSeedConfig, context: Context) -> dict[str, Any]:
    """Train the encoder by MLM, and by a decoder that reads the CLS vector and predicts the text token by token."""
    data = span_data(config, context, decoder=ContextMasking("same", True, None))
    model = autoencoder(config, DecoderShape("causal", config.decoder_layers), context, data.vocabulary)
    module = SeedModule(model, attention_span=config.attention_span, mlm_weight=config.mlm_weight, **config.optimiser())
    return fit_and_save(module, data, config, context)
