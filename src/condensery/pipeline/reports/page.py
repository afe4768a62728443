"""Gathers the page of a run or a sweep from what lies in the run folders and in the manifests of their artifacts."""

import glob
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from condensery.errors import UserError
from condensery.pipeline.reports.study import tidied
from condensery.reporting.conclusion import BM25
from condensery.reporting.curves import Curve, read_curves
from condensery.reporting.drawing import Figure
from condensery.reporting.examples import RUN, EvaluatedRow, Examples, examples
from condensery.reporting.page import ArtifactRow, JobSection, Page, write_page
from condensery.reporting.results import Row, read_results
from condensery.reporting.suspects import FILE
from condensery.reporting.table import Table
from condensery.stages.base import Artifact
from condensery.system.files import inside, read_json, write_json
from condensery.system.progress import clock
from condensery.text.collection import Collection

STUDY = "study.json"  # in a run's folder: its command, its question, and why stages failed
PAGE, EXAMPLES = "index.html", "examples.json"


def write_study(folder: Path, command: str, about: Sequence[str], lost: Mapping[str, Mapping[str, str]]) -> None:
    """Keep in a run's folder what its artifacts do not tell; ``lost``: stage -> the stage that failed, and the reason.

    ``turn`` counts the runs of a study, so that the last of them is known whatever the clock says.
    """
    study = glob.escape(folder.name.rpartition("-")[0])
    others = max((run_number(other) for other in folder.parent.glob(f"{study}-*") if other != folder), default=0)
    turn = max(run_number(folder), others + 1)
    write_json(folder / STUDY, {"command": command, "about": list(about), "lost": lost, "turn": turn})


def run_number(folder: Path) -> int:
    """Which run of its study a run's folder is of; 0 where that is not known."""
    with suppress(UserError):
        study = read_json(folder / STUDY)
        if isinstance(study, dict) and isinstance(study.get("turn"), int):
            return int(study["turn"])
    return 0


def read_study(run: Path) -> dict[str, Any]:
    """What ``write_study`` wrote. Raises ``UserError`` where it is not that."""
    study = read_json(run / STUDY)
    wanted = {"command": str, "about": list, "lost": dict}
    if not isinstance(study, dict) or not all(isinstance(study.get(key), kind) for key, kind in wanted.items()):
        raise UserError(f"{run / STUDY}: not what a run writes; run the study again")
    return study


def read_graph(run: Path) -> dict[str, dict[str, Any]]:
    """The stages of a run: name -> kind, id and what it reads. Raises ``UserError`` where a field is missing."""
    graph = read_json(run / "graph.json")
    wanted = {"kind": str, "id": str, "reads": dict}
    for name, node in graph.items() if isinstance(graph, dict) else [("?", None)]:
        if not isinstance(node, dict) or not all(isinstance(node.get(key), kind) for key, kind in wanted.items()):
            raise UserError(f"{run / 'graph.json'}: {name}: not what a run writes; run the study again")
    return dict(graph)


def page_of_run(folder: Path, root: Path, tables: Sequence[Table], figures: Sequence[Figure], words: str = "") -> None:
    """Write ``index.html`` into a run's folder. ``root`` is the output root; ``words`` stand where there is no table."""
    study = read_study(folder)
    page = Page(
        name=folder.name.rpartition("-")[0],
        about=study["about"],
        command=study["command"],
        tables=tables,
        figures=figures,
        rows=read_results(folder / "results.json"),
        words=words,
    )
    _write(page, folder, root, [("", folder)], [])


def page_of_sweep(
    folder: Path,
    root: Path,
    command: str,
    tables: Sequence[Table],
    figures: Sequence[Figure],
    rows: Sequence[Row],
    runs: Sequence[tuple[str, Path]],
    failed: Sequence[tuple[str, str]],
) -> None:
    """Write ``index.html`` into a sweep's folder, over its runs (label, folder); ``failed`` are jobs that left none."""
    about = read_study(runs[0][1])["about"] if runs else []
    page = Page(folder.name, about, command, tables, figures, rows=rows)
    _write(page, folder, root, runs, failed)


def _write(
    page: Page, folder: Path, root: Path, runs: Sequence[tuple[str, Path]], failed: Sequence[tuple[str, str]]
) -> None:

    manifests: dict[str, dict[str, Any]] = {}
    drawn: set[str] = set()
    jobs = [_job(label, run, root, manifests, drawn) for label, run in runs]
    tables = [replace(table, notes=[tidied(note, root) for note in table.notes]) for table in page.tables]
    failures = [(what, tidied(why, root)) for what, why in failed]
    examples = next(filter(None, (_examples(label, run, root) for label, run in runs)), None)
    if examples:
        write_json(folder / EXAMPLES, examples.data())
    else:
        (folder / EXAMPLES).unlink(missing_ok=True)
    whole = replace(
        page,
        tables=tables,
        jobs=jobs,
        failed=failures,
        machine=_machine(manifests),
        examples=examples,
        suspects=_suspects(runs, root),
    )
    write_page(whole, folder / PAGE)


