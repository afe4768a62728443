"""The figures of a run or a sweep; their data are read from the folders of finished runs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from condensery.errors import UserError
from condensery.pipeline import figure_config as config
from condensery.pipeline.reports.page_content import artifacts_of
from condensery.pipeline.reports.row_origins import costs_of
from condensery.reporting import figures as pictures
from condensery.reporting.curves import LOSS, SCORE, Curve, read_curves
from condensery.reporting.drawing import Figure
from condensery.reporting.figures import Line
from condensery.reporting.results import Row, read_results
from condensery.reporting.table import Table
from condensery.stages.base import Artifact
from condensery.system.files import read_json

Value = TypeVar("Value")
Observations = list[tuple[str, str, Value]]  # (setting, artifact, value)
ByAmount = config.ScoreBySizeFigure | config.ScoreByStepsFigure | config.ScoreByCostFigure
FOLDER = "figures"  # subfolder of the run's or sweep's folder
KINDS = (".png", ".svg", ".csv")  # of a figure's files
LOG = "logs/metrics.csv"
BEFORE, AFTER = "before fine-tuning", "after fine-tuning"


@dataclass(frozen=True)
class FigureJob:
    """A finished run.

    Attributes:
        folder: folder of the run.
        setting: label of the run among the jobs of a sweep, without the seed.
        shown: names of the rows that are drawn; None = all rows.
    """

    folder: Path
    setting: str = ""
    shown: frozenset[str] | None = None

    @cached_property
    def stages(self) -> dict[str, Artifact]:
        """The artifacts of the run's stages, by name. An artifact is left out if only rows that are not drawn use it."""
        stages = artifacts_of(self.folder)
        if self.shown is None or len(self.rows) == len(self.every_row):
            return stages
        unused = self._inputs(row for row in self.every_row if row.name not in self.shown) - self._inputs(self.rows)
        return {name: artifact for name, artifact in stages.items() if artifact not in unused}

    def _inputs(self, rows: Iterable[Row]) -> set[Artifact]:
        return {artifact for row in rows if not row.failed for artifact in self.measured(row).ancestors()}

    @cached_property
    def every_row(self) -> list[Row]:
        """The rows of the run's table."""
        return read_results(self.folder / "results.json")

    @cached_property
    def rows(self) -> list[Row]:
        """The rows of the run's table that are drawn."""
        return [row for row in self.every_row if self.shown is None or row.name in self.shown]

    def measured(self, row: Row) -> Artifact:
        """Return the artifact of the evaluation that a row shows."""
        return Artifact(self.folder.parents[1] / "artifacts" / row.artifact)


def read_figures(value: Any) -> dict[str, config.FigureConfig]:
    """Return the key ``figures`` of a composed and checked config, as configs."""
    return TypeAdapter[dict[str, config.FigureConfig]](config.Figures).validate_python(value)


def draw_figures(
    figures: Mapping[str, config.FigureConfig],
    jobs: Sequence[FigureJob],
    tables: Sequence[Table],
    folder: Path,
    swept: bool = True,
) -> tuple[list[Figure], list[str]]:
    """Draw all figures of a sweep or a run into ``folder``/figures, and remove the other figures in this folder.

    A figure that compares the jobs of a sweep is not drawn for one run. A figure of differences is not drawn if the table
    compares no row with a baseline. Both cases are reported in one line and are not faults.

    Args:
        figures: configs by name.
        jobs: finished runs.
        tables: table of the sweep or run, if there is one.
        folder: folder of the sweep or run.
        swept: whether the figures belong to a sweep.

    Returns:
        the drawn figures, and the reasons why other figures could not be drawn.
    """
    drawn, faults = [], []
    for name, figure in figures.items():
        if not swept and isinstance(figure, config.ScoreBySizeFigure | config.ScoreByStepsFigure):
            print(f"figures.{name}: not drawn: this figure needs a sweep (-m)", flush=True)
            continue
        if isinstance(figure, config.DifferencesFigure) and not any(table.comparisons for table in tables):
            print(f"figures.{name}: not drawn: the table compares no row with a baseline (table.baseline)", flush=True)
            continue
        try:
            drawn.append(draw(figure, jobs, tables, folder / FOLDER / name))
            shown = f"\n{drawn[-1].table}" if drawn[-1].table else ""
            print(f"figures/{name}.png, .svg: {drawn[-1].title}. {drawn[-1].caption}{shown}", flush=True)
        except UserError as error:
            faults.append(f"figures.{name}: {error}")
    written = {path for one in drawn for path in one.paths.values()}
    for table in (folder / FOLDER).glob("*.csv"):
        files = [table.with_suffix(kind) for kind in KINDS]
        # all three: a figure of earlier settings, and not a file of the user's
        if table not in written and all(file.exists() for file in files):
            for file in files:
                file.unlink()
    return drawn, faults


