"""The recipes at the papers' sizes draw the papers' figures: same axes, rows and metrics, here from made-up results."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from slow import slow_except
from small_runs import PROJECT

from condensery.pipeline.reports.figure_data import FigureJob, draw_figures, read_figures
from condensery.system.files import write_json

SEEDS = (1, 2)


class Sweep:
    """The runs of a recipe's jobs, with numbers that follow from the setting, the row and the metric."""

    TUNED = ("cocondenser_tuned", "query_as_context_tuned")  # from a pre-training of their own

    def __init__(self, recipe: str, root: Path, settings: Sequence[str]) -> None:
        with initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"):
            given = [] if recipe.startswith("ablation/") else ["data.root=DIR"]
            config = compose("config", [f"experiment={recipe}", *given])
        found = {key: OmegaConf.to_container(config[key], resolve=True) for key in ("figures", "table")}
        self.figures, self.table = read_figures(found["figures"]), found["table"]
        self.table["rows"] = {row: stage for row, stage in self.table["rows"].items() if stage}
        self.kinds = {name: stage["stage"] for name, stage in OmegaConf.to_container(config.stages).items() if stage}  # type: ignore[union-attr,call-overload,index]
        self.root = root
        self.jobs = [self._job(place, setting, seed) for place, setting in enumerate(settings) for seed in SEEDS]

    def _artifact(self, kind: str, name: str, makes: str, metrics: Mapping[str, Any], **inputs: Any) -> Path:
        folder = self.root / "artifacts" / kind / name
        about = {"kind": kind, "id": name, "name": name, "makes": makes, "config": {"batch_size": 10}}
        shorter = 0.5 if name.startswith("query_as_context") else 1.0
        seconds = {"cpu_seconds": shorter * metrics.get("steps", 0)}
        write_json(folder / "manifest.json", {**about, **seconds, "inputs": inputs, "metrics": metrics})
        return folder

    def _job(self, place: int, setting: str, seed: int) -> FigureJob:
        end, size = f"{place}-{seed}", 100 * 10**place
        folder = self.root / "runs" / end
        stages: dict[str, Path] = {}
        for number, (name, kind) in enumerate(self.kinds.items()):
            counted = "examples" if "sentences" in kind else "queries"
            behind = (
                {"init": [f"pretrain_cocondenser/{name.removesuffix('_tuned')}-{end}"]} if name in self.TUNED else {}
            )
            made = {counted: size, "steps": 10 * 2**place}
            stages[name] = self._artifact(kind, f"{name}-{end}", "encoder", made, **behind)
            steps = range(size // 20, 12 * size // 10, size // 20)  # of twelve epochs, in batches of ten
            logs = [f"{step},{9 / step + number},{0.1 / step},{0.2 / step}" for step in steps]
            (stages[name] / "logs").mkdir()
            head = "step,train/loss,val/mrr@10,val/mrr@100\n"
            (stages[name] / "logs" / "metrics.csv").write_text(head + "\n".join(logs) + "\n")
            if kind == "attention_entropy":
                names = ["backbone", *(f"{self.kinds[one]}/{one}-{end}" for one in self.kinds)]
                means = {one: {"mean": [2.0, 1.0 + at], "deviation": [0, 0]} for at, one in enumerate(names)}
                write_json(stages[name] / "entropy.json", {"texts": 50, "even": 4.0, "encoders": means})
        written = {name: {"kind": path.parent.name, "id": path.name, "reads": {}} for name, path in stages.items()}
        write_json(folder / "graph.json", written)
        entries = []
        for number, (row, stage) in enumerate(self.table["rows"].items()):
            for split in ("test", "dl19") if self.root.name == "dl19" else ("test",):
                encoder = f"{stages[stage].parent.name}/{stages[stage].name}"
                found = self._artifact("evaluate", f"{stage}-{split}-{end}", "evaluation", {}, index=[encoder])
                metrics = {name: self.value(place, number, at) for at, name in enumerate(self.table["metrics"])}
                entries.append(
                    {"row": row, "collection": "c", "split": split, "metrics": metrics, "seed": seed,
                     "artifact": f"evaluate/{found.name}"}
                )  # fmt: skip
        write_json(folder / "results.json", entries)
        return FigureJob(folder, setting)

    @staticmethod
    def value(place: int, row: int, metric: int) -> float:
        return 0.1 * (place + 1) + 0.01 * row + 0.001 * metric

    def drawn(self, name: str, swept: bool = True) -> list[dict[str, str]]:
        """Draw all figures, and return the numbers of one."""
        jobs = self.jobs if swept else self.jobs[: len(SEEDS)]
        figures, faults = draw_figures(self.figures, jobs, [], self.root / "sweep", swept)
        assert faults == []
        (figure,) = (one for one in figures if one.name == name)
        return list(csv.DictReader(figure.paths["csv"].open()))


BY_SIZE = {
    "condenser_stsb": ({"": "Spearman"}, ["BERT", "Condenser"]),
    "condenser_wiki_sections": ({"": "Accuracy"}, ["BERT", "Condenser"]),
    "low_data_nq": ({"Hit@20 (%)": "Hit@20", "Hit@100 (%)": "Hit@100"}, ["BERT", "Condenser"]),
    "low_data_triviaqa": ({"Hit@20 (%)": "Hit@20", "Hit@100 (%)": "Hit@100"}, ["BERT", "Condenser"]),
    "low_data_msmarco": (
        {f"{one} (%)": one for one in ("MRR@10", "Recall@100", "Recall@1000")},
        ["BERT", "Condenser", "Condenser, continued"],
    ),
}


@pytest.mark.parametrize("recipe", slow_except(BY_SIZE, "condenser_stsb", "low_data_nq"))
def test_scores_by_size_are_those_of_the_early_versions_figures_2_to_4(recipe: str, tmp_path: Path) -> None:
    panels, rows = BY_SIZE[recipe]
    sweep = Sweep(recipe, tmp_path / ("dl19" if "msmarco" in recipe else ""), ["n=100", "n=1000", "n=null"])
    names, metrics = list(sweep.table["rows"]), list(sweep.table["metrics"])
    expected = [
        (panel, row, str(100 * 10**place), 100 * sweep.value(place, names.index(row), metrics.index(metric)), "2")
        for panel, metric in panels.items()
        for row in rows
        for place in range(3)
    ]
    drawn = sweep.drawn("size")
    found = [(one["panel"], one["line"], one["x"], float(one["mean"]), one["runs"]) for one in drawn]
    assert [(*one[:3], one[4]) for one in found] == [(*one[:3], one[4]) for one in expected]
    assert [one[3] for one in found] == pytest.approx([one[3] for one in expected])


@pytest.mark.parametrize("recipe", ["low_data_nq", "attention_entropy_nq"])
def test_the_first_ten_epochs_on_natural_questions_are_the_early_versions_figure_5(recipe: str, tmp_path: Path) -> None:
    settings = ["n=100", "n=1000"] if recipe == "low_data_nq" else [""]
    drawn = Sweep(recipe, tmp_path, settings).drawn("first_epochs")
    ends = [f"{one} · " if one else "" for one in settings]
    assert list(dict.fromkeys(one["line"] for one in drawn)) == [
        f"{end}{row}" for row in ("BERT", "Condenser") for end in ends
    ]
    assert 0 < float(drawn[0]["x"]) <= max(float(one["x"]) for one in drawn) <= 10
    assert max(float(one["x"]) for one in drawn) > 8, "the whole beginning is there"


WITHOUT_AND_WITH = ["without ABS", "with ABS"]
SCHEDULED = ["sequential", "random", "ABS-BM25", "ABS-Encode", "ABS-BeamSearch"]


@pytest.mark.parametrize(
    ("recipe", "figure", "lines"),
    slow_except(
        [
            ("abs_msmarco", "scheduling", SCHEDULED),
            ("abs_msmarco", "with_and_without", WITHOUT_AND_WITH),
            ("abs_models_msmarco", "with_and_without", WITHOUT_AND_WITH),
        ],
        "abs_models_msmarco",
    ),
)
def test_training_with_each_kind_of_batches_is_zhao_et_als_figures_3_to_5(
    recipe: str, figure: str, lines: list[str], tmp_path: Path
) -> None:
    drawn = Sweep(recipe, tmp_path, [""]).drawn(figure, swept=False)
    panels = ("training loss (nats)", "validation MRR@100 (%)")
    wanted = [(panel, line) for panel in panels for line in lines]
    assert list(dict.fromkeys((one["panel"], one["line"]) for one in drawn)) == wanted
    scores = [one for one in drawn if one["panel"] == panels[1] and one["line"] == lines[0]]
    assert [float(one["mean"]) for one in scores] == pytest.approx([20 / float(one["x"]) for one in scores], rel=1e-4)


@pytest.mark.parametrize("recipe", ["attention_entropy_nq", "attention_entropy_sections"])
def test_attention_entropy_is_condensers_figure_2(recipe: str, tmp_path: Path) -> None:
    drawn = Sweep(recipe, tmp_path, [""]).drawn("entropy", swept=False)
    found = list(dict.fromkeys((one["panel"], one["line"]) for one in drawn))
    ends = ("before fine-tuning", "after fine-tuning")
    assert found == [(model, end) for model in ("BERT", "ICT", "Condenser") for end in ends]
    assert [one["x"] for one in drawn] == ["1", "2"] * 6, "entropy against layer"
    assert len({one["mean"] for one in drawn if one["x"] == "2"}) == 6, "of six encoders"


def test_the_speed_of_query_as_context_is_steps_and_seconds_to_equal_quality(tmp_path: Path) -> None:
    sweep = Sweep("ablation/pretraining_speed", tmp_path, ["steps=10", "steps=20", "steps=40"])
    figures, faults = draw_figures(sweep.figures, sweep.jobs, [], tmp_path / "sweep")
    assert faults == []
    tables = {one.name: one.table.splitlines()[2].strip("|").split("|") for one in figures}
    steps, seconds = ([cell.strip() for cell in tables[name]] for name in ("steps", "cpu_seconds"))
    assert steps[0] == seconds[0] == "query-as-context coCondenser"
    assert steps[3] == seconds[3] == "40"
    assert 20 < float(steps[2]) < 40, "its row is a little better at each point"
    assert float(seconds[4]) == pytest.approx(0.5 * float(steps[4]), abs=0.01), "a step takes half as long"
