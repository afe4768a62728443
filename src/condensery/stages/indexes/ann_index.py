"""Stage ``ann_index``: builds an approximate FAISS index over the vectors of a dense retriever, and measures its recall."""

from typing import Any

import numpy as np

from condensery.errors import UserError
from condensery.randomness import generator
from condensery.retrieval.indexes.ann import ApproximateIndex, build_approximate, write_approximate
from condensery.retrieval.indexes.dense import DenseIndex
from condensery.retrieval.indexes.interface import recall_of
from condensery.retrieval.indexes.on_disk import FILE, LISTS
from condensery.stages.base import Context
from condensery.stages.indexes.config import AnnIndexConfig
from condensery.stages.sharing import process_group
from condensery.system.files import load_array

DEPTH = 100  # depth of the search whose recall is measured


def several_shards(config: AnnIndexConfig, context: Context) -> bool:

    return config.on_disk


def ann_index(config: AnnIndexConfig, context: Context) -> dict[str, Any]:
    """Write passages.faiss, index.json, and lists.bin for lists on disk. Return the recall for the manifest.

    Raises ``UserError`` if FAISS cannot build the index.
    """
    runtime, vectors, folder = context.runtime, context.artifact("vectors"), context.folder
    group, label = process_group(runtime), context.stage_name
    exact = DenseIndex(vectors.path, runtime.threads, device=runtime.search_device)
    shared: dict[str, Any] = {"on_disk": config.on_disk, "group": group, "label": label}
    settings = config.factory, config.sample, config.seed, runtime.threads, runtime.accelerator != "cpu"
    try:
        does = build_approximate(exact, folder, *settings, **shared)
    except UserError as error:
        if not str(error).startswith("factory: "):
            raise
        raise UserError(f"stages.{label}.{error}") from None
    if does:
        context.say(f"{config.factory} {does}; exact search ranks by inner product")
    effort = config.values_of("nprobe", "ef_search")
    write_approximate(folder, exact, vectors.reference, effort, config.compared)
    size = sum(path.stat().st_size for path in (folder / FILE, folder / LISTS) if path.exists())
    index = ApproximateIndex(folder, exact, runtime.threads)
    return {"passages": len(exact), "bytes": size, **_recall(config, index, label)}


def _recall(config: AnnIndexConfig, index: ApproximateIndex, label: str) -> dict[str, float]:
    """Compare with exact search on some queries, or on passages if there are no queries. Print and return the recall."""
    stored = load_array(index.exact.folder / "queries.npy", mapped=True)
    rows = np.sort(generator(config.seed, "compared").permutation(len(stored) or len(index))[: config.compared])
    asked = stored[rows].astype(np.float32) if len(stored) else index.exact.passage_vectors(rows)
    index.search_vectors(asked, min(DEPTH, len(index)))
    return recall_of(index, label)
