"""Stage ``finetune_sentences``: the bi-encoder on STS-b or on Wikipedia's sections (Gao and Callan 2021a, §4.2)."""

from typing import Annotated, Any

from pydantic import Field

from condensery.models.flops import Step
from condensery.stages.base import Context, Input, stage
from condensery.stages.card import card_of
from condensery.stages.training import Count, EncoderStageConfig, initial_towers, run_training
from condensery.stages.work import Read, Work, known, with_encoder


class FinetuneSentencesConfig(EncoderStageConfig):
    """``batch_size`` counts pairs or triplets, ``examples`` how many of them are trained on (null: all)."""

    sentences: Annotated[str, Input("sentences")]
    examples: Count | None
    length: Annotated[int, Field(ge=4)]
    margin: Annotated[float, Field(gt=0)]

    def work(self, read: Read) -> Work:
        """Steps of ``batch_size`` examples, each sentence read by itself."""
        sizes = with_encoder(known(read), self.backbone, self.length)
        texts, step = sizes.sentences, None
        examples = None if self.examples is None else float(self.examples)
        if texts is not None and sizes.encoder is not None:
            length = min(texts.tokens + 2, self.length)
            rows = self.batch_size * texts.each
            step = Step(sizes.encoder, rows, length, self.budget, precision=self.precision)
            examples = texts.examples["train"] if examples is None else examples
        return self.training(sizes, step, examples)


@stage("finetune_sentences", version=1, makes="encoder", cost=5.0, together=True)
def finetune_sentences(config: FinetuneSentencesConfig, context: Context) -> dict[str, Any]:
    """Train one encoder for all sentences and save it as a checkpoint; the last step's weights are the result."""
    from condensery.randomness import check_subset, nested_subset
    from condensery.tokens.artifacts import Sentences
    from condensery.training.datamodules.base import StepDataModule
    from condensery.training.modules.sentences import SentenceBatches, SentenceModule

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
    values = run_training(module, data, config.loop(batches), config, context, None)
    card = card_of(type(config), config.model_dump(mode="json"), sentences.about["name"], values)
    module.save_pretrained(context.folder, context.input("tokenizer"), (config.length, config.length), card)
    return {"examples": len(chosen), **values}