def draw(figure: config.FigureConfig, jobs: Sequence[FigureJob], tables: Sequence[Table], stem: Path) -> Figure:
    """Draw one figure into files that begin with ``stem``. Raises ``UserError`` if there is nothing to draw."""
    if isinstance(figure, config.AttentionEntropyFigure):
        return _draw_entropy(figure, jobs, stem)
    if isinstance(figure, config.DifferencesFigure):
        return _draw_differences(figure, tables, stem)
    if isinstance(figure, ByAmount):
        return _draw_scores(figure, jobs, stem)
    if isinstance(figure, config.FirstEpochsFigure):
        return _draw_losses(figure, jobs, stem)
    return _draw_training(figure, jobs, stem)


def by_setting(observations: Observations[Value]) -> dict[str, list[Value]]:
    """Group values by setting, one value per artifact. If settings share an artifact, all values are under an empty name."""
    settings: dict[str, dict[str, Value]] = {}
    for setting, artifact, value in observations:
        settings.setdefault(setting, {}).setdefault(artifact, value)
    every = {artifact: value for values in settings.values() for artifact, value in values.items()}
    if len(settings) > 1 and len(every) == sum(map(len, settings.values())):
        return {setting: list(values.values()) for setting, values in settings.items()}
    return {"": list(every.values())}


# Scores


def _draw_differences(figure: config.DifferencesFigure, tables: Sequence[Table], stem: Path) -> Figure:
    found = [one for table in tables for one in table.comparisons]
    metric = figure.metric or next((one.column for one in found), "")
    # a table of several collections has columns such as "docstrings MRR@10"
    wanted = [one for one in found if f" {one.column}".endswith(f" {metric}")]
    wanted = [one for one in wanted if figure.rows is None or one.name in figure.rows]
    if not wanted:
        raise UserError(f"the table compares no row{' of these' * bool(figure.rows)} with its baseline in {metric}")
    baselines = _baseline([one.baseline for one in wanted])
    about = (
        f"{metric}: difference from {baselines} in points, with its 95 % confidence interval over queries and seeds."
    )
    return pictures.draw_differences(stem, figure.title or f"{metric} against {baselines}", about, wanted)


def _baseline(names: Sequence[str]) -> str:
    """Return the name of the baseline for a title; a sweep may have the same system in each of its settings."""
    different = list(dict.fromkeys(names))
    systems = {name.rpartition(" · ")[2] for name in different}
    return f"{systems.pop()} of the same settings" if len(different) > len(systems) == 1 else " or ".join(different)


def _draw_scores(figure: ByAmount, jobs: Sequence[FigureJob], stem: Path) -> Figure:
    rows = [(job, row) for job in jobs for row in job.rows if figure.split in (None, row.split)]
    metrics = figure.metrics or [next((name for _, row in rows for name in row.metrics), "")]
    names = figure.rows or list(dict.fromkeys(row.name for _, row in rows))
    places = {(row.collection, row.split) for _, row in rows}
    rows = [(job, row) for job, row in rows if row.name in names and not row.metrics.keys().isdisjoint(metrics)]
    amounts = {row.artifact: _amount(figure, job.measured(row)) for job, row in rows}
    panels: dict[str, list[Line]] = {}
    for metric in metrics:
        y_label = f"{metric} ({'× 100' if metric == 'Spearman' else '%'})"
        measured = [(job, row) for job, row in rows if metric in row.metrics]
        for name in names:
            own = [(job, row) for job, row in measured if row.name == name]
            for place in dict.fromkeys((row.collection, row.split) for _, row in own):
                label = f"{name}, {place[0]} {place[1]}" if len(places) > 1 else name
                here = [(job, row) for job, row in own if (row.collection, row.split) == place]
                panels.setdefault(y_label, []).append(_score_line(label, here, metric, amounts))
    if not panels:
        known = sorted({one for job in jobs for row in job.rows for one in row.metrics})
        raise UserError(f"no row has {' or '.join(metrics) or 'a metric'} (measured: {', '.join(known) or 'nothing'})")
    if isinstance(figure, config.ScoreBySizeFigure):
        unit = " and ".join(sorted({unit for one in amounts.values() for unit in one})) or "queries"
        x_label, by = f"training {unit} (log scale)", "size of the training set"
    elif isinstance(figure, config.ScoreByCostFigure):
        x_label, by = f"{figure.cost} (log scale)", figure.cost
    elif figure.amount == "batch_size":
        x_label, by = "texts per batch in the last pre-training of the row (log scale)", "pre-training"
    else:
        x_label, by = f"{unit_of(figure)} of pre-training, over all stages of the row (log scale)", "pre-training"
    what, lines = " and ".join(metrics), [line for drawn in panels.values() for line in drawn]
    where = f" on {', '.join(map(' '.join, sorted(places)))}" if places else ""
    levels = " Horizontal lines: rows without this amount." if any(not line.x for line in lines) else ""
    if isinstance(figure, config.ScoreBySizeFigure) and any(len(set(line.x)) < len(line.x) for line in lines):
        levels += " Several settings have the same size: table.choose shows the best on dev."
    missing = [name for name in names if not any(f"{line.label}, ".startswith(f"{name}, ") for line in lines)]
    about = f"{what}{where} against {x_label}{_over(lines)}.{levels}{_without(missing)}"
    drawn = pictures.draw_scores(stem, figure.title or f"{what} by {by}", about, panels, x_label)
    if not isinstance(figure, config.ScoreByStepsFigure) or figure.reference is None:
        return drawn
    return replace(drawn, table=pictures.equal_quality(panels, figure.reference, unit_of(figure)))


