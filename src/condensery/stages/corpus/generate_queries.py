"""Stage ``generate_queries``: queries that a sequence-to-sequence model writes for passages (Wu et al. 2023, §3.1)."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from condensery.models.flops import T5_BASE, Step
from condensery.stages.base import Context, Input, Operational, stage
from condensery.stages.checks import check_checkpoint
from condensery.stages.corpus.query_config import QueryStageConfig
from condensery.stages.work import Read, Work, known
from condensery.system.files import expanded
from condensery.text.hashes import content_hashes

WRITTEN = 12.0  # tokens of a query


class GenerateQueriesConfig(QueryStageConfig):
    """The generator is ``model`` (hub name or folder), or the artifact of the stage ``generator``."""

    model: str | None
    revision: str | None
    generator: Annotated[str | None, Input("generator")]
    prefix: str
    titles: bool
    number: Annotated[int, Field(ge=1, le=1 << 20)]
    top_k: Annotated[int, Field(ge=0)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    max_tokens: Annotated[int, Field(ge=1)]
    max_input_tokens: Annotated[int, Field(ge=8)]
    batch_size: Annotated[int, Field(ge=1)]
    precision: Literal["fp32", "bf16", "fp16"]
    seed: Annotated[int, Field(ge=0)]
    shard_size: Annotated[int, Field(ge=1), Operational()]

    @model_validator(mode="after")
    def _one_generator(self) -> Self:
        if (self.model is None) == (self.generator is None):
            raise ValueError("give either model or generator, and set the other to null")
        return self

    def work(self, read: Read) -> Work:
        """Each passage is read once, and each query written token by token; a ``model`` counts as T5-base.

        Token by token a GPU is far from its rate of large products: what is shown is what it takes at least.
        """
        sizes = known(read, "passages", "tokenizer")
        generator = known(read, "generator").encoder or T5_BASE
        texts, number = sizes.collection, self.number
        if texts.passages is None or texts.passage_tokens is None:
            return Work(sizes)
        length = min(texts.passage_tokens, self.max_input_tokens)
        rows = texts.passages * (1 + number * min(WRITTEN, self.max_tokens) / length)
        step = Step(generator, rows, length, 8192, trained=False, precision=self.precision)
        return Work(sizes, 1, step, seconds=1e-4 * texts.passages, disk=60.0 * number * texts.passages)

    def _folder(self) -> Path | None:
        folder = expanded(self.model) if self.model else None
        return folder if folder is not None and folder.is_dir() else None

    def by_content(self) -> set[str]:
        """The model, where it is a folder."""
        return {"model"} if self._folder() else set()

    def identity(self) -> list[str]:
        """A model in a folder counts by content, wherever it lies. ``UserError`` where it is not there."""
        check_checkpoint(self.model, "stage.generate_queries.model")
        folder = self._folder()
        return content_hashes(sorted(path for path in folder.iterdir() if path.is_file())) if folder else []


def _cost(config: GenerateQueriesConfig) -> float:
    return 10.0 * config.number


def _several_shards(config: GenerateQueriesConfig, context: Context) -> bool:
    from condensery.tokens.artifacts import Passages

    return len(Passages(context.input("passages")).table) > max(config.shard_size, config.batch_size)


@stage("generate_queries", version=1, makes="queries", cost=_cost, together=_several_shards)
def generate_queries(config: GenerateQueriesConfig, context: Context) -> dict[str, Any]:
    """Write the queries; shards that an interrupted run finished are kept."""
    from condensery.errors import UserError
    from condensery.models.generator import Sampling
    from condensery.stages.corpus.generation import Plan, generate, generated, remove_shards
    from condensery.stages.corpus.queries import write_queries
    from condensery.stages.devices import torch_device
    from condensery.stages.sharing import process_group

    key = f"stages.{context.stage_name}." + ("generator" if config.model is None else "model")
    folder = config._folder()
    group, device = process_group(context.runtime), torch_device(context.runtime.accelerator).type
    if config.precision == "fp16" and device == "cpu":
        raise UserError(f"stages.{context.stage_name}.precision: fp16 needs a GPU; use bf16 or fp32 on a CPU")
    shared = Sampling.__dataclass_fields__.keys()
    plan = Plan(
        passages=context.input("passages"),
        folder=context.folder,
        source=str(folder or config.model or context.input("generator")),
        revision=config.revision,
        key=key,
        precision=config.precision,
        titles=config.titles,
        batch_size=config.batch_size,
        shard_size=config.shard_size,
        sampling=Sampling(**{name: getattr(config, name) for name in shared}),
        device=device,
    )
    generate(plan, context.stage_name, group)
    group.leave_unless_rank_zero()
    counts = write_queries(generated(plan), context)
    remove_shards(context.folder)
    return counts
