"""Searches with a retriever of a run (the key ``ask``), and reads only the files that the search needs.

If a run is finished and unchanged (``unchanged``), its tables and pages are not written again.
"""

import hashlib
import io
import json
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path

from condensery import __version__
from condensery.errors import UserError
from condensery.pipeline.artifact_store import State, Store
from condensery.pipeline.graph import Graph
from condensery.reporting.ask import ask, show
from condensery.reporting.results import Row, read_results
from condensery.retrieval.indexes.opening import Encode, Search, open_index, search_of_texts
from condensery.retrieval.query_encoder import query_encoder
from condensery.stages.base import Artifact
from condensery.system.files import content_hash, read_json, write_json
from condensery.text.collection import Collection

ANSWERS = 5  # number of passages that are printed
PROMPT = "-"  # the value of ``ask`` that reads several questions from standard input
FINISHED = "finished.json"  # in a run's folder, written last: a digest of the run's config, and the names of its files
# keys of the root that do not change any file of a run
ASKING: tuple[str, ...] = ("ask", "next", "push_to_hub", "force", "jobs", "output_root")
ASKING += ("fetch", "dry_run", "dry_run_gpu", "dry_run_share", "published_cost", "estimate")


def answer(graph: Graph, store: Store, rows: Sequence[Row], question: str) -> None:
    """Print the passages that a retriever of the run returns for ``question``, or for each question from standard input.

    The retriever is the row that the table recommends, or else the best row. A recipe without a table uses the index that
    ``Graph.answers`` names.

    Raises:
        UserError: no row could be measured, or there is no index to search.
    """

    name, artifact = chosen(graph, store, rows)
    index, corpus = searched(artifact, name)
    store.check([corpus, *index.searched()], parents=False)
    collection = Collection(corpus.path)
    search = _search(index, collection, store)
    with ended_by_interrupt() if question == PROMPT else nullcontext():
        for text in questions() if question == PROMPT else [question]:
            answers = ask(text, search, collection, ANSWERS)
            print(f"\nfound by {name}", flush=True)
            show(text, answers)


def _search(index: Artifact, collection: Collection, store: Store) -> Search:
    """Return the function that searches the index; each encoder that it needs is loaded once."""

    @cache
    def encoder_of(vectors: Path) -> Encode:
        encoder = Artifact(vectors).ancestor("encoder")
        if encoder is None:
            raise UserError(f"ask: {vectors} does not record which encoder made it; run its stage again")
        store.check([encoder], parents=False)
        return query_encoder(encoder.path)

    return search_of_texts(open_index(index.path, collection, device="cpu"), encoder_of)


def chosen(graph: Graph, store: Store, rows: Sequence[Row]) -> tuple[str, Artifact]:
    """Return the name of the retriever to search with, and the evaluation or index that leads to its index."""
    if graph.rows:
        best = best_row(rows)
        return best, Artifact(store.path(graph.nodes[graph.rows[best]]))
    # imported here, because the module imports the metrics, which a search does not always need
    from condensery.pipeline.reports.row_origins import unmeasured

    if told := unmeasured(graph, store):
        return told.row, Artifact(store.path(graph.nodes[graph.unmeasured[told.row]]))
    assert graph.answers is not None  # ensured by `graph.build`
    print(f"\nwithout a table, no best retriever is known: the stage {graph.answers} answers", flush=True)
    return graph.answers, Artifact(store.path(graph.nodes[graph.answers]))


def best_row(rows: Sequence[Row]) -> str:
    """Return the row that the table recommends, or else the row with the highest first metric (of equal rows, the last).

    Raises:
        UserError: no row could be measured.
    """
    if not rows:
        raise UserError("ask: no row of the table could be measured, so no best retriever is known")
    if recommended := next((row.name for row in rows if row.recommended), None):
        return recommended
    metric = next(iter(rows[0].metrics))
    return max(enumerate(rows), key=lambda item: (item[1].metrics[metric], item[0]))[1].name


def searched(artifact: Artifact, name: str) -> tuple[Artifact, Artifact]:
    """Return the index to search and its collection. The manifests of an evaluation or an index lead to this index.

    Args:
        artifact: the evaluation or index.
        name: name of the retriever, for the error message.

    Raises:
        UserError: there is no index to search.
    """
    index = artifact.ancestor("index")
    while index and index.kind == "rerank":  # it has scores for few queries, so its first-stage index is searched
        index = index.input("retriever")
    corpus = index.ancestor("corpus") if index else None
    if index is None or corpus is None:
        raise UserError(f"ask: {name!r} has no index that can be searched")
    return index, corpus


def questions() -> Iterator[str]:
    """Yield the lines of standard input, up to its end or an empty line; a terminal shows a prompt."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    while sys.stdin is not None:
        if sys.stdin.isatty():
            print("\nask, or press return to end: ", end="", flush=True)
        line = sys.stdin.readline().removeprefix("\ufeff").strip()  # Windows puts a byte order mark before UTF-8
        if not line:
            return
        if "\ufffd" in line:
            print("ask: warning: the next question is not valid UTF-8; give questions in UTF-8", flush=True)
        yield line


class _Enough(BaseException):
    """Raised by Ctrl-C at a prompt."""


@contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """Let Ctrl-C end the block instead of the program; SIGTERM still ends the program."""

    def leave(number: int, frame: object) -> None:
        raise _Enough

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, leave)
    try:
        yield
    except _Enough:
        print(flush=True)
    finally:
        signal.signal(signal.SIGINT, before)


def finish(graph: Graph, folder: Path) -> None:
    """Record in a run's folder that the run is complete, for ``unchanged``."""
    files = sorted(path.name for path in folder.iterdir() if path.is_file() and path.name != FINISHED)
    about = {"run": _identity(graph), "results": content_hash(folder / "results.json"), "files": files}
    write_json(folder / FINISHED, about)


def unchanged(graph: Graph, states: Mapping[str, State], folder: Path) -> list[Row] | None:
    """Return the rows of a finished run of the same config and version; None if anything is left to do.

    Nothing is left to do under three conditions: every artifact exists, and no stage is forced; all files of the run still
    exist; the results have not changed since the run finished.
    """
    same = False
    with suppress(UserError, OSError, KeyError, TypeError):
        about = read_json(folder / FINISHED)
        there = all((folder / name).is_file() for name in about["files"])
        same = there and (about["run"], about["results"]) == (_identity(graph), content_hash(folder / "results.json"))
    return read_results(folder / "results.json") if same and set(states.values()) <= {"hit"} else None


def _identity(graph: Graph) -> str:
    """Return a digest of everything that a run's folder depends on: its artifacts, and the settings of tables and logs."""
    root = graph.root.model_dump(mode="json", exclude=set(ASKING))
    text = json.dumps([__version__, root, [[one.name, one.reference] for one in graph.nodes.values()]], sort_keys=True)
    return hashlib.blake2b(text.encode(errors="backslashreplace"), digest_size=16).hexdigest()
