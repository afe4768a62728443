"""Stages ``expand_queries`` and ``expanded_queries``: a generator expands queries, and an index searches with the result.

Shapes: n queries, k results, m texts of a query.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.baselines.gar.config import ExpandedQueriesConfig, ExpandQueriesConfig
from condensery.baselines.gar.training import ABOUT, asked
from condensery.models.generator import Sampling, load_generator
from condensery.models.precision import precision_on
from condensery.retrieval.indexes.opening import open_index
from condensery.retrieval.ranking import Ranking, ordered, scores_in
from condensery.retrieval.shards import compute_in_shards
from condensery.stages.base import Artifact, Context
from condensery.stages.devices import torch_device
from condensery.stages.sharing import process_group
from condensery.system.files import inside, load_array, read_json, write_json
from condensery.system.progress import SILENT, ProgressTask
from condensery.text.collection import Collection

TEXTS = "expansions.json"  # query -> a text for each target
GROUP = 256  # queries that are searched at once
DEEPEST = 1000  # number of fused passages that have a score other than 0


class Expander:
    """A trained generator, which writes a text for a query and a target, such as ``answer``.

    Args:
        folder: artifact of train_expander.
        key: config key that error messages name.
        precision, device: precision and device of the generator.
    """

    def __init__(self, folder: Path, key: str, precision: str, device: str) -> None:
        about = read_json(folder / ABOUT)
        self.targets: list[str] = about.pop("targets")
        # With top_k = 1 the most probable token is always chosen, so the seed has no effect.
        self.sampling = Sampling(number=1, top_k=1, top_p=1.0, prefix="", seed=0, **about)
        self.generator = load_generator(folder, key, precision=precision)
        self.generator.model.to(device)

    def write(self, queries: Sequence[str]) -> dict[str, list[str]]:
        """Return, for each target, a text for each of n > 0 queries. A text is one line, and may be empty."""
        written = {}
        for target in self.targets:
            texts = self.generator.sample([asked(target, one) for one in queries], range(len(queries)), self.sampling)
            written[target] = [" ".join(text.split()) for (text,) in texts]
        return written


def several_shards(config: ExpandQueriesConfig, context: Context) -> bool:
    """Return whether the queries make more than one shard."""
    return len(_queries(config, context)) > config.shard_size


def expand_queries(config: ExpandQueriesConfig, context: Context) -> dict[str, Any]:
    """Write the file ``TEXTS``: for each query, a text per target.

    Raises ``UserError`` if the model cannot be used, or if the collection lacks a split.
    """
    group, device = process_group(context.runtime), torch_device(context.runtime.accelerator).type
    precision_on(device, config.precision, context.place("precision"))
    queries, size = _queries(config, context), config.batch_size
    expander = Expander(context.input("expander"), context.place("expander"), config.precision, device)

    def write(part: slice, task: ProgressTask) -> dict[str, NDArray[Any]]:
        own = queries[part]
        batches = [expander.write(own[first : first + size]) for first in range(0, len(own), size)]
        task.advance(len(own))  # a text of more than 1,024 characters is cut
        return {
            name: np.array([one for batch in batches for one in batch[name]], "<U1024") for name in expander.targets
        }

    paths = [context.folder / f"{target}.npy" for target in expander.targets]
    shard = max(1, config.shard_size // size) * size
    compute_in_shards(write, len(queries), paths[0], context.stage_name, size=shard, group=group)
    group.leave_unless_rank_zero()
    texts = [load_array(path).tolist() for path in paths]
    write_json(context.folder / TEXTS, {query: own for query, *own in zip(queries, *texts, strict=True)})
    for path in paths:
        path.unlink()
    return {"queries": len(queries), "targets": expander.targets, "empty": sum(own.count("") for own in texts)}


def _queries(config: ExpandQueriesConfig, context: Context) -> list[str]:
    """Return the distinct queries of the splits, in their order."""
    collection = Collection(context.input("corpus"))
    splits = config.splits or [split for split in collection.description["splits"] if split != "train"]
    texts = collection.queries.column("text")
    return list(dict.fromkeys(text for split in splits for text in texts.take(collection.questions(split))))


def expanded_queries(config: ExpandedQueriesConfig, context: Context) -> dict[str, Any]:
    """Write index.json, which names the index and the texts. Raises ``UserError`` if the index cannot search for words."""
    collection = Collection(context.input("corpus"))
    if not hasattr(open_index(context.input("retriever"), collection), "search_texts"):
        raise context.error("retriever", f"{config.retriever} does not search by words; name a stage of kind bm25")
    named = {key: [one.reference for one in context.artifacts(key)] for key in ("retriever", "expansions")}
    about = {"method": "expanded_queries", "passages": len(collection.passages), **named}
    write_json(context.folder / "index.json", about)
    return {"targets": [one.manifest["metrics"]["targets"] for one in context.artifacts("expansions")]}


class ExpandedQueries:
    """Retriever that searches once for each generated text of a query, with the text appended to the query.

    Texts that ``expand_queries`` has generated are read from disk. The texts of other queries are generated during the
    search. A query for which the generator writes nothing is searched as it is.

    Args:
        folder: folder of the index.
        collection: the collection with the queries.
        threads, memory, device: as in ``open_index``.
    """

    def __init__(self, folder: Path, collection: Collection, threads: int, memory: int, device: str | None) -> None:
        at, store, self.collection = folder / "index.json", folder.resolve().parents[1], collection
        about, self.device = read_json(at), torch_device("cpu" if device == "cpu" else "auto").type
        self.expansions = [Artifact(inside(store, reference, at)) for reference in about["expansions"]]
        self.retriever: Any = open_index(inside(store, about["retriever"][0], at), collection, threads, memory, device)

    def __len__(self) -> int:
        return len(self.retriever)

    def search(self, query_rows: NDArray[np.integer], k: int, progress: ProgressTask = SILENT) -> Ranking:
        """Return the k best passages of queries of the collection, as ``CollectionRetriever.search``."""
        parts = [(np.empty((0, k), np.float32), np.empty((0, k), np.int64))]
        for first in range(0, len(query_rows), GROUP):
            texts = self.collection.queries.column("text").take(query_rows[first : first + GROUP])
            parts.append(self.search_texts(texts, k))
            progress.advance(len(texts))
        scores, found = (np.concatenate(part) for part in zip(*parts, strict=True))
        return scores, found

    def search_texts(self, texts: Sequence[str], k: int) -> Ranking:
        """Return the k best passages for n > 0 queries."""
        if new := [text for text in dict.fromkeys(texts) if text not in self._known]:
            written = [zip(*one.write(new).values(), strict=True) for one in self._expanders]
            self._known |= _joined([dict(zip(new, own, strict=True)) for own in written])
        rankings = []
        for own in zip(*(self._known[text] for text in texts), strict=True):
            expanded = [f"{text} {written}".strip() for text, written in zip(texts, own, strict=True)]
            rankings.append(self.retriever.search_texts(expanded, k)[1])
        return round_robin(rankings, k)

    def score(self, query_rows: NDArray[np.integer], passage_rows: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the scores (n, k) of passages (n, k) as in ``search``: 0 below rank ``DEEPEST``, NaN for padding."""
        return scores_in(self.search(query_rows, min(DEEPEST, len(self))), passage_rows, otherwise=0.0)

    @cached_property
    def _known(self) -> dict[str, list[str]]:
        return _joined([read_json(artifact.path / TEXTS) for artifact in self.expansions])

    @cached_property
    def _expanders(self) -> list[Expander]:
        settings = [(one.input("expander").path, one.manifest["config"]["precision"]) for one in self.expansions]
        return [Expander(folder, str(folder), precision, self.device) for folder, precision in settings]


