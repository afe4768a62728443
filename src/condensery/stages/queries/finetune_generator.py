"""Stage ``finetune_generator``: trains a model that generates queries, on a collection's own judged pairs."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from condensery.models.generator import Generator, load_generator, save_generator, small_generator
from condensery.models.warm_start import warm_up_generator
from condensery.stages.base import Context
from condensery.stages.checks import model_folder
from condensery.stages.queries.config import SIZES, FinetuneGeneratorConfig, GeneratorConfig
from condensery.stages.training import loop_settings, run_training
from condensery.stages.warm_start.token_vectors import read_token_vectors
from condensery.text.collection import Collection
from condensery.training.data.data_module import StepDataModule
from condensery.training.modules.generator import GeneratorBatches, GeneratorModule


def finetune_generator(config: FinetuneGeneratorConfig, context: Context) -> dict[str, Any]:
    """Train the generator to write the query from the passage, for all positives of the split; save a Hugging Face folder."""
    collection = Collection(context.input("corpus"))
    positives = collection.qrels(config.split).positives()
    pairs = [(passage, query) for query, passages in positives.items() for passage in passages.tolist()]
    generator = initial_generator(config, context)
    own = config.values_of("prefix", "titles", "batch_size", "max_input_tokens", "max_tokens", "budget", "seed")
    rows = np.asarray(pairs, dtype=np.int64)
    batches = GeneratorBatches(rows, collection.passages, collection.queries, generator.tokenizer, **own)
    return {"pairs": len(pairs), **train_generator(generator, batches, config, context)}


def initial_generator(config: GeneratorConfig, context: Context) -> Generator:
    """Return the model before training. Raises ``UserError`` if the checkpoint that ``model`` names cannot be loaded."""
    if config.model is None:
        made = small_generator(context.input("tokenizer"), **config.values_of(*SIZES, "dropout", "seed"))
        if config.vectors is not None:
            warm_up_generator(made.model, read_token_vectors(context.input("vectors"), config.seed))
        return made
    source = model_folder(config.model) or config.model
    return load_generator(source, context.place("model"), config.revision, dropout=config.dropout)


def train_generator(
    generator: Generator, batches: GeneratorBatches, config: GeneratorConfig, context: Context
) -> Mapping[str, Any]:
    """Train the generator and save it as a Hugging Face folder. Returns the metrics of ``run_training``."""
    module = GeneratorModule(generator.model, **config.optimiser())
    data = StepDataModule(batches, context.runtime.workers)
    values = run_training(module, data, loop_settings(config, batches), config, context, None)
    save_generator(generator, context.folder)
    return values
