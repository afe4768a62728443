"""Figures over runs and sweeps: what is read from the run folders, what is said of missing numbers and of bad config."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from toy_commands import Command, Compose

from condensery.errors import UserError
from condensery.evaluation.significance import Interval
from condensery.pipeline.figure_config import FigureConfig
from condensery.pipeline.graph import build
from condensery.pipeline.reports.figure_data import FigureJob, by_setting, draw, draw_figures, read_figures
from condensery.pipeline.reports.page_content import page_of_run, read_study, write_study
from condensery.pipeline.run import run
from condensery.reporting.table import Comparison, Table
from condensery.system.files import read_json, write_json

SEEDS = (1, 2)


class Made:
    """Run folders as a pipeline leaves them, with what the tests say is in them."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def artifact(self, kind: str, name: str, makes: str, metrics: Mapping[str, Any], **inputs: Sequence[str]) -> Path:
        folder = self.root / "artifacts" / kind / name
        about = {
            "kind": kind,
            "id": name,
            "name": name,
            "makes": makes,
            "config": {"batch_size": metrics.get("steps", 10)},
        }
        seconds = {"cpu_seconds": 3.0 * metrics.get("steps", 1)}
        write_json(folder / "manifest.json", {**about, **seconds, "inputs": inputs, "metrics": metrics})
        return folder

    def job(self, name: str, stages: Mapping[str, Path], rows: Mapping[str, tuple[Path, float]]) -> Path:
        folder = self.root / "runs" / name
        write_json(
            folder / "graph.json", {n: {"kind": p.parent.name, "id": p.name, "reads": {}} for n, p in stages.items()}
        )
        entries = [
            {"row": row, "collection": "toys", "split": "test", "metrics": {"MRR@10": value}, "seed": 1,
             "artifact": f"evaluate/{path.name}"} for row, (path, value) in rows.items()
        ]  # fmt: skip
        write_json(folder / "results.json", entries)
        return folder


@pytest.fixture
def sweep(tmp_path: Path) -> list[FigureJob]:
    """Two sizes, two seeds: BM25, a model from random weights, and one that was pre-trained by as much as the size."""
    made, jobs = Made(tmp_path), []
    lexical = made.artifact("evaluate", "lexical", "evaluation", {})
    for size in (100, 400):
        for seed in SEEDS:
            key = f"{size}-{seed}"
            trained = {"train/tokens": 1000 * size + seed, "steps": size}
            start = made.artifact("pretrain_mlm", f"start-{key}", "encoder", trained)
            second = made.artifact(
                "pretrain_condenser", f"more-{key}", "encoder", trained, init=[f"pretrain_mlm/{start.name}"]
            )
            stages, rows = {"pretrained": second}, {"BM25": (lexical, 0.3)}
            for name, init in (("tuned", [f"pretrain_condenser/{second.name}"]), ("scratch", [])):
                folder = made.artifact("finetune", f"{name}-{key}", "encoder", {"queries": size}, init=init)
                found = made.artifact("evaluate", f"{name}-{key}", "evaluation", {}, index=[f"finetune/{name}-{key}"])
                stages[name] = folder
                rows[name] = (found, size / 1000 + seed / 100)
                lines = [f"{step},{9 / step + seed},{'' if name == 'scratch' else 0.1 * step}" for step in range(1, 30)]
                (folder / "logs").mkdir()
                (folder / "logs" / "metrics.csv").write_text("step,train/loss,val/mrr@10\n" + "\n".join(lines) + "\n")
            means = {ref: {"mean": [2.0 + seed, 1.0], "deviation": [0, 0]} for ref in
                     ("backbone", f"finetune/scratch-{key}", f"finetune/tuned-{key}")}  # fmt: skip
            stages["entropy"] = made.artifact("attention_entropy", f"entropy-{key}", "entropy", {})
            write_json(stages["entropy"] / "entropy.json", {"texts": 50, "even": 4.0, "encoders": means})
            jobs.append(FigureJob(made.job(key, stages, rows), f"size={size}"))
    return jobs


def figure(**settings: Any) -> FigureConfig:
    found = read_figures({"x": settings})["x"]
    assert found is not None
    return found


