"""Determines from manifests how the rows of a table were made, to recommend a row and to report its cost."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from condensery.pipeline.artifact_store import Store
from condensery.pipeline.graph import Graph
from condensery.reporting.recommendation import Made, Recommendation
from condensery.reporting.recommendation import unmeasured as recommended
from condensery.stages.base import Artifact
from condensery.system.files import read_json

KEPT = "kept.json"  # in the folder of an encoder that was chosen among several


def unmeasured(graph: Graph, store: Store) -> Recommendation | None:
    """Return the recommended row of a table that is left out for lack of judgements; None if no index was made."""
    indexes = {row: graph.nodes[name] for row, name in graph.unmeasured.items()}
    made = made_of({row: Artifact(store.path(node)) for row, node in indexes.items() if store.sound(node)})
    return recommended(made, graph.root.table.split) if made else None


def made_of(indexes: Mapping[str, Artifact]) -> dict[str, Made]:
    """Return how each index was made, by the keys of ``indexes``."""
    rows = {key: _made(index) for key, index in indexes.items()}
    free = {one.path for key, made in rows.items() if not made.trained for one in _needed(indexes[key])}
    for key, made in rows.items():
        seconds = [float(one.manifest["wall_seconds"]) for one in indexes[key].ancestors() if one.path not in free]
        rows[key] = replace(made, seconds=sum(seconds) if made.trained else 0.0)
    return rows


def _needed(index: Artifact) -> list[Artifact]:
    """Return an index and its ancestors. If a choice kept the initial encoder, the trained encoders are left out."""
    found = [index]
    for one in found:  # the list grows during the loop
        kept, _ = _kept(one)
        found += [new for new in ([kept] if kept is not one else one.parents()) if new not in found]
    return found


def _made(index: Artifact) -> Made:
    found = [_kept(part) for part in _parts(index)]
    names = frozenset(encoder.reference for encoder, _ in found)
    trained = any(encoder.manifest["makes"] == "encoder" and encoder.kind != "retriever" for encoder, _ in found)
    unknown = max((one.manifest["metrics"].get("unknown_share", 0.0) for one in index.ancestors()), default=0.0)
    return Made(names, trained, kept=next((kept for _, kept in found if kept), None), unknown=unknown)


def _parts(index: Artifact) -> list[Artifact]:
    """Return the encoders of an index, or of the indexes that it fuses; an index without encoders is its own part."""
    return index.parents("encoder") or [part for one in index.parents("index") for part in _parts(one)] or [index]


def _kept(part: Artifact) -> tuple[Artifact, dict[str, Any] | None]:
    """Return the encoder that a choice has kept, and the record of the choice (``kept.json``; None if there was no choice).

    If the trained weights were not kept, the kept encoder is the initial encoder.
    """
    if not (part.path / KEPT).is_file():
        return part, None
    kept = {"level": part.manifest.get("config", {}).get("level", 1), **read_json(part.path / KEPT)}
    return (part if kept["share"] else _kept(part.input("start"))[0]), kept


def costs_of(evaluation: Artifact, wanted: Sequence[str]) -> dict[str, float]:
    """Return the ``wanted`` costs of a row (``table.costs``), without costs that the manifests do not record.

    - CPU-seconds of training: the sum over all stages that trained a model, teachers and generators included. Mining and
      encoding do not count.
    - bytes a passage: the size of the files of the index and of the indexes that it searches, without query vectors, divided
      by the number of passages.
    - milliseconds a query: the time of one query, as ``evaluate`` measured it (``timed``).
    """
    trained = [one for one in evaluation.ancestors() if "steps" in one.manifest["metrics"]]
    found = {"CPU-seconds of training": float(sum(one.manifest["cpu_seconds"] for one in trained))}
    if stored := [one for index in evaluation.inputs("index") for one in index.searched()]:
        passages = read_json(stored[0].path / "index.json")["passages"]
        sizes = [size for one in stored for name, size in one.manifest["files"].items() if name != "queries.npy"]
        found["bytes a passage"] = sum(sizes) / max(1, passages)
    if "milliseconds_per_query" in evaluation.manifest["metrics"]:
        found["milliseconds a query"] = evaluation.manifest["metrics"]["milliseconds_per_query"]
    return {cost: found[cost] for cost in wanted if cost in found}
