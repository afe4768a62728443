"""What a run shows at its end: its table, its curves, its audits, and answers of its best retriever."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from condensery.errors import UserError
from condensery.files import read_json
from condensery.pipeline.config import TableConfig
from condensery.pipeline.graph import Graph
from condensery.pipeline.store import Store
from condensery.stages.base import Artifact, registry

if TYPE_CHECKING:
    from condensery.reporting.results import Row
    from condensery.reporting.table import Table

ANSWERS = 5  # passages that `ask` shows


def write(graph: Graph, store: Store, folder: Path) -> "list[Row]":
    """Write ``results.json``, the table and ``curves.png`` into ``folder``; print the table and those of audits.

    A recipe without rows has no table, one without training no curves.
    """
    from condensery.reporting.results import write_results

    rows = [row_of(graph, label, store.artifact(graph.nodes[name])) for label, name in graph.rows.items()]
    write_results(folder / "results.json", rows)
    if rows:
        show_table(table_of(graph.root.table, rows, graph.root.name), folder)
    _show_audits(graph, store)
    logs = {name: store.path(node) / "logs" / "metrics.csv" for name, node in graph.nodes.items()}
    logs = {name: path for name, path in logs.items() if path.exists()}
    if logs and (graph.root.force or not (folder / "curves.png").exists()):  # the folder's name tells what it shows
        from condensery.reporting.curves import draw_curves

        draw_curves(logs, folder / "curves.png")
    return rows


def _show_audits(graph: Graph, store: Store) -> None:
    """Print the tables of each audit, computed or reused, and where its sheets lie."""
    for name, node in graph.nodes.items():
        if registry()[node.kind].makes == "audit":
            from condensery.reporting.audit import show_audit

            print(flush=True)
            show_audit(store.path(node))
            print(f"[{name}] audit.md, pairs.jsonl and sheets in {store.path(node)}", flush=True)


def row_of(graph: Graph, label: str, evaluation: Artifact) -> "Row":
    """One row of the table, from the artifact of a stage that evaluates; it may say what was measured on."""
    from condensery.reporting.results import Row

    found, corpus = read_json(evaluation.path / "metrics.json"), evaluation.ancestor("corpus")
    searched = read_json(corpus.path / "collection.json")["name"] if corpus else ""
    return with_queries(
        Row(
            name=label,
            collection=found.get("collection", searched),
            split=graph.root.table.split,
            metrics=found["metrics"],
            seed=graph.root.seed,
            artifact=f"{evaluation.kind}/{evaluation.id}",
        ),
        evaluation.path,
    )


def with_queries(row: "Row", folder: Path) -> "Row":
    """The row with the values of each query, which lie in the folder of its evaluation, if it is still there."""
    from dataclasses import replace

    from condensery.evaluation.metrics import Evaluation

    if not (folder / "evaluation.npz").is_file():
        return row
    found = Evaluation.load(folder / "evaluation.npz")
    return replace(row, per_query=found.per_query, query_ids=found.query_ids)


def table_of(config: TableConfig, rows: "Sequence[Row]", title: str) -> "Table":
    """The table of measured rows, beside published ones where the config has columns.

    The others are tested against the baseline where a row has this very name: in a sweep, where it made no difference
    to it.
    """
    from condensery.reporting.comparison import comparison
    from condensery.reporting.table import Significance, build_table

    if config.columns:
        return comparison(config, rows, config.split, config.baseline, title)
    known = config.baseline is not None and any(row.name == config.baseline for row in rows)
    significance = Significance(str(config.baseline), config.test, level=config.level) if known else None
    return build_table(rows, None, significance, config.title or title)


def show_table(table: "Table", folder: Path | None) -> None:
    """Print a table, and write it into ``folder``."""
    if folder:
        table.write_all(folder)
    print(flush=True)
    table.show()


def joined(rows: "Sequence[Row]", folder: Path, title: str, config: TableConfig) -> None:
    """Write and print one table over the jobs of a sweep: ``results.json`` and the table in ``folder``."""
    from condensery.reporting.results import write_results

    write_results(folder / "results.json", rows)
    show_table(table_of(config, rows, title), folder)


@dataclass(frozen=True)
class Found:
    """The artifacts that searching with a retriever takes. BM25 has no encoder."""

    index: Artifact
    collection: Artifact
    encoder: Artifact | None


def retriever_of(graph: Graph, store: Store, row: str) -> Found:
    """The artifacts behind a row of the table, found through the manifests."""
    index = store.artifact(graph.nodes[graph.rows[row]]).ancestor("index")
    while index and index.kind == "rerank":  # it knows a few queries alone: what it reranked is searched
        index = index.input("retriever")
    collection = index.ancestor("corpus") if index else None
    if index is None or collection is None:
        raise UserError(f"ask: the row {row!r} of the table has no index to search")
    dense = read_json(index.path / "index.json").get("method") == "dense"
    return Found(index, collection, index.ancestor("encoder") if dense else None)


def best_row(rows: "Sequence[Row]") -> str:
    """The row with the highest first metric; of equal ones the later."""
    if not rows:
        raise UserError("ask: this run has no table, hence no best retriever; choose a recipe with experiment=...")
    metric = next(iter(rows[0].metrics))
    return max(enumerate(rows), key=lambda item: (item[1].metrics[metric], item[0]))[1].name


def answer(graph: Graph, store: Store, rows: "Sequence[Row]", text: str) -> None:
    """Print the passages that the best retriever of the run finds for ``text``."""
    from condensery.reporting.ask import ask, show
    from condensery.retrieval.index import open_index
    from condensery.text.collection import Collection

    best = best_row(rows)
    found = retriever_of(graph, store, best)
    collection = Collection(found.collection.path)
    encode = query_encoder(found.encoder.path) if found.encoder else None
    answers = ask(text, open_index(found.index.path, collection), collection, ANSWERS, encode)
    print(f"\nfound by {best}", flush=True)
    show(text, answers)


def query_encoder(checkpoint: Path) -> Callable[[str], Any]:
    """A function from a text to its query vector (d,), cut to the length that the retriever was trained with."""
    import torch

    from condensery.models.checkpoint import load_retriever
    from condensery.tokens.batches import chunks, flatten, with_special
    from condensery.tokens.tokenizer import load_tokenizer
    from condensery.tokens.vocabulary import Vocabulary

    tokenizer, retriever = load_tokenizer(checkpoint), load_retriever(checkpoint)
    vocabulary, length = Vocabulary.of(tokenizer), retriever.query_length
    tower = retriever.model.query.eval()

    def encode(text: str) -> Any:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        (chunk,) = chunks(*flatten([with_special(ids, vocabulary, length)]), budget=length, pad_id=vocabulary.pad)
        with torch.no_grad():
            return tower.cls(chunk)[0].float().numpy()

    return encode
