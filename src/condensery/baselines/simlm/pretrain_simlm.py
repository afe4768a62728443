"""Stage ``pretrain_simlm``: replaced language modelling (Wang et al. 2023, §3.1)."""

from typing import Any

from condensery.baselines.simlm.config import PretrainSimlmConfig
from condensery.baselines.simlm.replacing import SimlmModule, TokenReplacer, load_replacing_model
from condensery.models.masked_autoencoder import DecoderShape
from condensery.stages.base import Context
from condensery.stages.pretraining.pretrain import autoencoder, fit_and_save, span_data
from condensery.training.data.span_batches import ContextMasking


def pretrain_simlm(config: PretrainSimlmConfig, context: Context) -> dict[str, Any]:
    """Train encoder and decoder on texts whose tokens a frozen masked language model has replaced.

    Raises:
        UserError: the generator cannot be loaded, or has another tokenizer.
    """
    data = span_data(config, context, decoder=ContextMasking("same", True, config.further_rate))
    key = context.place("generator" if config.generator else "generator_name")
    source = context.input("generator") if config.generator else config.generator_name
    assert source is not None
    generator = load_replacing_model(source, data.vocabulary, config.generator_revision, key)
    replacer = TokenReplacer(generator, data.vocabulary, config.predict)
    model = autoencoder(config, DecoderShape("masked", config.decoder_layers), context, data.vocabulary)
    module = SimlmModule(model, replacer, mlm_weight=config.mlm_weight, **config.optimiser())
    return fit_and_save(module, data, config, context)
