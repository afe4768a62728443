"""Stage ``generate_queries``: queries that a sequence-to-sequence model writes for passages (Wu et al. 2023, §3.1)."""

from typing import Any

from condensery.errors import UserError
from condensery.models.generator import Sampling
from condensery.stages.base import Context
from condensery.stages.corpus.config import GenerateQueriesConfig
from condensery.stages.corpus.generation import Plan, generate, generated, remove_shards
from condensery.stages.corpus.queries import write_queries
from condensery.stages.devices import torch_device
from condensery.stages.sharing import process_group
from condensery.tokens.artifacts import Passages


def several_shards(config: GenerateQueriesConfig, context: Context) -> bool:

    return len(Passages(context.input("passages")).table) > max(config.shard_size, config.batch_size)


def generate_queries(config: GenerateQueriesConfig, context: Context) -> dict[str, Any]:
    """Write the queries; a restarted stage keeps the shards that an interrupted run has finished."""
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
