"""Gathers the content of the page of a run or a sweep from the run folders and the manifests of their artifacts."""

import glob
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from condensery.errors import UserError
from condensery.pipeline.executor import FailedStage
from condensery.pipeline.reports.study import tidied
from condensery.reporting.conclusion import BM25
from condensery.reporting.curves import read_curves
from condensery.reporting.drawing import Figure
from condensery.reporting.examples import RUN, EvaluatedRow, Examples, examples
from condensery.reporting.html_page import ArtifactRow, JobSection, Page, html
from condensery.reporting.results import read_results
from condensery.reporting.suspects import FILE
from condensery.reporting.table import Table
from condensery.stages.base import Artifact
from condensery.system.files import inside, read_json, write_json, write_text
from condensery.system.progress import clock
from condensery.text.collection import Collection

STUDY = "study.json"  # in a run's folder: the command, the recipe's question, and the reasons why stages failed
PAGE, EXAMPLES = "index.html", "examples.json"


def write_study(folder: Path, command: str, about: Sequence[str], failed_stages: Mapping[str, FailedStage]) -> None:
    """Write into ``study.json`` the facts about a run that its artifacts do not record.

    The entry ``turn`` counts the runs of a study, so that the last run is known independently of the clock.

    Args:
        folder: folder of the run.
        command: command that repeats the run.
        about: question of the recipe, as paragraphs.
        failed_stages: stages without an artifact, by name.
    """
    study = glob.escape(folder.name.rpartition("-")[0])
    others = max((run_number(other) for other in folder.parent.glob(f"{study}-*") if other != folder), default=0)
    turn = max(run_number(folder), others + 1)
    reasons = {name: {"stage": one.stage, "reason": one.reason} for name, one in failed_stages.items()}
    write_json(folder / STUDY, {"command": command, "about": list(about), "lost": reasons, "turn": turn})


def run_number(folder: Path) -> int:
    """Return the position of a run among the runs of its study; 0 if it is unknown."""
    with suppress(UserError, LookupError, TypeError, ValueError):
        return int(read_json(folder / STUDY)["turn"])
    return 0


def read_study(run: Path) -> dict[str, Any]:
    """Read the file of ``write_study``. Raises ``UserError`` if its content has another form."""
    return _checked(read_json(run / STUDY), {"command": str, "about": list, "lost": dict}, f"{run / STUDY}")


def read_graph(run: Path) -> dict[str, dict[str, Any]]:
    """Return the stages of a run: name -> kind, id and inputs. Raises ``UserError`` if a field is missing."""
    path = run / "graph.json"
    graph = _checked(read_json(path), {}, f"{path}: ?")
    fields = {"kind": str, "id": str, "reads": dict}
    return {name: _checked(node, fields, f"{path}: {name}") for name, node in graph.items()}


def _checked(content: Any, fields: Mapping[str, type], where: str) -> dict[str, Any]:
    if not isinstance(content, dict) or not all(isinstance(content.get(key), kind) for key, kind in fields.items()):
        raise UserError(f"{where}: its content is not as a run writes it; run the study again")
    return content


def artifacts_of(run: Path) -> dict[str, Artifact]:
    """Return the artifacts of a run's stages, by name."""
    store, path = run.parents[1] / "artifacts", run / "graph.json"
    return {stage: Artifact(inside(store, f"{n['kind']}/{n['id']}", path)) for stage, n in read_graph(run).items()}


def page_of_run(folder: Path, root: Path, tables: Sequence[Table], figures: Sequence[Figure], words: str = "") -> None:
    """Write ``index.html`` into a run's folder.

    Args:
        folder: folder of the run.
        root: output root.
        tables: table of the run, if there is one.
        figures: drawn figures.
        words: text that replaces the table if there is none.
    """
    name, rows = folder.name.rpartition("-")[0], read_results(folder / "results.json")
    page = Page(name, (), read_study(folder)["command"], tables, figures, rows=rows, words=words)
    write_whole(page, folder, root, [("", folder)])


