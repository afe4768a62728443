"""The studies in experiments/: their tables show the results that lie beside them, each with the artifact it comes from."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from forked import run_script
from small_runs import some_text, write_beir

from condensery.evaluation.metrics import Evaluation
from condensery.evaluation.significance import interval, randomisation_test
from condensery.reporting.results import Row, read_results, write_results
from condensery.reporting.table import build_table
from condensery.text.records import Passage, Query
from condensery.text.to_collection import collection_of
from condensery.text.writer import CollectionWriter

EXPERIMENTS = Path(__file__).resolve().parents[1] / "experiments"
RESULTS = sorted(EXPERIMENTS.glob("**/results*.json"))


def cells_of(text: str) -> dict[str, list[str]]:
    """The lines of all Markdown tables of a page: name -> cells without marks, of all lines that begin so."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("|"):
            name, *cells = (cell.strip().replace("*", "").replace("†", "") for cell in line.strip("| ").split("|"))
            found.setdefault(name, []).extend(cells)
    return found


@pytest.mark.parametrize("results", RESULTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_studys_table_shows_its_results_and_each_has_an_artifact(results: Path) -> None:
    rows = read_results(results)
    assert all(re.fullmatch(r"evaluate(_sentences)?/[0-9a-f]{16}", row.artifact) for row in rows)
    shown, table = cells_of((results.parent / "README.md").read_text(encoding="utf-8")), build_table(rows)
    for name, cells in zip(table.names, table.cells, strict=True):
        assert name in shown
        assert [cell.text for cell in cells if cell.text not in shown[name]] == [], name


@pytest.mark.parametrize(("by", "column", "texts"), [("query", 0, "corpus.jsonl"), ("corpus", 1, "documents.jsonl")])
def test_judgements_are_split_by_query_or_by_judged_text(by: str, column: int, texts: str, tmp_path: Path) -> None:
    judged = [f"q{at // 2}\tp{at // 3}\t1" for at in range(600)]
    (tmp_path / "in" / "qrels").mkdir(parents=True)
    (tmp_path / "in" / "qrels" / "all.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]))
    for stem in (texts, "queries.jsonl"):
        (tmp_path / "in" / stem).write_text(f"{stem}\n")
    program = EXPERIMENTS / "split.py"
    command = [sys.executable, str(program), str(tmp_path / "in"), "all", str(tmp_path / "out"), by]
    subprocess.run(command, check=True, capture_output=True)
    parts = [(tmp_path / "out" / "qrels" / f"{name}.tsv").read_text().splitlines()[1:] for name in ("train", "test")]
    assert sorted([*parts[0], *parts[1]]) == sorted(judged)
    named = [{line.split("\t")[column] for line in part} for part in parts]
    assert not named[0] & named[1]
    assert 60 < len(parts[1]) < 160
    assert (tmp_path / "out" / texts).read_text() == f"{texts}\n"
    missing = subprocess.run([*command[:3], "none", *command[4:]], capture_output=True, text=True)
    assert missing.returncode == 1
    assert missing.stderr == f"error: {tmp_path / 'in' / 'qrels' / 'none.tsv'}: No such file or directory\n"


def test_the_differences_of_a_page_are_those_of_the_queries_of_its_rows(tmp_path: Path) -> None:
    """Of two rows, and of two leads, whose rows have the same seeds."""
    rng = np.random.default_rng(1)
    ids, entries = [f"q{at:02}" for at in range(50)], []
    values = {name: rng.random((2, 50)) + shift for name, shift in (("ours", 0.2), ("theirs", 0.0), ("few, ours", 0.5))}
    values["few, theirs"] = rng.random((1, 50))
    values["other seeds"] = rng.random((2, 50))
    for name, seeds in values.items():
        for seed, scores in enumerate(seeds):
            folder = tmp_path / "evaluate" / f"{name}{seed}"
            folder.mkdir(parents=True)
            Evaluation(ids, {"MRR@10": scores}).save(folder / "evaluation.npz")
            metrics = {"MRR@10": float(scores.mean())}
            seed += 5 * (name == "other seeds")
            entries.append(Row(name, "some", "test", metrics, seed=seed, artifact=f"evaluate/{folder.name}"))
    write_results(tmp_path / "results.json", entries)
    command = [EXPERIMENTS / "differences.py", tmp_path / "results.json", tmp_path]
    leads = (values["few, ours"] - values["few, theirs"]) - (values["ours"] - values["theirs"])
    wanted = {
        ("ours", "theirs"): (values["ours"], values["theirs"]),
        ("few, ours - few, theirs", "ours - theirs"): (leads, np.zeros((1, 50))),
    }
    pairs = [" :: ".join(pair) for pair in wanted]
    done = run_script(*command, "MRR@10", *pairs)
    assert done.returncode == 0, done.stderr
    for line, ((system, baseline), (ours, theirs)) in zip(done.stdout.splitlines()[2:], wanted.items(), strict=True):
        name, against, mean, low_high, p = line.strip("| ").split(" | ")
        where = interval(ours, theirs)
        assert (name, against) == (system, f"against {baseline}")
        assert mean == f"{100 * (ours.mean() - theirs.mean()):+.1f}"
        assert low_high == f"{100 * where.low:.1f} to {100 * where.high:.1f}"
        assert float(p) == pytest.approx(randomisation_test(ours.mean(axis=0) - theirs.mean(axis=0)), abs=5e-5)
    for pair in (
        "ours :: others",
        "ours",
        "ours :: theirs :: ours",
        "ours - theirs :: ours",
        "ours - others :: ours - theirs",
    ):
        wrong = run_script(*command, "MRR@10", pair)
        assert (wrong.returncode, wrong.stdout) == (1, "")
        named = sorted(values)
        assert wrong.stderr == f"error: {pair!r}: two rows with :: between them, or two leads; there are {named}\n"
    wrong = run_script(*command, "MRR@10", "other seeds - theirs :: ours - theirs")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr.endswith("leads are of rows with the same seeds; these have [(0, 1), (5, 6)]\n")


def test_queries_are_grouped_by_the_words_that_their_passage_has(tmp_path: Path) -> None:
    """Porter's stems without stop words: a half of the first ten queries' terms, all of the next, none of the last."""
    texts = {"half": "The pumps of a mill", "all": "How pumping stations work", "none": "Nothing of that"}
    answers = {f"q{at:02}": name for at, name in enumerate(name for name in texts for _ in range(10))}
    with CollectionWriter(tmp_path / "corpus" / "c", "mills") as writer:
        for query, answer in answers.items():
            writer.add_judgement("test", query, answer, 1)
            if answer == "all":  # of several passages that with the most terms counts
                writer.add_judgement("test", query, "none", 1)
            writer.add_query(Query(query, "the pump station"))
        writer.add_judgement("train", "t0", "half", 1)
        writer.add_query(Query("t0", "which pumps"))
        for name, text in texts.items():
            writer.add_passage(Passage(name, "", text))
    ids = sorted(answers)
    values = {"ours": np.array([1.0 if answers[query] == "none" else 0.5 for query in ids]), "BM25": np.full(30, 0.75)}
    entries = []
    for name, scores in values.items():
        artifact = tmp_path / "evaluate" / name
        artifact.mkdir(parents=True)
        Evaluation(ids, {"MRR@10": scores}).save(artifact / "evaluation.npz")
        manifest = {"config": {"split": "test"}, "inputs": {"corpus": ["corpus/c"]}}
        (artifact / "manifest.json").write_text(json.dumps(manifest))
        entries.append(Row(name, "some", "test", {"MRR@10": float(scores.mean())}, artifact=f"evaluate/{name}"))
    write_results(tmp_path / "results.json", entries)
    command = [EXPERIMENTS / "by_overlap.py", tmp_path / "results.json", tmp_path, "MRR@10"]
    done = run_script(*command, "ours :: BM25")
    assert done.returncode == 0, done.stderr
    lines = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:-2]]
    assert done.stdout.splitlines()[-1] == "A passage has 50 of 100 terms of its query in the mean."
    assert [line[:7] for line in lines] == [
        ["0 to 20 %", "10", "ours", "BM25", "100.0", "75.0", "+25.0"],
        ["40 to 60 %", "10", "ours", "BM25", "50.0", "75.0", "-25.0"],
        ["80 to 100 %", "10", "ours", "BM25", "50.0", "75.0", "-25.0"],
    ]
    done = run_script(*command, "ours :: BM25", "by=training")
    lines = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:-2]]
    assert [line[:7] for line in lines] == [
        ["is relevant to a training query", "10", "ours", "BM25", "50.0", "75.0", "-25.0"],
        ["is not", "20", "ours", "BM25", "75.0", "75.0", "+0.0"],
    ]
    wrong = run_script(*command, "ours :: BM25", "by=chance")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr == "error: by=chance: words or training is expected\n"
    wrong = run_script(*command, "ours :: others")
    told = "error: 'ours :: others': two rows with :: between them; there are ['BM25', 'ours']\n"
    assert (wrong.returncode, wrong.stdout, wrong.stderr) == (1, "", told)
    unmeasured = run_script(*command[:-1], "NDCG@3", "ours :: BM25")
    told = "error: NDCG@3 was not measured; there are ['MRR@10']\n"
    assert (unmeasured.returncode, unmeasured.stdout, unmeasured.stderr) == (1, "", told)


def test_the_studies_are_found() -> None:
    assert RESULTS


def test_a_sample_has_what_is_relevant_to_its_queries(tmp_path: Path) -> None:
    data = write_beir(tmp_path, some_text(documents=20))
    command = [EXPERIMENTS / "sample.py", data, tmp_path / "out", "passages=12", "test=3"]
    done = run_script(*command)
    assert done.returncode == 0, done.stderr
    sample, whole = collection_of(tmp_path / "out"), collection_of(data)
    assert len(sample.qrels("test").positives()) == 3
    assert len(sample.passages) >= 12
    asked = dict(zip(whole.queries.column("id"), whole.queries.column("text"), strict=True))
    for split in sample.splits:
        judged, of_whole = sample.qrels(split).positives(), whole.qrels(split).positives()
        names = {whole.queries.column("id")[row]: rows for row, rows in of_whole.items()}
        for row, rows in judged.items():
            name = sample.queries.column("id")[row]
            assert sample.queries.column("text")[row] == asked[name]
            wanted = {whole.passages.column("id")[int(one)] for one in names[name]}
            assert {sample.passages.column("id")[int(one)] for one in rows} == wanted
    again = run_script(*command)
    assert again.returncode == 1
    assert "it is there already" in again.stderr