def kinds_of_indexes(rows: Sequence[Row], root: Path) -> dict[str, str]:
    """Artifact of a row -> kind of the stage that made the index it was retrieved with.

    Without rows that were not retrieved, as of sentence tasks, and those whose artifact is gone. ``root`` is the output root.
    """
    kinds = {}
    for row in (row for row in rows if not row.failed):
        evaluation = Artifact(root / "artifacts" / row.artifact)
        if (evaluation.path / "manifest.json").is_file() and evaluation.inputs("index"):
            kinds[row.artifact] = evaluation.input("index").kind
    return kinds


def _examples(label: str, run: Path, root: Path) -> Examples | None:
    """Questions with what the rows of a run's table found, on the collection and the split of its first row.

    None where nothing was retrieved: no rows, all failed, or sentence tasks.
    """
    systems: dict[tuple[Path, str], list[EvaluatedRow]] = {}
    for row in (row for row in read_results(run / "results.json") if not row.failed):
        evaluation = Artifact(root / "artifacts" / row.artifact)
        if (evaluation.path / RUN).is_file():
            config, index = evaluation.manifest["config"], evaluation.input("index")
            place = evaluation.input("corpus").path, config["split"]
            systems.setdefault(place, []).append(
                EvaluatedRow(row.name, evaluation.path, config["depth"], bm25=index.kind == BM25)
            )
    for (corpus, split), those in systems.items():
        return replace(examples(those, Collection(corpus), split), job=label)
    return None


def _suspects(runs: Sequence[tuple[str, Path]], root: Path) -> dict[str, Any]:
    """What was found by each stage that looks for false negatives: its name -> ``suspects.json``, each artifact once."""
    found: dict[str, Any] = {}
    seen = set[Path]()
    for label, run in runs:
        for stage, node in read_graph(run).items():
            path = inside(root / "artifacts", f"{node['kind']}/{node['id']}", run / "graph.json") / FILE
            if path.is_file() and path not in seen:
                seen.add(path)
                found[" · ".join(filter(None, (stage, label)))] = read_json(path)
    return found


def _job(label: str, run: Path, root: Path, manifests: dict[str, dict[str, Any]], drawn: set[str]) -> JobSection:
    """One run. ``manifests`` gets those of its artifacts; ``drawn`` the artifacts whose curves have been shown."""
    study, graph = read_study(run), read_graph(run)
    artifacts: list[ArtifactRow] = []
    curves: dict[str, dict[str, Curve]] = {}
    for stage, node in graph.items():
        lost = study["lost"].get(stage, {})
        reference = f"{node['kind']}/{node['id']}"
        artifact = inside(root / "artifacts", reference, run / "graph.json")
        manifest = read_json(artifact / "manifest.json") if (artifact / "manifest.json").exists() else {}
        if manifest:
            manifests[reference] = manifest
        artifacts.append(
            ArtifactRow(
                stage,
                node["kind"],
                node["id"],
                reads=list(dict.fromkeys(name for names in node["reads"].values() for name in names)),
                seconds=manifest.get("wall_seconds"),
                created=manifest.get("created", "").replace("T", " ").removesuffix("+00:00"),
                version=manifest.get("version"),
                cause=lost.get("stage", ""),
                failed=tidied(lost.get("reason", ""), root),
                warnings=[tidied(text, root) for text in Artifact(artifact).warnings] if manifest else [],
            )
        )
        log = artifact / "logs" / "metrics.csv"
        if log.exists() and reference not in drawn:
            drawn.add(reference)
            curves[stage] = read_curves(log)
    config = tidied((run / "config.yaml").read_text(encoding="utf-8"), root)
    return JobSection(label, study["command"], config, artifacts, curves)


def _machine(manifests: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Hardware and libraries of all artifacts; where they differ, each value that occurs."""
    values: dict[str, dict[str, None]] = {}
    for manifest in manifests.values():
        machine = {"precision": manifest["config"].get("precision"), **manifest.get("machine", {})}
        for name, value in {**machine, **manifest["versions"], "git revision": manifest["git"]}.items():
            if value not in (None, ""):
                values.setdefault(name, {})[str(value)] = None
    shown = {name: ", ".join(sorted(several)) for name, several in values.items()}
    hardware = [
        name for name in ("processor", "cores", "memory", "gpu", "system", "threads", "precision") if name in shown
    ]
    seconds = sum(manifest["wall_seconds"] for manifest in manifests.values())
    order = {name: shown.pop(name) for name in hardware} | shown
    return {"all stages together": f"{clock(seconds)}, one after the other", **order} if manifests else {}