def numbers(
    config: FigureConfig, jobs: Sequence[FigureJob], folder: Path
) -> dict[str, list[tuple[str, float, float, int]]]:
    """What is drawn: line -> (x, mean, deviation, runs)."""
    found: dict[str, list[tuple[str, float, float, int]]] = {}
    drawn = draw(config, jobs, [], folder / "x")
    assert drawn.paths["png"].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in drawn.paths["svg"].read_text()
    for row in csv.DictReader(drawn.paths["csv"].open()):
        values = (row["x"], float(row["mean"]), float(row["deviation"]), int(row["runs"]))
        found.setdefault(f"{row['panel']}|{row['line']}", []).append(values)
    return found


def test_score_by_size_has_a_point_a_size_and_a_line_across_for_bm25(sweep: list[FigureJob], tmp_path: Path) -> None:
    found = numbers(figure(kind="score_by_size"), sweep, tmp_path)
    assert list(found) == ["|BM25", "|tuned", "|scratch"]
    assert found["|BM25"] == [("", 30.0, 0.0, 1)]
    deviation = pytest.approx(1 / 2**0.5, abs=1e-5)
    assert found["|tuned"] == [("100", 11.5, deviation, 2), ("400", 41.5, deviation, 2)]
    assert list(numbers(figure(kind="score_by_size", rows=["scratch"]), sweep, tmp_path)) == ["|scratch"]
    caption = draw(figure(kind="score_by_size"), sweep, [], tmp_path / "x").caption
    assert "MRR@10 on toys test against training queries" in caption
    assert "mean and standard deviation over 1 to 2 seeds" in caption


def test_score_by_steps_looks_at_the_pretraining_behind_a_row(sweep: list[FigureJob], tmp_path: Path) -> None:
    found = numbers(figure(kind="score_by_steps"), sweep, tmp_path)
    assert [x for x, *_ in found["|tuned"]] == ["200003", "800003"], "both stages, the mean over the seeds"
    steps = numbers(figure(kind="score_by_steps", amount="steps"), sweep, tmp_path)
    assert [x for x, *_ in steps["|tuned"]] == ["200", "800"]
    batches = numbers(figure(kind="score_by_steps", amount="batch_size"), sweep, tmp_path)
    assert [x for x, *_ in batches["|tuned"]] == ["100", "400"], "of the last stage alone"
    assert [x for x, *_ in batches["|scratch"]] == [x for x, *_ in found["|BM25"]] == [""]
    seconds = numbers(figure(kind="score_by_steps", amount="cpu_seconds"), sweep, tmp_path)
    assert [x for x, *_ in seconds["|tuned"]] == ["600", "2400"], "three for each step, of both stages"
    level = numbers(figure(kind="score_by_steps", rows=["scratch"]), sweep[:2], tmp_path)
    assert [(x, runs) for x, _, _, runs in level["|scratch"]] == [("", 2)]


def test_differences_are_those_that_the_table_shows(tmp_path: Path) -> None:
    table = Table("a study", ["MRR@10", "Recall@100"], [], [])
    table.comparisons = [
        Comparison("MLM", "MRR@10", -0.012, 0.3, Interval(-0.02, 0.004, 0.2), "warm start"),
        Comparison("MLM", "Recall@100", 0.5, 0.3, Interval(0.4, 0.6, 0.2), "warm start"),
        Comparison("coCondenser", "MRR@10", 0.031, 0.001, Interval(0.01, 0.052, 0.001), "warm start"),
    ]

    def written(**settings: str | list[str]) -> list[str]:
        drawn = draw(figure(kind="differences", **settings), [], [table], tmp_path / "x")
        assert drawn.paths["png"].read_bytes().startswith(b"\x89PNG")
        assert "MRR@10" in drawn.title or "metric" in settings
        return drawn.paths["csv"].read_text().splitlines()[1:]

    assert written() == ["MLM,warm start,-1.2,-2,0.4", "coCondenser,warm start,3.1,1,5.2"]
    assert written(metric="Recall@100") == ["MLM,warm start,50,40,60"]
    assert written(rows=["coCondenser"]) == ["coCondenser,warm start,3.1,1,5.2"]
    with pytest.raises(UserError, match=r"in R@10$"):  # which is no MRR@10
        written(metric="R@10")
    with pytest.raises(UserError, match="no row of these"):
        written(rows=["Condenser"])