def write_whole(page: Page, folder: Path, root: Path, runs: Sequence[tuple[str, Path]]) -> None:
    """Complete a page from the runs' folders and artifacts; write it as ``index.html``, with the file of examples beside it.

    Args:
        page: a page with the fields that only the caller knows: name, command, tables, figures, rows, and the jobs without
            a run.
        folder: folder of the run or sweep.
        root: output root.
        runs: (label, folder) of each job's run.
    """
    if examples := next(filter(None, (_examples(label, run, root) for label, run in runs)), None):
        write_json(folder / EXAMPLES, examples.data())
    else:
        (folder / EXAMPLES).unlink(missing_ok=True)
    made = {artifact.path: artifact for _, run in runs for artifact in artifacts_of(run).values()}
    whole = replace(
        page,
        about=read_study(runs[0][1])["about"] if runs else [],
        failed=[(what, tidied(why, root)) for what, why in page.failed],
        tables=[replace(table, notes=[tidied(note, root) for note in table.notes]) for table in page.tables],
        jobs=[_job(label, run, root) for label, run in runs],
        machine=_machine([one.manifest for one in made.values() if _is_made(one)]),
        examples=examples,
        suspects=_suspects(runs),
    )
    write_text(folder / PAGE, html(whole))


def _is_made(artifact: Artifact) -> bool:
    return (artifact.path / "manifest.json").is_file()


def _examples(label: str, run: Path, root: Path) -> Examples | None:
    """Return questions with the passages that each row of a run retrieved, on the collection and split of the first row.

    The result is None if nothing was retrieved: there are no rows, all failed, or they belong to sentence tasks.
    """
    systems: dict[tuple[Path, str], list[EvaluatedRow]] = {}
    for row in (row for row in read_results(run / "results.json") if not row.failed):
        evaluation = Artifact(root / "artifacts" / row.artifact)
        if (evaluation.path / RUN).is_file():
            config, index = evaluation.manifest["config"], evaluation.input("index")
            place = evaluation.input("corpus").path, config["split"]
            measured = EvaluatedRow(row.name, evaluation.path, config["depth"], bm25=index.kind == BM25)
            systems.setdefault(place, []).append(measured)
    for (corpus, split), those in systems.items():
        return replace(examples(those, Collection(corpus), split), job=label)
    return None


def _suspects(runs: Sequence[tuple[str, Path]]) -> dict[str, Any]:
    """Return name -> content of ``suspects.json`` for each stage that lists suspected false negatives, once per artifact."""
    found: dict[str, Any] = {}
    seen = set[Artifact]()
    for label, run in runs:
        for stage, artifact in artifacts_of(run).items():
            if artifact not in seen and (artifact.path / FILE).is_file():
                seen.add(artifact)
                found[" · ".join(filter(None, (stage, label)))] = read_json(artifact.path / FILE)
    return found


def _job(label: str, run: Path, root: Path) -> JobSection:
    """Return the section of one run, which has the label ``label`` among the runs of its sweep."""
    study, graph = read_study(run), read_graph(run)
    artifacts, rows = artifacts_of(run), []
    for stage, artifact in artifacts.items():
        failed = study["lost"].get(stage, {})
        manifest = artifact.manifest if _is_made(artifact) else {}
        row = ArtifactRow(
            stage,
            artifact.kind,
            artifact.id,
            reads=list(dict.fromkeys(name for names in graph[stage]["reads"].values() for name in names)),
            seconds=manifest.get("wall_seconds"),
            created=manifest.get("created", "").replace("T", " ").removesuffix("+00:00"),
            version=manifest.get("version"),
            cause=failed.get("stage", ""),
            failed=tidied(failed.get("reason", ""), root),
            warnings=[tidied(text, root) for text in artifact.warnings] if manifest else [],
        )
        rows.append(row)
    logs = {stage: artifact.path / "logs" / "metrics.csv" for stage, artifact in artifacts.items()}
    curves = {stage: read_curves(log) for stage, log in logs.items() if log.exists()}
    config = tidied((run / "config.yaml").read_text(encoding="utf-8"), root)
    return JobSection(label, study["command"], config, rows, curves)


def _machine(manifests: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the hardware and libraries of all artifacts; if values differ, all distinct values."""
    values: dict[str, dict[str, None]] = {}
    for manifest in manifests:
        machine = {"precision": manifest["config"].get("precision"), **manifest.get("machine", {})}
        for name, value in {**machine, **manifest["versions"], "git revision": manifest["git"]}.items():
            if value not in (None, ""):
                values.setdefault(name, {})[str(value)] = None
    shown = {name: ", ".join(sorted(several)) for name, several in values.items()}
    seconds = sum(manifest["wall_seconds"] for manifest in manifests)
    first = ("processor", "cores", "memory", "gpu", "system", "threads", "precision")
    order = {name: shown.pop(name) for name in first if name in shown} | shown
    return {"all stages together": f"{clock(seconds)}, one after the other", **order} if manifests else {}
