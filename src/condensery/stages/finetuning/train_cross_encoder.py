"""Stage ``train_cross_encoder``: trains a model that reads query and passage together.

The model is as in RocketQA (Qu et al. 2021) and in Gao and Callan 2021b, §4.3.
"""

from typing import Any

from condensery.models.checkpoints.backbone import check_words, masked_language_model
from condensery.models.cross_encoder import CrossEncoder, load_cross_encoder, new_cross_encoder
from condensery.retrieval.no_negatives import left_out_by_text
from condensery.stages.base import Context
from condensery.stages.finetuning.config import TrainCrossEncoderConfig
from condensery.stages.finetuning.training_queries import check_enough_passages, training_queries, triple_data
from condensery.stages.training import loop_settings, run_training
from condensery.text.collection import Collection
from condensery.tokens.vocabulary import Vocabulary
from condensery.training.data.list_batches import ListBatches
from condensery.training.modules.cross_encoder import CrossEncoderModule
from condensery.training.validation import pair_sample


def train_cross_encoder(config: TrainCrossEncoderConfig, context: Context) -> dict[str, Any]:
    """Train the cross-encoder and save the last step's weights as a checkpoint.

    Raises:
        UserError: the collection has too few passages for the negatives of a query.
    """
    collection = Collection(context.input("corpus"))
    training = training_queries(config, context, collection)
    by_text = left_out_by_text(training.by_text, context.stage_name)
    check_enough_passages(config, context, training, collection)
    own: dict[str, Any] = {"pairs": True, "negatives_per_query": config.negatives_per_query}
    data = triple_data(config, context, training, (config.query_length, config.length), **own)
    module = CrossEncoderModule(_initial(config, context, data.vocabulary), loss=config.loss, **config.optimiser())
    sample = None
    if config.validations():
        sizes = config.validation_queries, config.validation_passages
        assert isinstance(data.batches, ListBatches)
        sample = pair_sample(collection, data.batches.reader, *sizes, budget=config.budget)
    values = run_training(module, data, loop_settings(config, data.batches), config, context, sample)
    module.save_pretrained(context.folder, context.input("tokenizer"), data.lengths)
    return {"queries": len(training.rows), **by_text, **values}


def _initial(config: TrainCrossEncoderConfig, context: Context, vocabulary: Vocabulary) -> CrossEncoder:
    """Return the cross-encoder before the first step: from scratch, from a checkpoint, or from another stage's encoder."""
    backbone = config.backbone
    if config.init != "backbone":
        return load_cross_encoder(context.input("init"), config.seed, backbone.dropout)
    if backbone.name is None:
        return new_cross_encoder(masked_language_model(backbone, vocabulary, config.seed), config.seed)
    model = load_cross_encoder(backbone.name, config.seed, backbone.dropout, backbone.revision)
    check_words(model.classifier, backbone.name, vocabulary)
    return model
