"""The report at the end of a run: its table, its curves and its audits."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from condensery.errors import UserError, number_of
from condensery.evaluation.metrics import Evaluation
from condensery.pipeline.artifact_store import Store
from condensery.pipeline.config import TableConfig
from condensery.pipeline.executor import FailedStage
from condensery.pipeline.graph import Graph
from condensery.pipeline.reports.figure_data import FigureJob, draw_figures
from condensery.pipeline.reports.page_content import page_of_run, write_study
from condensery.pipeline.reports.row_origins import costs_of, made_of, unmeasured
from condensery.pipeline.reports.study import about, command
from condensery.pipeline.reports.wandb_results import log_results
from condensery.reporting.comparison import comparison
from condensery.reporting.conclusion import conclusion, lines_of
from condensery.reporting.curves import draw_curves
from condensery.reporting.pair_audit import show_audit
from condensery.reporting.plain import as_typed
from condensery.reporting.recommendation import recommendation
from condensery.reporting.results import Row, write_results
from condensery.reporting.suspects import show_suspects
from condensery.reporting.table import Significance, Table, build_table
from condensery.reporting.table_formats import show, write_table
from condensery.stages.base import Artifact
from condensery.stages.registry import registry
from condensery.system.files import content_hash, read_json, write_json


def write(
    graph: Graph, store: Store, folder: Path, failed_stages: Mapping[str, FailedStage], job: Sequence[str] | None = None
) -> tuple[list[Row], list[str]]:
    """Write results, study, table, curves, figures and page into ``folder``; print the table and the audits.

    There is no table if the recipe has no rows, or if no row could be measured. ``table.recommend`` recommends a row even
    then. A recipe without training has no curves.

    Args:
        graph: graph of the run.
        store: store of the artifacts.
        folder: folder of the run.
        failed_stages: stages without an artifact, by name.
        job: overrides of the job of a sweep; None = a single run. For a job, the sweep produces the figures, the results in
            W&B and the text about the table.

    Returns:
        the rows, and the reasons why figures were not drawn.
    """
    rows, tables, words = rows_of(graph, store, failed_stages), [], ""
    unread = _unread_judgements(graph, store)
    if any(not row.failed for row in rows):
        table, rows = concluded(rows, graph.root.table, graph.root.name, graph.root.output_root, graph.choice)
        table = replace(table, notes=[*table.notes, *unread])
        tables.append(show_table(table, folder, in_words=job is None))
    else:
        remove_tables(folder)
        told = unmeasured(graph, store)
        words = " ".join(filter(None, (graph.choice, told.text, *unread))) if told else ""
        if words:
            print(f"\n{words}", flush=True)
    write_study(folder, command(job), about(), failed_stages)
    write_results(folder / "results.json", rows)
    _show_audits(graph, store)
    logs = {name: store.path(node) / "logs" / "metrics.csv" for name, node in graph.nodes.items()}
    logs = {name: path for name, path in logs.items() if path.exists()}
    draw_logs(logs, folder)
    jobs = [FigureJob(folder)]
    drawn, faults = draw_figures(graph.root.figures, jobs, tables, folder, swept=False) if job is None else ([], [])
    page_of_run(folder, graph.root.output_root, tables, drawn, words)
    if job is None:
        log_results(graph.root.logger.wandb, graph.root.output_root, folder, tables, drawn, rows)
    return rows, faults


def draw_logs(logs: Mapping[str, Path], folder: Path) -> None:
    """Draw the curves, unless they were already drawn from the same logs, which ``curves.json`` records."""
    drawn, pictures = folder / "curves.json", [folder / f"curves.{kind}" for kind in ("png", "svg")]
    wanted = {name: content_hash(path) for name, path in logs.items()}
    with suppress(UserError):
        if all(path.exists() for path in pictures) and read_json(drawn) == wanted:
            return
    if logs:
        draw_curves(logs, folder / "curves")
        write_json(drawn, wanted)


def rows_of(graph: Graph, store: Store, failed_stages: Mapping[str, FailedStage]) -> list[Row]:
    """Return the rows of the table; a row whose evaluation is in ``failed_stages`` contains the reason."""
    rows = []
    for label, name in graph.rows.items():
        node = graph.nodes[name]
        if name in failed_stages:
            why = f"the stage {failed_stages[name].stage} failed: {failed_stages[name].reason}"
            searched, split, seed = _collection(graph, store).get("name", ""), graph.root.table.split, graph.root.seed
            rows.append(Row(label, searched, split, {}, seed=seed, artifact=node.reference, failed=why))
        else:
            rows.append(row_of(graph, label, Artifact(store.path(node))))
    return rows


def _collection(graph: Graph, store: Store) -> dict[str, Any]:
    """Return the content of the corpus's ``collection.json``; an empty dict if the run has made no corpus."""
    corpora = [node for node in graph.nodes.values() if registry()[node.kind].makes == "corpus" and store.sound(node)]
    return dict(read_json(store.path(corpora[0]) / "collection.json")) if corpora else {}


