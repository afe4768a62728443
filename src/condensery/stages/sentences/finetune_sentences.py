"""Stage ``finetune_sentences``: trains a bi-encoder on STS-b or on Wikipedia's sections (Gao and Callan 2021a, §4.2)."""

from typing import Any

from condensery.randomness import check_subset, nested_subset
from condensery.stages.base import Context
from condensery.stages.sentences.config import FinetuneSentencesConfig
from condensery.stages.training import initial_towers, train_and_save
from condensery.tokens.artifacts import Sentences
from condensery.training.data.data_module import StepDataModule
from condensery.training.modules.sentence_encoder import SentenceBatches, SentenceModule


def finetune_sentences(config: FinetuneSentencesConfig, context: Context) -> dict[str, Any]:
    """Train one encoder for all sentences and save the last step's weights as a checkpoint."""
    sentences = Sentences(context.input("sentences"))
    rows, scores = sentences.rows("train"), sentences.scores("train")
    what = f"training examples of {sentences.about['name']}"
    check_subset(config.examples, len(rows), context.place("examples"), what)
    chosen = nested_subset(config.seed, len(rows), config.examples)
    sizes = config.values_of("batch_size", "length", "budget", "seed")
    batches = SentenceBatches(sentences.store, sentences.vocabulary, rows[chosen], scores[chosen], **sizes)
    model = initial_towers(config, context, sentences.vocabulary, separate=False)
    module = SentenceModule(model, margin=config.margin, **config.optimiser())
    data = StepDataModule(batches, context.runtime.workers)
    lengths = config.length, config.length
    values = train_and_save(module, data, config, context, lengths, named=sentences.about["name"])
    return {"examples": len(chosen), **values}
