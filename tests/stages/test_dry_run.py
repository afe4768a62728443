"""What a dry run says that a recipe will take, before anything is computed and after some of it was."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from error_lines import names
from small_runs import MODEL, Done, amount, costs, run_command

from condensery.pipeline.dry_run import costs as dry_run_costs
from condensery.pipeline.dry_run.costs import number


def test_before_anything_is_there_the_sizes_are_those_of_the_files(on_beir: list[str], tmp_path: Path) -> None:
    done = run_command("experiment=tiny", *on_beir, "dry_run=plan", f"output_root={tmp_path}").sound()
    found = costs(done.out)
    steps, tokens, flops, disk, hours = found["cocondenser"]
    assert int(steps) > 0
    assert amount(tokens) > 0
    assert amount(flops) > 100 * amount(tokens)
    assert amount(disk) > 1e4
    assert hours != "?"
    assert not [*tmp_path.iterdir()]


def test_what_it_expects_is_near_what_is_then_made(finished: Done, on_beir: list[str], tmp_path: Path) -> None:
    done = run_command("experiment=tiny", *on_beir, "dry_run=plan", f"output_root={tmp_path}").sound()
    expected = costs(done.out)
    for link in sorted((finished.folder / "stages").iterdir()):
        manifest = json.loads((link / "manifest.json").read_text())
        if "train/tokens" in manifest["metrics"]:
            assert amount(expected[link.name][1]) == pytest.approx(manifest["metrics"]["train/tokens"], rel=0.5)
        if manifest["kind"] in ("encode", "pretrain_cocondenser", "finetune"):
            assert amount(expected[link.name][3]) == pytest.approx(sum(manifest["files"].values()), rel=0.6), link.name


def of_thirty_queries(tmp_path: Path, *finetune: str) -> list[str]:
    """What is expected of a fine-tuning of two epochs on thirty queries with three positives each."""
    (tmp_path / "qrels").mkdir(exist_ok=True)
    for name in ("corpus", "queries"):
        lines = (json.dumps({"_id": f"{name}{at}", "text": f"some words and {at}"}) for at in range(90))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    for split in ("train", "dev", "test"):
        lines = (f"queries{at}\tcorpus{3 * at + more}\t1\n" for at in range(30) for more in range(3))
        (tmp_path / f"qrels/{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    given = ["experiment=tiny", "data=beir", f"data.root={tmp_path}", "data.splits.dev=dev", "dry_run=plan"]
    given += [
        "stage.finetune.epochs=2",
        *(f"stage.finetune.{one}" for one in finetune),
        f"output_root={tmp_path / 'out'}",
    ]
    return costs(run_command(*given).sound().out)["round1"]


def test_an_epoch_of_each_positive_counts_pairs(tmp_path: Path) -> None:
    for positives, steps in (("one", 6), ("each", 18)):
        found = of_thirty_queries(tmp_path, "batch_size=10", f"positives={positives}")
        assert int(found[0]) == pytest.approx(steps, abs=1), positives


def test_a_batch_of_more_queries_than_there_are_counts_those_that_there_are(tmp_path: Path) -> None:
    assert of_thirty_queries(tmp_path, "batch_size=64") == of_thirty_queries(tmp_path, "batch_size=30")
    steps, tokens, *_ = of_thirty_queries(tmp_path, "batch_size=64", "train_queries=15")
    half = amount(of_thirty_queries(tmp_path, "batch_size=15")[1]) / 2
    assert (steps, amount(tokens)) == ("2", pytest.approx(half, rel=0.05)), "the number of queries is an estimate"


def test_what_is_there_is_not_asked_for_again(finished: Done, on_beir: list[str]) -> None:
    root = f"output_root={finished.folder.parents[1]}"
    done = run_command("experiment=tiny", *on_beir, "dry_run=true", root).sound()
    assert "to be made" not in done.out
    assert re.search(r"│ corpus +│ corpus +│ [0-9a-f]{16} │ exists", done.out)
    changed = run_command("experiment=tiny", *on_beir, "dry_run=plan", root, "stages.round2.steps=77").sound()
    found = costs(changed.out)
    assert found["round2"][0] == "77"
    assert "round1" not in found
    assert "waits for round2.index" in changed.out


def test_the_hours_here_are_measured(on_beir: list[str], tmp_path: Path) -> None:
    given = ["experiment=tiny", *on_beir, *MODEL, "dry_run=true", "dry_run_gpu=v100", f"output_root={tmp_path}"]
    done = run_command(*given).sound()
    assert re.search(r"┃ +here +┃ +v100 +┃", done.out)
    *_, here, there = costs(done.out)["cocondenser"]
    assert re.fullmatch(r"[\d.]+ (s|min|h)", here)
    assert here != there


@pytest.mark.parametrize("free", [10**3, 10**15])
def test_a_disk_that_is_too_small_is_named(
    free: int, on_beir: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_run_costs.shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    done = run_command("experiment=tiny", *on_beir, "dry_run=plan", f"output_root={tmp_path / 'out'}").sound()
    (line,) = [line for line in done.out.splitlines() if line.startswith("free disk")]
    found = re.search(
        r" at (\S+?)(?:; ([\d.]+ [kMG]?)B are needed, set output_root to a folder on a larger disk)?$", line
    )
    assert found is not None, line
    assert found[1] == str(tmp_path)
    assert (found[2] is not None) == (free == 10**3)
    if found[2]:
        assert amount(found[2]) == pytest.approx(amount(costs(done.out)["in all"][3].rstrip("+")), rel=0.01)


@pytest.mark.parametrize("recipe", ["cocondenser_msmarco", "query_as_context_msmarco"])
def test_a_known_collection_is_planned_without_its_files(recipe: str, tmp_path: Path) -> None:
    given = f"experiment={recipe}", f"data.root={tmp_path / 'data'}", "dry_run=plan", f"output_root={tmp_path}"
    (tmp_path / "data").mkdir()
    done = run_command(*given)
    assert done.code == 1, "it could not run"
    names(done.err, "data.root", "collection.tsv")
    found = costs(done.out)
    assert "?" not in [cell for row in found.values() for cell in row]
    assert amount(found["round1.index" if "round1" in found else "spans_round1.index"][3]) == pytest.approx(
        29e9, rel=0.05
    )
    assert "the paper: " in done.out


def test_texts_of_ones_own_are_counted_by_their_bytes(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("Some words stand here. " * 5_000 + "\n")
    given = f"data.root={tmp_path / 'text'}", "dry_run=plan", f"output_root={tmp_path / 'out'}"
    found = costs(run_command("experiment=cocondenser_local", "data=text", *given).sound().out)
    assert amount(found["tokens"][3]) == pytest.approx(2 * 5_000 * 5, rel=0.3)


def test_a_pair_that_a_cross_encoder_reads_is_counted_wherever_it_comes_from(
    on_beir: list[str], tmp_path: Path
) -> None:
    given = [*on_beir, *MODEL, "data.unlabelled_queries=10", "stage.mine.depth=7", f"output_root={tmp_path}"]
    found = costs(run_command("experiment=ablation/rocketqa", *given, "dry_run=plan", "seed=1").sound().out)
    mined, labelled = amount(found["denoised"][1]), amount(found["augmented"][1])
    judged = mined / labelled * (10 * 20) / 7
    assert judged == pytest.approx(30, abs=1.5), "of forty training queries ten lost their judgements"


def test_queries_that_are_held_out_are_counted_before_they_are(on_beir: list[str], tmp_path: Path) -> None:
    given = [*on_beir[:2], "data.dev_queries=3", "data.splits.dev=null", "dry_run=plan", f"output_root={tmp_path}"]
    done = run_command("-m", "experiment=ablation/pretraining_steps", *given, "seed=1").sound()
    assert "unknown before the run" not in done.out, "weights of a fusion are chosen by dev queries"


def test_a_gpu_that_is_not_known_is_named(tmp_path: Path) -> None:
    done = run_command("experiment=quickstart", "dry_run=plan", "dry_run_gpu=h10", f"output_root={tmp_path}")
    names(done.err, "dry_run_gpu", "'h10'", "h100", "a100")


def test_what_the_jobs_of_a_sweep_share_is_counted_once(on_beir: list[str], tmp_path: Path) -> None:
    given = [*on_beir, "dry_run=plan", f"output_root={tmp_path}"]
    one = costs(run_command("experiment=tiny", *given).sound().out)["in all"]
    done = run_command("-m", "experiment=tiny", *given, "++stage.evaluate.metrics=[MRR@10],[MRR@10,Recall@100]").sound()
    _, _, end = done.out.partition("2 jobs; shared stages count once")
    tokens, flops, disk, _ = (cell.strip() for cell in end.splitlines()[4].strip("│").split("│"))
    assert [tokens, amount(flops)] == [one[1], pytest.approx(amount(one[2]), rel=0.01)], "evaluations read no tokens"
    assert amount(one[3]) < amount(disk) < 1.9 * amount(one[3])
    assert not [*tmp_path.iterdir()]


def test_a_sweep_over_files_that_are_missing_is_planned_too(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    given = ["experiment=cocondenser_msmarco", f"data.root={tmp_path / 'data'}", f"output_root={tmp_path / 'out'}"]
    done = run_command("-m", *given, "seed=1,2", "dry_run=plan")
    assert done.code == 1
    assert "2 jobs; shared stages count once" in done.out
    assert "2 of 2 jobs failed" in done.err.splitlines()[-1]
    assert "collection.tsv" in done.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(999, "999 "), (1000, "1 k"), (999_499, "999 k"), (999_937, "1 M"), (1.5e12, "1.5 T"), (None, "?")],
)
def test_numbers_have_three_digits_and_the_prefix_of_what_is_shown(value: float | None, wanted: str) -> None:
    assert number(value) == wanted