def test_the_title_of_a_sweeps_differences_names_the_baseline_once(tmp_path: Path) -> None:
    def title(*baselines: str) -> str:
        table = Table("a study", ["MRR@10"], [], [])
        where = Interval(-0.02, 0.004, 0.2)
        table.comparisons = [Comparison(f"{one}, more", "MRR@10", -0.012, 0.3, where, one) for one in baselines]
        return draw(figure(kind="differences"), [], [table], tmp_path / "x").title

    assert title("size=1 · BERT", "size=2 · BERT") == "MRR@10 against BERT of the same settings"
    assert title("size=1 · BERT", "size=1 · BERT") == "MRR@10 against size=1 · BERT"
    assert title("BERT", "RoBERTa") == "MRR@10 against BERT or RoBERTa"


def test_differences_of_a_table_without_a_baseline_are_no_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Table("a study", ["MRR@10"], [], [])
    assert draw_figures({"x": figure(kind="differences")}, [], [table], tmp_path) == ([], [])
    assert "figures.x: not drawn" in capsys.readouterr().out


def test_a_failed_job_or_a_missing_seed_leaves_the_other_points(sweep: list[FigureJob], tmp_path: Path) -> None:
    found = numbers(figure(kind="score_by_size"), sweep[:3], tmp_path)
    assert [(x, runs) for x, _, _, runs in found["|tuned"]] == [("100", 2), ("400", 1)]
    alone = numbers(figure(kind="score_by_size"), sweep[:1], tmp_path)
    assert alone["|tuned"] == [("100", 11.0, 0.0, 1)]


def test_trainings_have_a_panel_a_value_and_name_what_is_missing(sweep: list[FigureJob], tmp_path: Path) -> None:
    stages = {"from MLM": "tuned", "from nothing": "scratch", "never": "pretrained"}
    config = figure(kind="training", stages=stages)
    found = numbers(config, sweep[:2], tmp_path)
    loss, score = "training loss (nats)", "validation MRR@10 (%)"
    assert list(found) == [f"{loss}|from MLM", f"{loss}|from nothing", f"{score}|from MLM"]
    assert found[f"{loss}|from MLM"][1] == ("2", 6.0, pytest.approx(0.707107), 2)
    assert found[f"{score}|from MLM"][1][1] == 20.0
    assert "Without numbers: never." in draw(config, sweep[:2], [], tmp_path / "x").caption
    swept = numbers(figure(kind="training", stages={"a": "tuned"}), sweep, tmp_path)
    assert list(swept) == [f"{panel}|size={size} · a" for panel in (loss, score) for size in (100, 400)]


def test_first_epochs_end_where_they_are_told_to(sweep: list[FigureJob], tmp_path: Path) -> None:
    stages = {"a": "tuned"}
    steps = numbers(figure(kind="first_epochs", stages=stages, steps=5), sweep[:2], tmp_path)["|a"]
    assert [x for x, *_ in steps] == ["1", "2", "3", "4", "5"]
    epochs = numbers(figure(kind="first_epochs", stages=stages, epochs=2), sweep[:2], tmp_path)["|a"]
    assert [x for x, *_ in epochs][-1] == "2", "100 queries in batches of 10"
    assert len(epochs) == 20
    with pytest.raises(UserError, match="logged train/loss so early"):
        draw(figure(kind="first_epochs", stages=stages, epochs=0.01), sweep[:2], [], tmp_path / "y")


def test_entropy_is_found_by_artifact_before_and_after(sweep: list[FigureJob], tmp_path: Path) -> None:
    config = figure(kind="attention_entropy", stage="entropy", models={"M": ["backbone", "tuned"]})
    found = numbers(config, sweep[:2], tmp_path)
    assert found["M|before fine-tuning"] == [("1", 3.5, pytest.approx(0.707107), 2), ("2", 1.0, 0.0, 2)]
    assert list(found) == ["M|before fine-tuning", "M|after fine-tuning"]
    assert "3.50 ± 0.71" in draw(config, sweep[:2], [], tmp_path / "x").table
    other = figure(kind="attention_entropy", stage="entropy", models={"M": ["backbone", "pretrained"]})
    with pytest.raises(UserError, match="'entropy' lacks 'pretrained'; add it to `encoders`"):
        draw(other, sweep, [], tmp_path / "y")


