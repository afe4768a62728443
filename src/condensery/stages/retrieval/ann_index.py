"""Stage ``ann_index``: FAISS's approximate search over the vectors of a dense retriever. An index of its own."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, field_validator

from condensery.stages.base import Context, Input, StageConfig, stage
from condensery.stages.retrieval.encode import EncodeConfig


class ApproximateConfig(StageConfig):
    """``factory`` and ``sample``: what is built, and of how many vectors it learns; ``nprobe`` and ``ef_search``: how long it
    searches. ``compared`` queries of each use are searched exactly as well."""

    vectors: Annotated[str, Input("index")]
    factory: Annotated[str, Field(min_length=1)]
    sample: Annotated[int, Field(gt=0)]
    nprobe: Annotated[int, Field(gt=0)]
    ef_search: Annotated[int, Field(gt=0)]
    compared: Annotated[int, Field(gt=0)]
    seed: Annotated[int, Field(ge=0)]

    @field_validator("factory")
    @classmethod
    def _known_to_faiss(cls, value: str) -> str:
        from condensery.errors import UserError
        from condensery.retrieval.factory import check_factory

        try:
            check_factory(value)
        except UserError as error:
            raise ValueError(str(error).removeprefix("factory: ")) from None
        return value

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """An index without vectors, or with several of a passage."""
        encoded = inputs["vectors"][0]
        if isinstance(encoded, EncodeConfig):
            if encoded.windows == 1:
                return None
            return "vectors", f"{self.vectors} has up to {encoded.windows} windows of a passage; set its windows to 1"
        return "vectors", f"{self.vectors} is no index of vectors; name a trained encoder, or a stage of kind encode"


@stage("ann_index", version=1, makes="index")
def ann_index(config: ApproximateConfig, context: Context) -> dict[str, Any]:
    """Write passages.faiss and index.json."""
    from condensery.errors import UserError
    from condensery.retrieval.approximate import FILE, build_approximate, write_approximate
    from condensery.retrieval.dense import DenseIndex
    from condensery.system.progress import progress

    runtime, vectors = context.runtime, context.artifact("vectors")
    exact = DenseIndex(vectors.path, runtime.threads, device=runtime.search_device)
    with progress(context.stage_name, len(exact), "vectors") as task:
        try:
            gpu = runtime.accelerator != "cpu"
            does = build_approximate(
                exact, context.folder, config.factory, config.sample, config.seed, runtime.threads, task, gpu
            )
        except UserError as error:
            if not str(error).startswith("factory: "):
                raise
            raise UserError(f"stages.{context.stage_name}.{error}") from None
    if does:
        print(f"[{context.stage_name}] {config.factory} {does}; exact search ranks by inner product", flush=True)
    effort = {"nprobe": config.nprobe, "ef_search": config.ef_search}
    write_approximate(context.folder, exact, f"{vectors.kind}/{vectors.id}", effort, config.compared)
    return {"passages": len(exact), "bytes": (context.folder / FILE).stat().st_size}
