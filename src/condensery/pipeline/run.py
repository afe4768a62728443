"""One run: builds the graph, computes or reuses its artifacts, and writes and prints the table."""

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from condensery.errors import MissingDataError, StageError, UserError, number_of
from condensery.pipeline import pushing
from condensery.pipeline.artifact_store import Store
from condensery.pipeline.dry_run.costs import Costs, announce, project
from condensery.pipeline.error_lines import in_one_line
from condensery.pipeline.executor import Failure, check_data, execute, warn
from condensery.pipeline.graph import Graph, can_answer
from condensery.pipeline.launch.hardware import limit_threads
from condensery.pipeline.reports import study
from condensery.pipeline.several_checkpoints import read
from condensery.pipeline.sweep import RECORDS
from condensery.system.files import atomic, write_json, write_text
from condensery.system.signals import leave_if_asked
from condensery.training.wandb_run import said_offline

if TYPE_CHECKING:
    from condensery.reporting.results import Row

NEXT = 'Ask it:  {command} ask="what you look for"'


@dataclass(frozen=True)
class Finished:
    """The result of a run.

    Attributes:
        folder: folder of the run; None for a dry run and for a table without a recipe.
        rows: rows of the run's table.
        failures: failures by the name of the stage.
        faults: reasons why figures could not be drawn.
        costs: in a dry run, the costs of the artifacts that are still to be made.
    """

    folder: Path | None
    rows: "list[Row]"
    failures: Mapping[str, Failure] = field(default_factory=dict)
    faults: Sequence[str] = ()
    costs: Costs | None = None

    @property
    def error(self) -> UserError | StageError | None:
        """The error at the end of the run: the single fault, or one line per fault with its stages; None without a fault."""
        texts = {name: str(failure.error) for name, failure in self.failures.items()}
        hit = {text: [name for name, other in texts.items() if other == text] for text in texts.values()}
        if not hit and self.faults:
            return UserError("; ".join(self.faults))
        if len(hit) < 2:
            return next((failure.error for failure in self.failures.values()), None)
        crashed = {str(failure.error) for failure in self.failures.values() if isinstance(failure.error, StageError)}
        lines = [text if text in crashed else f"error: {', '.join(those)}: {text}" for text, those in hit.items()]
        return StageError("\n".join(sorted(lines, key=lambda line: line.startswith("error: "))))  # tracebacks first


def run(cfg: DictConfig) -> Finished:
    """Run a composed config.

    Raises:
        UserError: bad input; or one foreseeable fault that made stages or figures fail, raised after all other stages are
            done.
        StageError: an unexpected exception in a stage, or several faults, raised after all other stages are done.
    """
    if HydraConfig.initialized() and (params := HydraConfig.get().sweeper.get("params")):
        print(_in_sweep(cfg, {str(key).lstrip("+"): str(values) for key, values in params.items()}), flush=True)
    finished = run_all(cfg)
    if finished.error:
        raise finished.error
    return finished


def _in_sweep(cfg: DictConfig, params: Mapping[str, str]) -> str:
    """Return a line for a run without ``-m``. It says that the recipe is a sweep, and whether this run is one of its jobs.

    ``params``: key -> the values over which the recipe sweeps. A value may be a mapping of keys below this key.
    """
    parser, own, which = OverridesParser.create(), dict[str, Any](), "this run is one of them"
    groups = HydraConfig.get().runtime.choices
    for key, values in params.items():
        override = parser.parse_override(f"{key}={values}")
        if override.is_choice_sweep() or override.is_range_sweep():
            texts = list(override.sweep_string_iterator())
        else:  # an interval or a glob lists no values
            texts = [] if override.is_sweep_override() else [values]
        jobs = [_leaves(key, parser.parse_override(f"{key}={text}").value()) for text in texts]
        own |= {name: groups.get(name) or OmegaConf.select(cfg, name) for job in jobs or [{key: ""}] for name in job}
        if not any(all(own[name] == value for name, value in job.items()) for job in jobs):
            which = "this run is none of them"
    values_here = ", ".join(f"{name}={'null' if value is None else value}" for name, value in own.items())
    return f"this recipe is a sweep over {' and '.join(params)}: -m runs all jobs, {which} ({values_here})"


def _leaves(key: str, value: Any) -> dict[str, Any]:
    return {f"{key}.{name}": inner for name, inner in value.items()} if isinstance(value, dict) else {key: value}


