"""``table.choose``: a sweep shows the jobs that are best on dev, and says what it chose."""

import csv
import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from small_runs import MODEL, run_command, some_text, write_articles, write_stsb
from test_figure_data import Made
from toy_commands import Command

from condensery.pipeline.config import ChooseInSweep
from condensery.pipeline.reports.chosen import Candidate, chosen_rows
from condensery.pipeline.reports.figure_data import FigureJob, draw_figures, read_figures
from condensery.pipeline.reports.sweep_report import labels_of
from condensery.reporting.results import Row
from condensery.system.files import read_json

EPOCHS = "stage.finetune.epochs"
# epochs -> (of BERT and of Condenser) the score of each seed on dev; on test the order is the reverse
DEV = {"5": ((0.2, 0.2), (0.5, 0.5)), "10": ((0.3, 0.5), (0.4, 0.4)), "40": ((0.6, 0.1), (0.3, 0.3))}


def jobs(setting: str = "", dev: bool = True, only: str = "") -> list[Candidate]:
    """A job for each number of epochs, seed and split, with rows of BM25, BERT and Condenser."""
    found = []
    for epochs, (bert, condenser) in DEV.items():
        for seed in (0, 1):
            for split in ("test", "dev")[: 1 + dev]:
                rows = [Row("BM25", "c", split, {"MRR@10": 0.1}, seed=seed, artifact=f"bm25-{split}")]
                for name, scores in (("BERT", bert), ("Condenser", condenser)):
                    score = scores[seed] if split == "dev" else 1 - scores[seed]
                    artifact = f"{setting}{name}-{epochs}-{seed}-{split}"
                    rows.append(Row(name, "c", split, {"MRR@10": score}, seed=seed, artifact=artifact))
                found.append(Candidate(setting, epochs, rows))
    return [job for job in found if job.value == (only or job.value)]


def kept(candidates: list[Candidate], rows: list[list[Row]], name: str) -> set[str]:
    """The values of the jobs that a row is kept of."""
    pairs = zip(candidates, rows, strict=True)
    return {job.value for job, own in pairs if any(row.name == name for row in own)}


def test_one_row_chooses_for_all_by_its_mean_over_the_seeds_on_dev() -> None:
    candidates = [*jobs("n=1000"), *jobs("n=null", only="5")]
    chosen = chosen_rows(candidates, ChooseInSweep(key=EPOCHS, row="BERT"), "MRR@10")
    assert [bool(rows) for rows in chosen.rows] == 4 * [False] + 4 * [True] + 4 * [False] + 4 * [True]
    assert all(len(rows) == 3 for rows in chosen.rows if rows), "test and dev of the chosen jobs"
    assert chosen.notes == [
        "Chosen by MRR@10 of BERT on dev: epochs of all rows (n=1000) = 10 (5: 20.0, 10: 40.0, 40: 35.0, mean of 2 seeds)."
    ], "and nothing of the setting with a single value"
    assert chosen.not_chosen == set()


def test_each_row_has_its_own_choice_where_none_is_named() -> None:
    candidates = jobs()
    chosen = chosen_rows(candidates, ChooseInSweep(key=EPOCHS), "MRR@10")
    assert [kept(candidates, chosen.rows, name) for name in ("BERT", "Condenser")] == [{"10"}, {"5"}]
    assert kept(candidates, chosen.rows, "BM25") == set(DEV), "which the key does not change"
    assert [note.partition(" (")[0] for note in chosen.notes] == [
        "Chosen by MRR@10 of BERT on dev: epochs of BERT = 10",
        "Chosen by MRR@10 of Condenser on dev: epochs of Condenser = 5",
    ]


def test_without_dev_all_jobs_are_kept_and_the_table_says_so() -> None:
    candidates = jobs("n=9", dev=False)
    chosen = chosen_rows(candidates, ChooseInSweep(key=EPOCHS, row="BERT"), "MRR@10")
    assert chosen.rows == [list(job.rows) for job in candidates]
    assert chosen.not_chosen == {"n=9"}
    assert chosen.notes == [
        "Not chosen: epochs of all rows (n=9), because MRR@10 of BERT on dev is not measured; set table.split=dev,test."
    ]