def _unread_judgements(graph: Graph, store: Store) -> list[str]:
    """Return a sentence that counts the judged train queries and names the recipe ``table.with_train_queries``.

    There is no sentence if the collection has no judged train queries. Without dev queries there is no sentence either,
    because the named recipe could not choose its weights.
    """
    recipe = graph.root.table.with_train_queries
    splits = _collection(graph, store).get("splits", {}) if recipe else {}
    judged = splits.get("train", {}).get("queries", 0) if "dev" in splits else 0
    used = number_of(judged, "judged train queries are not used here")
    return [f"{used}; experiment={recipe} trains on judged queries."] if judged else []


def _show_audits(graph: Graph, store: Store) -> None:
    """Print the tables of each audit, computed or reused, and the path of its sheets."""
    audits = {  # product of a stage -> how it is shown, and the files in its folder
        "audit": (show_audit, "audit.md, pairs.jsonl and sheets in"),
        "suspects": (show_suspects, "sheet.csv, to be filled in, is in"),
    }
    for name, node in graph.nodes.items():
        print_tables, files = audits.get(registry()[node.kind].makes, (None, ""))
        if print_tables and store.sound(node):
            print(flush=True)
            print_tables(store.path(node))
            print(f"[{name}] {files} {store.path(node)}", flush=True)


def row_of(graph: Graph, label: str, evaluation: Artifact) -> Row:
    """Return a row of the table from an evaluation. The evaluation's metrics.json or else its corpus names the collection."""
    split = measured_split(evaluation, graph.root.table.split)
    content, corpus = read_json(evaluation.path / "metrics.json"), evaluation.ancestor("corpus")
    searched = read_json(corpus.path / "collection.json")["name"] if corpus else ""
    row = Row(label, content.get("collection", searched), split, content["metrics"], seed=graph.root.seed)
    artifact, warnings = evaluation.reference, evaluation.all_warnings()
    costs = costs_of(evaluation, graph.root.table.costs) if graph.root.table.costs else {}
    return with_queries(replace(row, artifact=artifact, warnings=warnings, costs=costs), evaluation.path)


def measured_split(evaluation: Artifact, split: str) -> str:
    """Return the split that an evaluation measured, or ``split`` if the evaluation's config has no split.

    If a sample of candidates was ranked instead of all passages, their number is appended, as in ``dev-100``. Such results
    are far higher than results of a full ranking, and the two must not be compared.
    """
    config = evaluation.manifest["config"]
    measured = str(config.get("split", split))
    return f"{measured}-{1 + config['candidates_number']}" if config.get("candidates") else measured