def test_a_figure_without_any_line_is_named_and_hides_no_other(sweep: list[FigureJob], tmp_path: Path) -> None:
    figures = {
        "none": figure(kind="training", stages={"a": "pretrained"}),
        "unmeasured": figure(kind="score_by_size", metric="NDCG@10"),
        "good": figure(kind="score_by_size", title="Good"),
    }
    drawn, faults = draw_figures(figures, sweep, [], tmp_path)
    assert [one.title for one in drawn] == ["Good"]
    assert faults == [
        "figures.none: no stage of `stages` logged train/loss or val/mrr@10",
        "figures.unmeasured: no row has NDCG@10 (measured: MRR@10)",
    ]
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == ["good.csv", "good.png", "good.svg"]


def test_a_figure_of_other_settings_is_not_left(sweep: list[FigureJob], tmp_path: Path) -> None:
    figures = {name: figure(kind="score_by_size") for name in ("kept", "renamed")}
    draw_figures(figures, sweep, [], tmp_path)
    figures = {"kept": figures["kept"], "new": figure(kind="score_by_size", metric="NDCG@10")}
    _, faults = draw_figures(figures, sweep, [], tmp_path)
    assert len(faults) == 1
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == ["kept.csv", "kept.png", "kept.svg"]
    (tmp_path / "figures" / "own.csv").write_text("a file of the user's\n")
    draw_figures({}, sweep, [], tmp_path)
    assert [path.name for path in (tmp_path / "figures").iterdir()] == ["own.csv"]


@pytest.mark.parametrize("graph", [[], {"tuned": 3}, {"tuned": {"kind": "finetune", "reads": {}}}, {"tuned": {}}, None])
def test_a_damaged_graph_is_one_line(graph: object, tmp_path: Path) -> None:
    write_json(tmp_path / "runs" / "x" / "graph.json", graph)
    with pytest.raises(UserError, match=r"graph\.json: .* its content is not as a run writes it; run the study again"):
        FigureJob(tmp_path / "runs" / "x").stages  # noqa: B018


@pytest.mark.parametrize("study", [[], {"command": "x"}, {"command": "", "about": 3, "lost": {}}])
def test_a_damaged_study_is_one_line_and_stops_no_other(study: object, tmp_path: Path) -> None:
    write_json(tmp_path / "toy-12345678" / "study.json", study)
    with pytest.raises(UserError, match=r"study\.json: its content is not as a run writes it; run the study again"):
        read_study(tmp_path / "toy-12345678")
    write_study(tmp_path / "toy-abcdefab", "", [], {})
    assert read_study(tmp_path / "toy-abcdefab")["turn"] == 1


@pytest.mark.parametrize("name", ["../../../x", "/etc"])
def test_names_that_lead_out_of_the_store_are_not_followed(name: str, sweep: list[FigureJob], tmp_path: Path) -> None:
    folder = sweep[0].folder
    graph, results = read_json(folder / "graph.json"), read_json(folder / "results.json")
    changed = [{**entry, "artifact": name} for entry in results]
    write_json(folder / "results.json", changed)
    with pytest.raises(UserError, match=r"results\.json: entry 0: .* was it edited by hand\?"):
        _ = FigureJob(folder).rows
    manifest = tmp_path / "artifacts" / "finetune" / graph["tuned"]["id"] / "manifest.json"
    write_json(manifest, {**read_json(manifest), "inputs": {"init": [name]}})
    with pytest.raises(UserError, match=r"manifest\.json: .* was it edited by hand\?"):
        FigureJob(folder).stages["tuned"].ancestor("corpus")
    write_json(folder / "graph.json", {"tuned": {"kind": name, "id": "x", "reads": {}}})
    write_json(folder / "study.json", {"command": "", "about": [], "lost": {}})
    (folder / "config.yaml").write_text("")
    write_json(folder / "results.json", [])
    with pytest.raises(UserError, match=r"graph\.json: .* was it edited by hand\?"):
        _ = FigureJob(folder).stages
    with pytest.raises(UserError, match=r"graph\.json: .* was it edited by hand\?"):
        page_of_run(folder, tmp_path, [], [])