def _joined(parts: Sequence[Mapping[str, Sequence[str]]]) -> dict[str, list[str]]:
    """Return the texts of all parts, for each query that is in every part."""
    return {
        one: [text for part in parts for text in part[one]] for one in parts[0] if all(one in part for part in parts)
    }


def round_robin(rankings: Sequence[NDArray[np.int64]], k: int) -> Ranking:
    """Fuse m rankings of n queries: the first passage of each, then the second of each, and so on, without repeats.

    Args:
        rankings: m times (n, depth), rows of passages, best first, padded with -1.
        k: number of results per query.

    Returns:
        scores (n, k), which are 1 / rank in the fused ranking, and rows (n, k). Padding has score -inf and row -1.
    """
    rows = np.stack(rankings, axis=2).reshape(len(rankings[0]), -1)  # (n, depth * m), rank by rank
    order = np.argsort(rows, axis=1, kind="stable")
    kept = np.empty(rows.shape, bool)  # True at the first occurrence of each passage
    np.put_along_axis(kept, order, np.diff(np.take_along_axis(rows, order, 1), axis=1, prepend=-1) != 0, axis=1)
    ranks = np.maximum(np.cumsum(kept, axis=1), 1)
    return ordered((1 / ranks).astype(np.float32), np.where(kept, rows, -1), k)
