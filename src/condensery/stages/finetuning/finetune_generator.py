"""Stage ``finetune_generator``: a model that writes queries, from a collection's own judged pairs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from condensery.models.flops import T5_BASE, EncoderSize, Step
from condensery.stages.base import Context, Input, StageConfig, stage
from condensery.stages.checks import Split, check_checkpoint, missing_split
from condensery.stages.pretraining.token_vectors import other_dimensions, read_token_vectors
from condensery.stages.training import Count, OptimisedStageConfig, run_training
from condensery.stages.work import QUESTION, Read, Work, known
from condensery.system.files import expanded
from condensery.text.hashes import content_hashes

if TYPE_CHECKING:
    from condensery.models.generator import Generator

SIZES = ("layers", "hidden", "heads", "intermediate")


class FinetuneGeneratorConfig(OptimisedStageConfig):
    """``model`` is a hub name or folder; null: a T5 of the given sizes from scratch. ``batch_size`` counts pairs.

    ``vectors``: what the token embeddings of a T5 from scratch begin with, None = noise.
    """

    corpus: Annotated[str, Input("corpus")]
    tokenizer: Annotated[str, Input("tokenizer")]
    vectors: Annotated[str | None, Input("token_vectors")]
    split: Split
    model: str | None
    revision: str | None
    layers: Count
    hidden: Annotated[int, Field(ge=8)]
    heads: Count
    intermediate: Annotated[int, Field(ge=8)]
    dropout: Annotated[float, Field(ge=0, lt=1)]
    prefix: str
    titles: bool
    max_input_tokens: Annotated[int, Field(ge=8)]
    max_tokens: Annotated[int, Field(ge=2)]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.model is None and self.hidden % self.heads:
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of heads ({self.heads})")
        if self.model is not None and self.vectors is not None:
            raise ValueError(f"vectors is {self.vectors}, but model knows its tokens already; set one of them to null")
        return self

    def work(self, read: Read) -> Work:
        """Each step reads ``batch_size`` passages and writes as many queries; a model that is given counts as T5-base."""
        sizes, step = known(read), None
        words = sizes.vocabulary or T5_BASE.vocabulary
        own = EncoderSize(self.layers, self.hidden, self.intermediate, self.heads, words, self.dropout)
        generator = T5_BASE if self.model else own
        sizes, text = replace(sizes, encoder=generator), sizes.collection.passage_tokens
        if text is not None:
            passage, query = min(text, self.max_input_tokens), min(QUESTION, self.max_tokens)
            length, predicted = (passage + query) / 2, query / (passage + query)
            rows = 2.0 * self.batch_size
            step = Step(generator, rows, length, self.budget, predicted=predicted, precision=self.precision)
        return self.training(sizes, step, sizes.collection.queries.get(self.split))

    def folder(self) -> Path | None:
        """The model, where it is a folder."""
        folder = expanded(self.model) if self.model else None
        return folder if folder is not None and folder.is_dir() else None

    def by_content(self) -> set[str]:
        """The model, where it is a folder; the sizes, where they are the model's own."""
        own = ({"model"} if self.folder() else set()) | (set(SIZES) if self.model else set())
        return super().by_content() | own

    def identity(self) -> list[str]:
        """A model in a folder counts by content, wherever it lies. ``UserError`` where it is not there."""
        check_checkpoint(self.model, "stage.finetune_generator.model")
        folder = self.folder()
        content = content_hashes(sorted(path for path in folder.iterdir() if path.is_file())) if folder else []
        return [*super().identity(), *content]

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """A split that the collection does not have, or vectors of another size than the model's."""
        return missing_split(self.split, inputs["corpus"]) or other_dimensions(
            self.vectors, inputs["vectors"], self.hidden
        )


@stage("finetune_generator", version=1, makes="generator", cost=20.0, together=True)
def finetune_generator(config: FinetuneGeneratorConfig, context: Context) -> dict[str, Any]:
    """Train on passage -> query for all positives of the split; save a Hugging Face folder."""
    import numpy as np

    from condensery.errors import UserError
    from condensery.models.generator import save_generator
    from condensery.text.collection import Collection
    from condensery.training.datamodules.base import StepDataModule
    from condensery.training.modules.generator import GeneratorBatches, GeneratorModule

    collection = Collection(context.input("corpus"))
    positives = collection.qrels(config.split).positives()
    pairs = [(passage, query) for query, passages in positives.items() for passage in passages.tolist()]
    if not pairs:
        raise UserError(f"stages.{context.stage_name}.split: the split {config.split} has no positive to learn from")
    generator = _initial_model(config, context)
    batches = GeneratorBatches(
        np.asarray(pairs, dtype=np.int64),
        collection.passages,
        collection.queries,
        generator.tokenizer,
        prefix=config.prefix,
        titles=config.titles,
        batch_size=config.batch_size,
        max_input_tokens=config.max_input_tokens,
        max_tokens=config.max_tokens,
        budget=config.budget,
        seed=config.seed,
    )
    module = GeneratorModule(generator.model, **config.optimiser())
    data = StepDataModule(batches, context.runtime.workers)
    values = run_training(module, data, config.loop(batches), config, context, None)
    save_generator(generator, context.folder)
    return {"pairs": len(pairs), **values}


def _initial_model(config: FinetuneGeneratorConfig, context: Context) -> "Generator":
    from condensery.models.generator import load_generator, small_generator
    from condensery.models.warm_start import warm_up_generator

    if config.model is None:
        sizes = {name: getattr(config, name) for name in SIZES}
        made = small_generator(context.input("tokenizer"), **sizes, dropout=config.dropout, seed=config.seed)
        if config.vectors is not None:
            warm_up_generator(made.model, read_token_vectors(context.input("vectors"), config.seed))
        return made
    key = f"stages.{context.stage_name}.model"
    return load_generator(config.folder() or config.model, key, config.revision, dropout_rate=config.dropout)