def test_settings_are_told_apart_only_where_they_make_a_difference() -> None:
    assert by_setting([("a", "1", "x"), ("b", "1", "x"), ("b", "2", "y")]) == {"": ["x", "y"]}
    assert by_setting([("a", "1", "x"), ("a", "2", "y"), ("b", "3", "z")]) == {"a": ["x", "y"], "b": ["z"]}
    assert by_setting([("a", "1", "x"), ("a", "1", "x")]) == {"": ["x"]}


BAD = {
    "an unknown kind": ("{kind: pie}", "figures.f: unknown 'kind' 'pie' (known: 'attention_entropy'"),
    "no kind": ("{rows: null}", "figures.f: needs 'kind'"),
    "an unknown key": ("{kind: score_by_size, row: [plain]}", "figures.f.row: unknown key"),
    "an unknown row": (
        "{kind: score_by_size, rows: [plane]}",
        "figures.f.rows: 'plane' is not a row of the table (did",
    ),
    "an unknown reference": (
        "{kind: score_by_steps, reference: plane}",
        "figures.f.rows: 'plane' is not a row of the table (did",
    ),
    "another metric": ("{kind: score_by_steps, metric: MAP}", "figures.f.metric: 'MAP' is not in table.metrics"),
    "an unknown stage": (
        "{kind: training, stages: {a: plane}}",
        "figures.f.stages: no stage is named 'plane' (did you",
    ),
    "no stage": ("{kind: training, stages: {}}", "figures.f.stages: must have at least 1 item(s)"),
    "two ends": ("{kind: first_epochs, stages: {a: plain}, steps: 1, epochs: 1}", "give epochs or steps, not both"),
    "true for one": ("{kind: first_epochs, stages: {a: plain}, steps: true}", "figures.f.steps: must be a number"),
    "another kind of stage": (
        "{kind: attention_entropy, stage: plain, models: {a: [plain, better]}}",
        "figures.f.stage: 'plain' is not of kind attention_entropy",
    ),
    "one encoder": (
        "{kind: attention_entropy, stage: plain, models: {a: [plain]}}",
        "figures.f.models.a: must have at least 2 item(s)",
    ),
}


@pytest.mark.parametrize(("written", "said"), BAD.values(), ids=list(BAD))
def test_a_bad_figure_is_found_before_any_work(written: str, said: str, composed: Compose, tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        build(composed(f"figures.f={written}"))
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("left_out", ["figures=null", "figures.f=null"])
def test_figures_can_be_left_out(left_out: str, composed: Compose) -> None:
    config = composed("figures.f={kind: score_by_size}", left_out)
    assert build(config).root.figures == {}
    assert read_figures(OmegaConf.to_container(config.figures) if config.figures else None) == {}


def test_a_sweep_ends_in_the_figures_of_the_jobs_that_did_not_fail(command: Command, tmp_path: Path) -> None:
    given = ["figures.f={kind: score_by_size}", "figures.none={kind: training, stages: {a: plain}}"]
    rows = ["~table.rows.better", "~table.rows.round2"]
    done = command("-m", "stages.plain.fail=user,null", *rows, *given)
    assert done.returncode == 1
    assert done.stderr.splitlines()[1:] == [
        "error: 1 of 2 jobs failed: fail=user (text.txt:3: this text is not to be trained on)",
        "error: figures.none: no stage of `stages` logged train/loss or val/mrr@10",
    ]
    folder = tmp_path / "out" / "sweeps" / "toy" / "figures"
    assert sorted(path.name for path in folder.iterdir()) == ["f.csv", "f.png", "f.svg"]
    assert not list((tmp_path / "out" / "runs").glob("*/figures")), "those of a sweep are drawn once, over it"


def test_a_run_draws_its_own_figures_and_says_which_need_a_sweep(
    composed: Compose, capsys: pytest.CaptureFixture[str]
) -> None:
    run(composed("figures.f={kind: score_by_size}"))
    assert "figures.f: not drawn: this figure needs a sweep (-m)" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"figures\.t: no stage of `stages` logged train/loss"):
        run(composed("figures.t={kind: training, stages: {a: plain}}"))
