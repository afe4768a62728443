"""Stage ``ann_index``: builds an approximate FAISS index over the vectors of a dense retriever."""

from typing import Any

from condensery.errors import UserError
from condensery.retrieval.indexes.ann import FILE, build_approximate, write_approximate
from condensery.retrieval.indexes.dense import DenseIndex
from condensery.stages.base import Context
from condensery.stages.retrieval.config import ApproximateConfig
from condensery.system.progress import progress


def ann_index(config: ApproximateConfig, context: Context) -> dict[str, Any]:
    """Write passages.faiss and index.json. Raises ``UserError`` where FAISS cannot build the index."""
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