def unit_of(figure: config.ScoreByStepsFigure) -> str:
    """Return the name of the amount, such as ``steps``."""
    return figure.amount.replace("cpu_", "CPU-")


def _amount(figure: ByAmount, evaluation: Artifact) -> dict[str, float]:
    """Return the amount of training data, pre-training or cost of an evaluated retriever by its unit; {} if it is unknown."""
    if isinstance(figure, config.ScoreByCostFigure):
        return costs_of(evaluation, [figure.cost])
    encoder = evaluation.ancestor("encoder")
    if isinstance(figure, config.ScoreBySizeFigure):
        known = encoder.manifest["metrics"] if encoder else {}
        return next(({unit: float(known[unit])} for unit in ("queries", "examples") if unit in known), {})
    pretraining = _pretraining(encoder)
    if not pretraining:
        return {}
    if figure.amount == "batch_size":
        return {figure.amount: float(pretraining[0].manifest["config"]["batch_size"])}
    if figure.amount == "cpu_seconds":
        return {figure.amount: float(sum(one.manifest["cpu_seconds"] for one in pretraining))}
    key = "steps" if figure.amount == "steps" else "train/tokens"
    return {figure.amount: float(sum(one.manifest["metrics"][key] for one in pretraining))}


def _pretraining(encoder: Artifact | None) -> list[Artifact]:
    """Return the pre-training stages of an encoder, the last stage first."""
    ancestors = [encoder] if encoder else []
    for artifact in ancestors:  # the list grows during the loop
        ancestors += artifact.inputs("init")
    return [artifact for artifact in ancestors if artifact.kind.startswith("pretrain_")]


def _score_line(
    label: str, rows: Sequence[tuple[FigureJob, Row]], metric: str, amounts: Mapping[str, Mapping[str, float]]
) -> Line:
    """Return the line of one system: one point per setting, at the mean amount over its seeds.

    A system without an amount gives a horizontal line.
    """
    measured = [(job.setting, row.artifact, (amounts[row.artifact], 100 * row.metrics[metric])) for job, row in rows]
    points: list[tuple[float, list[float]]] = []
    for values in by_setting(measured).values():
        scores = [score for _, score in values]
        found = [value for amount, _ in values for value in amount.values() if value]
        if not found:
            return Line(label, (), [scores])
        points.append((sum(found) / len(found), scores))
    points.sort()
    return Line(label, [x for x, _ in points], [scores for _, scores in points])


# Curves


def _curves(
    stages: Mapping[str, str], jobs: Sequence[FigureJob], column: str, scale: float = 1.0, epochs: bool = False
) -> list[Line]:
    """Return each stage's training curves as a line over steps (epochs if ``epochs``), with values multiplied by ``scale``.

    If the sweep varies a setting of the stage, each value has a line of its own.
    """
    lines = []
    for label, stage in stages.items():
        own: Observations[Artifact] = []
        for job in jobs:
            artifact = job.stages.get(stage)
            if artifact and (artifact.path / LOG).exists():
                own.append((job.setting, str(artifact.path), artifact))
        for setting, artifacts in by_setting(own).items():
            logs = {artifact: read_curves(artifact.path / LOG) for artifact in artifacts}
            if logged := {artifact: curves[column] for artifact, curves in logs.items() if column in curves}:
                name = " · ".join(part for part in (setting, label) if part)
                curves = [Curve(one.steps, scale * one.values) for one in logged.values()]
                an_epoch = _steps_an_epoch(next(iter(logged))) if epochs else 1.0
                lines.append(pictures.line_of_curves(name, curves, 1.0 / an_epoch))
    return lines


