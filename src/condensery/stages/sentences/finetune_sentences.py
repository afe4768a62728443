"""Stage ``finetune_sentences``: trains a bi-encoder on STS-b or on Wikipedia's sections (Gao and Callan 2021a, §4.2)."""

from typing import Any

from condensery.randomness import check_subset, nested_subset
from condensery.stages.base import Context
from condensery.stages.card import card_of
from condensery.stages.sentences.config import FinetuneSentencesConfig
from condensery.stages.training import initial_towers, loop_settings, run_training
from condensery.tokens.artifacts import Sentences
from condensery.training.data.data_module import StepDataModule
from condensery.training.modules.sentence_encoder import SentenceBatches, SentenceModule


def finetune_sentences(config: FinetuneSentencesConfig, context: Context) -> dict[str, Any]:
    """Train one encoder for all sentences and save the last step's weights as a checkpoint."""
    sentences = Sentences(context.input("sentences"))
    rows, scores = sentences.rows("train"), sentences.scores("train")
    key = f"stages.{context.stage_name}.examples"
    check_subset(config.examples, len(rows), key, f"training examples of {sentences.about['name']}")
    chosen = nested_subset(config.seed, len(rows), config.examples)
    batches = SentenceBatches(
        sentences.store,
        sentences.vocabulary,
        rows[chosen],
        scores[chosen],
        batch_size=config.batch_size,
        length=config.length,
        budget=config.budget,
        seed=config.seed,
    )
    model = initial_towers(config, context, sentences.vocabulary, separate=False)
    module = SentenceModule(model, margin=config.margin, **config.optimiser())
    data = StepDataModule(batches, context.runtime.workers)
    values = run_training(module, data, loop_settings(config, batches), config, context, None)
    card = card_of(type(config), config.model_dump(mode="json"), context.made_from, values, sentences.about["name"])
    module.save_pretrained(context.folder, context.input("tokenizer"), (config.length, config.length), card)
    return {"examples": len(chosen), **values}