def test_a_value_that_lacks_a_seed_is_not_chosen_and_of_equal_ones_the_first_is() -> None:
    missing = [job for job in jobs() if (job.value, job.rows[0].seed) != ("10", 1)]
    chosen = chosen_rows(missing, ChooseInSweep(key=EPOCHS, row="BERT"), "MRR@10")
    assert kept(missing, chosen.rows, "BERT") == {"40"}
    assert "(5: 20.0, 10: –, 40: 35.0, mean of 2 seeds)" in chosen.notes[0]
    equal = [Candidate("", value, [Row("a", "c", "dev", {"M": 0.5}, artifact=value)]) for value in ("8", "4")]
    assert kept(equal, chosen_rows(equal, ChooseInSweep(key=EPOCHS), "M").rows, "a") == {"8"}


def test_the_chosen_key_is_not_part_of_the_label() -> None:
    sizes = [f"stage.finetune={{train_queries:{n},epochs:{epochs}}}" for n in (9, 99) for epochs in (4, 8)]
    assert labels_of([[one] for one in sizes], EPOCHS) == 2 * ["train_queries=9"] + 2 * ["train_queries=99"]
    assert labels_of([["n=1", f"{EPOCHS}=4"], ["n=2", f"{EPOCHS}=8"]], EPOCHS) == ["n=1", "n=2"]


def test_a_sweep_of_toys_shows_the_best_on_dev(command: Command, tmp_path: Path) -> None:
    swept = ["-m", "stages.round2.steps=1,2", "seed=1,2", "table.split=test,dev"]
    choose = "table.choose={key: stages.round2.steps, by: MRR@10, row: round2}"
    folder = tmp_path / "out" / "sweeps" / "toy"
    assert command(*swept).returncode == 0
    every = [row for row in json.loads((folder / "results.json").read_text()) if row["system"] == "round2"]
    scores: dict[str, list[float]] = {}
    for row in every:
        if row["split"] == "dev":
            scores.setdefault(row["settings"]["stages.round2.steps"][0], []).append(row["metrics"]["MRR@10"])
    best = max(scores, key=lambda steps: sum(scores[steps]))
    done = command(*swept, choose)
    assert done.returncode == 0, done.stderr
    rows = json.loads((folder / "results.json").read_text())
    chosen = [row for row in rows if row["system"] == "round2"]
    assert {row["row"] for row in chosen} == {"round2"}
    assert {row["artifact"] for row in chosen} == {
        row["artifact"] for row in every if row["settings"]["stages.round2.steps"] == [best]
    }
    assert {row["system"] for row in rows} == {"BM25", "plain", "better", "round2"}
    shown = ", ".join(f"{steps}: {50 * sum(values):.1f}" for steps, values in scores.items())
    said = f"Chosen by MRR@10 of round2 on dev: steps of all rows = {best} ({shown}, mean of 2 seeds)."
    for name in ("table.md", "table.tex", "index.html"):
        assert said.partition(" (")[0] in (folder / name).read_text()
    assert said in (folder / "table.md").read_text()
    assert said in " ".join(done.stdout.split())
    assert command(*swept, choose.replace(", row: round2", "")).returncode == 0
    each = json.loads((folder / "results.json").read_text())
    assert [{**row, "settings": {}} for row in each] == [{**row, "settings": {}} for row in rows], "only round2 changes"
    assert "of round2 on dev: steps of round2 = " in (folder / "table.md").read_text()
    without = command("-m", "stages.round2.steps=1,2", choose)
    rows = json.loads((folder / "results.json").read_text())
    assert {row["row"] for row in rows if row["system"] == "round2"} == {"steps=1 · round2", "steps=2 · round2"}
    assert "Not chosen: steps of all rows, because MRR@10 of round2 on dev" in " ".join(without.stdout.split())