def _draw_losses(figure: config.FirstEpochsFigure, jobs: Sequence[FigureJob], stem: Path) -> Figure:
    """Draw the losses up to the requested end."""
    whole, lines = _curves(figure.stages, jobs, LOSS, epochs=figure.epochs is not None), []
    for line in whole:
        if kept := [i for i, x in enumerate(line.x) if x <= (figure.epochs or figure.steps or x)]:
            lines.append(Line(line.label, [line.x[i] for i in kept], [line.values[i] for i in kept]))
    if not lines:
        raise UserError(f"no stage of `stages` logged {LOSS}" + (" so early" if whole else ""))
    missing = _labels_without(figure.stages, [line.label for line in lines])
    x_label = "optimisation step" if figure.epochs is None else "epoch"
    about = f"Training loss by {x_label}, log scale{_over(lines)}.{_without(missing)}"
    return pictures.draw_losses(stem, figure.title or "Training loss at the beginning", about, lines, x_label)


def _steps_an_epoch(artifact: Artifact) -> float:
    """Return the number of steps per epoch, in which training uses all queries, examples or texts once."""
    known = artifact.manifest["metrics"]
    items = next((known[key] for key in ("queries", "examples", "items") if key in known), None)
    if items is None:
        raise UserError(f"epochs: the stage {artifact.manifest['name']!r} has no epochs; give steps")
    return float(max(1.0, items / artifact.manifest["config"]["batch_size"]))


def _draw_training(figure: config.TrainingFigure, jobs: Sequence[FigureJob], stem: Path) -> Figure:
    score = f"val/{figure.metric.lower()}"
    columns = ((LOSS, "training loss (nats)", 1.0), (score, f"validation {figure.metric} (%)", 100.0))
    panels = {y: lines for column, y, scale in columns if (lines := _curves(figure.stages, jobs, column, scale))}
    if not panels:
        raise UserError(f"no stage of `stages` logged {LOSS} or {score}")
    every = [line for lines in panels.values() for line in lines]
    what = " and ".join(panels)
    missing = _labels_without(figure.stages, [line.label for line in every])
    passages = "a sample of the corpus" if score == SCORE else "a positive among passages drawn from a retriever's best"
    sample = f"; validation is on {passages}" if len(panels) == len(columns) else ""
    about = f"By optimisation step: {what}{_over(every)}{sample}.{_without(missing)}"
    return pictures.draw_training(stem, figure.title or "Training", about, panels)


def _labels_without(stages: Mapping[str, str], drawn: Sequence[str]) -> list[str]:
    return [label for label in stages if not any(name == label or name.endswith(f" · {label}") for name in drawn)]


# Entropy


def _draw_entropy(figure: config.AttentionEntropyFigure, jobs: Sequence[FigureJob], stem: Path) -> Figure:
    panels: dict[str, list[Line]] = {}
    measured = {str(job.stages[figure.stage].path): job for job in jobs if figure.stage in job.stages}
    abouts = [read_json(Path(path) / "entropy.json") for path in measured]
    if not abouts:
        raise UserError(f"stage: no job has {figure.stage!r}")
    for model, pair in figure.models.items():
        panels[model] = []
        for label, encoder in zip((BEFORE, AFTER), pair, strict=True):
            observations: Observations[list[float]] = []
            for (path, job), about in zip(measured.items(), abouts, strict=True):
                made = None if encoder == "backbone" else job.stages[encoder]
                key = encoder if made is None else made.reference
                if key not in about["encoders"]:
                    raise UserError(f"models: the stage {figure.stage!r} lacks {encoder!r}; add it to `encoders`")
                observations.append((job.setting, path, about["encoders"][key]["mean"]))
            for setting, means in by_setting(observations).items():
                name = " · ".join(part for part in (setting, label) if part)
                panels[model].append(Line(name, range(1, len(means[0]) + 1), list(zip(*means, strict=True))))
    even = sum(one["even"] for one in abouts) / len(abouts)  # the entropy of uniform attention
    runs = _over([line for lines in panels.values() for line in lines])
    caption = f"Mean over heads and {abouts[0]['texts']:,} texts{runs}."
    return pictures.draw_entropy(stem, figure.title or "CLS attention entropy by layer", caption, panels, even)


# Captions


def _over(lines: Sequence[Line]) -> str:
    runs = sorted({len(values) for line in lines for values in line.values})
    if runs[-1] == 1:
        return ""
    number = str(runs[-1]) if len(runs) == 1 else f"{runs[0]} to {runs[-1]}"
    return f"; mean and standard deviation over {number} seeds"


def _without(missing: Sequence[str]) -> str:
    return f" Without numbers: {', '.join(missing)}." if missing else ""