def with_queries(row: Row, folder: Path) -> Row:
    """Return the row with the values of each query, from the folder of its evaluation if the folder still exists.

    The row also gets the settings of the stages that made the evaluation, if all their folders still exist.
    """
    if not (folder / "evaluation.npz").is_file():
        return row
    evaluation = Evaluation.load(folder / "evaluation.npz")
    configs: dict[str, list[str]] = {}
    with suppress(UserError, OSError):
        for artifact in list(Artifact(folder).ancestors()):
            for key, value in artifact.manifest["config"].items():
                if value is None or isinstance(value, str | int | float):
                    configs.setdefault(f"stage.{artifact.kind}.{key}", []).append(as_typed(value))
    return replace(row, per_query=evaluation.per_query, query_ids=evaluation.query_ids, configs=configs)


def with_values(rows: Sequence[Row], root: Path) -> list[Row]:
    """Return the rows with the values of each query, from the artifacts under ``root``; a failed row has no values.

    Raises:
        UserError: a metric of a row is not the mean over its queries.
    """
    complete = [row if row.failed else with_queries(row, root / "artifacts" / row.artifact) for row in rows]
    for row in complete:
        for metric, values in row.per_query.items():
            if not math.isclose(row.metrics.get(metric, math.nan), values.mean(), abs_tol=1e-9):
                raise UserError(
                    f"results.json: {row.name}: its {metric} is not the mean over the queries of {row.artifact}; run the"
                    " study again"
                )
    return complete


def table_of(config: TableConfig, rows: Sequence[Row], title: str) -> Table:
    """Return the table of measured rows. If the config has columns, the table also has rows with published numbers.

    If the baseline is among the rows, the significance test compares the other rows with it. If each job of a sweep has its
    own baseline, rows are compared within each job.
    """
    if config.columns:
        return comparison(config, rows, config.split, config.baseline, title, config.studies)
    known = any(config.baseline in (row.name, row.system) for row in rows if not row.failed)
    significance = Significance(config.baseline, config.test, level=config.level) if known else None
    return build_table(rows, None, significance, config.title or title, config.costs)


def concluded(
    rows: Sequence[Row], config: TableConfig, title: str, root: Path, first: str = ""
) -> tuple[Table, list[Row]]:
    """Return the table of measured rows with its conclusion in words, and the rows with the recommended row marked.

    There is a conclusion only if the rows are retrievers.

    Args:
        rows: rows of the table.
        config: config of the table.
        title: title of the table, if the config has none.
        root: output root.
        first: text before the conclusion.
    """
    indexes, table = indexes_of(rows, root), table_of(config, rows, title)
    kinds = {artifact: index.kind for artifact, index in indexes.items()}
    how = Significance(config.baseline, config.test, level=config.level)
    lines = lines_of(rows, kinds, how, table.comparisons)
    told = recommendation(lines, made_of(indexes)) if config.recommend else None
    text = told.text if told else conclusion(lines)
    words = " ".join(filter(None, (first, text)))
    marked = [replace(row, recommended=text if told and row.name == told.row else "") for row in rows]
    return replace(table, conclusion=words), marked


def indexes_of(rows: Sequence[Row], root: Path) -> dict[str, Artifact]:
    """Return the index of each row, by the artifact of the row.

    Rows without retrieval, such as rows of sentence tasks, and rows with a missing artifact are left out.

    Args:
        rows: the rows of a table.
        root: the output root.
    """
    evaluations = {row.artifact: Artifact(root / "artifacts" / row.artifact) for row in rows if not row.failed}
    made = {name: one for name, one in evaluations.items() if (one.path / "manifest.json").is_file()}
    return {name: index for name, one in made.items() for index in one.inputs("index")}


def remove_tables(folder: Path) -> None:
    """Remove the files of ``show_table``, whose rows no longer exist."""
    for path in folder.glob("table.*"):
        path.unlink()


def show_table(table: Table, folder: Path | None, in_words: bool = True) -> Table:
    """Print a table (with its conclusion if ``in_words``), write it into ``folder`` (None = nowhere), and return it."""
    if folder:
        write_table(table, folder)
    print(flush=True)
    show(table if in_words else replace(table, conclusion=""))
    return table