@pytest.mark.parametrize(
    ("choose", "said"),
    [
        ("{key: stages.round2.stps}", "table.choose.key: the recipe has no key stages.round2.stps"),
        ("{key: stage.toy_train.stps}", "table.choose.key: the recipe has no key stage.toy_train.stps"),
        ("{key: steps}", "table.choose.key: "),
        ("{key: stages.round2.steps, row: BERT}", "table.choose: 'BERT' is not a row of the table"),
        ("{key: stages.round2.steps, by: MRR@11}", "table.choose: 'MRR@11' is not a metric of the table"),
        ("{row: plain}", "table.choose.key: "),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused_at_once(
    choose: str, said: str, command: Command, tmp_path: Path
) -> None:
    done = command(f"table.choose={choose}")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out" / "runs").exists()


def test_figures_leave_out_what_only_other_rows_were_made_by(tmp_path: Path) -> None:
    made, drawn = Made(tmp_path), []
    start = made.artifact("pretrain_mlm", "start", "encoder", {"steps": 1})
    for epochs, score in ((4, 0.4), (8, 0.5)):
        stages, rows = {"start": start}, {}
        for name in ("BERT", "Condenser"):
            end = f"{name}-{epochs}"
            init = {"init": ["pretrain_mlm/start"]}
            stages[f"{name}_tuned"] = made.artifact("finetune", end, "encoder", {"queries": 100}, **init)
            rows[name] = (made.artifact("evaluate", end, "evaluation", {}, index=[f"finetune/{end}"]), score)
        shown = frozenset(["BERT"] if epochs == 8 else ["Condenser"])
        drawn.append(FigureJob(made.job(str(epochs), stages, rows), "n=100", shown))
    assert [list(job.stages) for job in drawn] == [["start", "Condenser_tuned"], ["start", "BERT_tuned"]]
    figures, faults = draw_figures(read_figures({"size": {"kind": "score_by_size"}}), drawn, [], tmp_path)
    assert faults == []
    points = [(one["line"], one["x"], float(one["mean"])) for one in csv.DictReader(figures[0].paths["csv"].open())]
    assert sorted(points) == [("BERT", "100", 50.0), ("Condenser", "100", 40.0)]
    assert "same size" not in figures[0].caption
    several = [FigureJob(job.folder, f"epochs={number}") for number, job in enumerate(drawn)]
    figures, _ = draw_figures(read_figures({"size": {"kind": "score_by_size"}}), several, [], tmp_path)
    assert "Several settings have the same size: table.choose shows the best on dev." in figures[0].caption


@pytest.mark.slow
def test_a_real_sweep_over_epochs_on_sentences_has_one_point_a_size(tmp_path: Path) -> None:
    text = some_text(documents=24, paragraphs=6)
    given = [
        *("experiment=ablation/stsb", "data=documents", "logger=csv", f"output_root={tmp_path / 'out'}", *MODEL),
        f"data.root={write_articles(tmp_path / 'articles', text)}",
        f"stage.read_sts.root={write_stsb(tmp_path / 'stsb', text)}",
        *(f"stages.{name}{end}=null" for name in ("mlm", "condenser", "cocondenser") for end in ("", "_tuned")),
        *(f"stages.{name}_measured=null" for name in ("mlm", "condenser", "cocondenser")),
        *(f"~table.rows.{name}" for name in ("MLM", "Condenser", "coCondenser")),
        *("figures.score.split=test", "seed=1", "table.split=test,dev"),
    ]
    swept = ["++stage.finetune_sentences.examples=8,16", "stage.finetune_sentences.epochs=1,3"]
    choose = "table.choose={key: stage.finetune_sentences.epochs, row: warm start}"
    done = run_command("-m", *given, *swept, choose).sound()
    folder = tmp_path / "out" / "sweeps" / "ablation-stsb"
    dev: dict[int, dict[int, float]] = {8: {}, 16: {}}
    for run in (tmp_path / "out" / "runs").iterdir():
        tuning = OmegaConf.load(run / "config.yaml").stage.finetune_sentences
        for row in read_json(run / "results.json"):
            if (row["row"], row["split"]) == ("warm start", "dev"):
                dev[tuning.examples][tuning.epochs] = row["metrics"]["Spearman"]
    best = {size: max(scores, key=lambda epochs: scores[epochs]) for size, scores in dev.items()}
    said = " ".join(done.out.split())
    for size, scores in dev.items():
        shown = ", ".join(f"{epochs}: {100 * scores[epochs]:.1f}" for epochs in (1, 3))
        assert f"on dev: epochs of all rows (examples={size}) = {best[size]} ({shown})." in said
    rows = read_json(folder / "results.json")
    assert sorted((row["row"], row["split"]) for row in rows) == sorted(
        (f"examples={size} · {name}", split)
        for size in best
        for name in ("random init", "warm start")
        for split in ("dev", "test")
    )
    for row in rows:
        (size,) = row["settings"]["stage.finetune_sentences.examples"]
        assert row["settings"]["stage.finetune_sentences.epochs"] == [str(best[int(size)])]
    points = list(csv.DictReader((folder / "figures" / "score.csv").open()))
    assert sorted((one["line"], one["x"]) for one in points) == [
        (line, size) for line in ("random init", "warm start") for size in ("16", "8")
    ]