def run_all(cfg: DictConfig, job: study.Job | None = None) -> Finished:
    """Run a composed config and return the failures of stages instead of raising them.

    Args:
        cfg: composed config.
        job: job of the sweep that the run belongs to; None = a single run.

    Raises:
        UserError: bad input.
    """
    try:
        starts = read(cfg)
    except MissingDataError as error:
        whole, small = study.with_data(error.by_name)
        message = f"{error.missing}; or have them downloaded: {whole}; for a first look on a CPU: {small}"
        raise (UserError(message) if whole else error) from None
    graph, config, to_choose = starts.graphs[0], starts.configs[0], False
    store = Store(graph.root.output_root)
    if len(starts.graphs) > 1:
        graph, to_choose = starts.graph(store), starts.chosen(store) is None
        config = starts.config_of(graph)
    root = graph.root
    if not graph.nodes and (root.table.columns or root.table.studies):
        from condensery.pipeline.reports import table_of_studies  # not at the head: a dry run shows no table

        table_of_studies.write(root)
        return Finished(None, [])
    if not graph.nodes:
        raise UserError("experiment: which recipe? Give experiment=NAME, such as experiment=quickstart (see --help)")
    if root.push_to_hub:
        pushing.check(graph)
    if root.fetch:
        from condensery.pipeline.fetching import fetch_data  # imports all formats, when plug-ins are registered

        fetch_data(graph, bool(root.dry_run))
    states = store.states(graph)
    if root.dry_run or root.fetch:
        costs = project(graph, store, states)
        if to_choose:
            names = " or ".join(starts.labels)
            print(f"backbone.name: {names} is chosen during the run; the plan assumes the first", flush=True)
        made = [name for name, state in states.items() if state == "hit"]
        check_data(graph, store, made, made)
        return Finished(None, [], faults=[graph.missing] if graph.missing else [], costs=costs)
    runtime = root.runtime()
    said_offline.clear()  # so that each job of a sweep prints the message
    if job:
        runtime = replace(runtime, group=job.study, labels=study.labels(graph, job.overrides))
    if root.jobs == 1:  # this process computes the stages
        limit_threads(runtime.threads)
    if to_choose:
        if root.estimate:
            announce(graph, store, states)
        before = starts.before()
        if failures := execute(before, store, store.states(before), runtime).failures:
            return Finished(None, [], failures)
        starts = starts.once_made()
        graph = starts.graph(store)
        config, states = starts.config_of(graph), store.states(graph)
    if graph.choice:
        print(graph.choice, flush=True)
    folder = root.output_root / "runs" / f"{root.name}-{graph.id}"
    from condensery.pipeline import asking  # not at the head, because a dry run does not search

    if root.ask is not None and not job and (known := asking.unchanged(graph, states, folder)) is not None:
        what = number_of(len(graph.nodes), f"stages, all reused; {folder} is complete")
        print(what, flush=True)
        warn(graph, store)
        asking.answer(graph, store, known, root.ask)
        return Finished(folder, known)
    if root.ask is not None and not job:
        print("ask: this run is incomplete; the missing parts are computed first", flush=True)
    from condensery.pipeline.reports import report  # not at the head, because a search needs no table

    folder.mkdir(parents=True, exist_ok=True)
    (folder / asking.FINISHED).unlink(missing_ok=True)
    _write_recipe(config, graph, store, folder)
    if root.estimate and not to_choose:
        announce(graph, store, states)
    if not job:
        runtime = replace(runtime, group=folder.name)
    failures, failed_stages = execute(graph, store, states, runtime)
    rows, faults = report.write(graph, store, folder, failed_stages, job.overrides if job else None)
    if not failures and not faults:
        asking.finish(graph, folder)
    measured = [row for row in rows if not row.failed]
    answers = graph.answers is not None and store.sound(graph.nodes[graph.answers])  # even if other stages failed
    if measured or answers or not failures:
        if not (job or failures or faults or root.ask is not None):
            _say_how_to_go_on(graph)
        print(f"\n{folder}", flush=True)
        if root.ask is not None:
            asking.answer(graph, store, measured, root.ask)
    if root.push_to_hub:
        pushing.push(graph, store, rows)
    return Finished(folder, rows, failures, faults)


def _say_how_to_go_on(graph: Graph) -> None:
    """Print the lines of the config's ``next``. Without them, print the command that searches the run, if it has an index."""
    if lines := study.going_on(graph.root.next or [NEXT] * can_answer(graph)):
        print("\n" + "\n".join(lines), flush=True)


def _write_recipe(cfg: DictConfig, graph: Graph, store: Store, folder: Path) -> None:
    """Write ``config.yaml`` (as composed, with resolved stages), ``graph.json``, and links to artifacts in ``stages/``."""
    kinds = {node.kind for node in graph.nodes.values()}
    config = {key: value for key, value in cfg.items_ex(resolve=False) if key not in ("stage", "stages")}
    config["stage"] = {kind: value for kind, value in cfg.stage.items_ex(resolve=False) if kind in kinds}
    own = (node for node in graph.nodes.values() if node.name in graph.root.stages)
    config["stages"] = {node.name: {"stage": node.kind, **node.config.model_dump(mode="json")} for node in own}
    write_text(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(config)))
    recipe = {
        name: {"kind": node.kind, "id": node.id, "path": str(store.path(node)), "reads": dict(node.inputs)}
        for name, node in graph.nodes.items()
    }
    write_json(folder / "graph.json", recipe)
    links = folder / "stages"
    links.mkdir(exist_ok=True)
    for name, node in graph.nodes.items():
        link = links / name
        if link.is_symlink() or not link.is_dir():  # `scp -r` copies the artifact in place of the link
            with atomic(link) as temporary:
                temporary.symlink_to(os.path.relpath(store.path(node), links), target_is_directory=True)


def run_job(cfg: DictConfig) -> None:
    """Run one job of a sweep and record its results or its error; an error is printed at once."""
    hydra = HydraConfig.get()
    task: Any = OmegaConf.to_container(hydra.overrides.task)  # unresolved
    overrides = [override.lstrip("+") for override in task]
    record: dict[str, Any] = {"number": int(hydra.job.num), "overrides": overrides, "folder": None, "error": None}
    print(f"\n== job {record['number']}: {' '.join(overrides)}", flush=True)
    try:
        finished = run_all(cfg, study.Job(Path(os.environ[RECORDS]).parent.name, overrides))
        record["folder"] = str(finished.folder) if finished.folder else None
        record["costs"] = finished.costs
        if finished.error:
            raise finished.error
    except Exception as error:
        leave_if_asked()
        line = in_one_line(error)
        record["error"] = line or f"error: {type(error).__name__}: {error}"
        print(line or traceback.format_exc(), file=sys.stderr, flush=True)
    write_json(Path(os.environ[RECORDS]) / f"{record['number']:04d}.json", record)
