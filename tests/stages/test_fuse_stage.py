"""Fusion from the command line: a row of its own, mined from and reranked; weights chosen, given or by default."""

import gzip
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from small_runs import (
    Done,
    artifact_files,
    half_written,
    metrics_of,
    run_command,
    some_text,
    write_beir,
    write_text_files,
)

from condensery.errors import DiskError
from condensery.retrieval.indexes import fusion
from condensery.stages.base import Artifact, retriever_name
from condensery.system.files import read_json

FUSED = "stages.fused={stage: fuse, retrievers: [bm25, round1]}"
ROW = "+table.rows.fused=fused"
LEXICAL = [  # a recipe that trains nothing
    "trainer=cpu",
    "logger=csv",
    "stages.corpus={stage: corpus}",
    "stages.short={stage: bm25}",
    "stages.long={stage: bm25, b: 0.9, k1: 2, stemmer: none}",
]


@pytest.fixture(scope="module")
def recipe(on_beir: list[str]) -> list[str]:
    small = "query_length: 16, length: 48, batch_size: 6, negatives_per_query: 2, steps: 2, epochs: null"
    return [
        "experiment=tiny",
        *on_beir,
        FUSED,
        ROW,
        "stages.on_dev={stage: evaluate, index: fused, split: dev, metrics: [MRR@10]}",
        "stages.given={stage: fuse, retrievers: [fused, bm25], method: reciprocal_rank, weights: [2, 0.5], depth: 50}",
        "+table.rows.given=given",
        "stages.fused_mined={stage: mine, retriever: fused, depth: 5}",
        f"stages.cross={{stage: train_cross_encoder, init: round1, negatives: [fused_mined], {small}}}",
        "stages.denoised={stage: denoise, negatives: fused_mined, cross_encoders: [cross]}",
        "stages.reranked={stage: rerank, retriever: fused, cross_encoders: [cross], depth: 7}",
        "+table.rows.reranked=reranked",
    ]


def store_of(finished: Done, folder: Path) -> Path:
    shutil.copytree(finished.folder.parents[1], folder, symlinks=True)
    return folder


@pytest.fixture(scope="module")
def done(recipe: list[str], finished: Done, tmp_path_factory: pytest.TempPathFactory) -> Done:
    store = store_of(finished, tmp_path_factory.mktemp("fused") / "out")
    return run_command(*recipe, f"output_root={store}").sound()


def stage(done: Done, name: str) -> Artifact:
    return Artifact((done.folder / "stages" / name).resolve())


def tags(run: Artifact) -> set[str]:
    with gzip.open(run.path / "run.trec.gz", "rt") as stream:
        return {line.split()[5] for line in stream}


def test_the_weights_are_those_of_the_highest_score_on_dev(done: Done) -> None:
    about, made = read_json(stage(done, "fused").path / "index.json"), stage(done, "fused")
    chosen = about["chosen"]
    assert (chosen["split"], chosen["metric"], chosen["queries"]) == ("dev", "MRR@10", 10)
    assert [point["weights"][0] for point in chosen["grid"]] == pytest.approx([number / 10 for number in range(11)])
    values = {tuple(point["weights"]): point["value"] for point in chosen["grid"]}
    assert len(set(values.values())) > 1, "a grid on which everything is equal shows nothing"
    assert values[tuple(about["weights"])] == max(values.values())
    assert made.manifest["metrics"] == {"weights": about["weights"], "chosen": chosen}
    assert about["members"] == [f"{found.kind}/{found.id}" for found in made.inputs("retrievers")]
    assert [found.kind for found in made.inputs("retrievers")] == ["bm25", "encode"], "the encoder is encoded first"
    measured = stage(done, "on_dev").manifest["metrics"]["MRR@10"]
    assert measured == pytest.approx(max(values.values()), abs=1e-12), "what was chosen by is what is measured"
    weights = about["weights"]
    score = (
        f"MRR@10 of 10 dev queries: {100 * measured:.1f} with the weights {weights[0]:g} bm25, {weights[1]:g} round1"
    )
    alone = f"(alone: bm25 {100 * values[1.0, 0.0]:.1f}, round1 {100 * values[0.0, 1.0]:.1f})"
    assert f"[fused] {score} {alone}\n" in done.out
    assert "[fused] with so few queries, chance decides; to set weights: stages.fused.weights\n" in done.out


def test_it_is_a_row_mined_from_and_reranked_and_named_as_what_made_them(done: Done) -> None:
    rows = metrics_of(done.folder)
    assert list(rows)[-3:] == ["fused", "given", "reranked"]
    fused = f"fuse/{stage(done, 'fused').id}"
    assert tags(stage(done, "fused.evaluation")) == {fused}
    assert tags(stage(done, "reranked.evaluation")) == {fused}
    assert read_json(stage(done, "fused_mined").path / "negatives.json")["made_by"] == fused
    assert tags(stage(done, "given.evaluation")) == {f"fuse/{stage(done, 'given').id}"}
    encoder = stage(done, "round1")
    assert retriever_name(stage(done, "round1.index")) == f"{encoder.kind}/{encoder.id}"
    assert retriever_name(stage(done, "bm25")) == f"bm25/{stage(done, 'bm25').id}"
    assert stage(done, "denoised").manifest["metrics"]["queries"] > 0


def test_given_weights_are_taken_as_they_are(done: Done) -> None:
    about = read_json(stage(done, "given").path / "index.json")
    assert (about["fusion"], about["weights"], about["depth"], about["chosen"]) == (
        "reciprocal_rank", [2.0, 0.5], 50, None
    )  # fmt: skip


def test_killed_while_it_measures_it_ends_with_the_same_bytes(
    done: Done, recipe: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, weighted_sum, calls = tmp_path / "out", fusion.weighted_sum, 0
    shutil.copytree(done.folder.parents[1], root, symlinks=True)
    shutil.rmtree(root / "artifacts" / "fuse")

    def stopping(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls in (4, 4 + 11 + 2):  # at a point of the grid
            raise DiskError("stopped")
        return weighted_sum(*arguments)

    monkeypatch.setattr(fusion, "weighted_sum", stopping)
    arguments = [*recipe, f"output_root={root}"]
    assert run_command(*arguments).code != 0
    assert not half_written(root)
    again = run_command(*arguments).sound()
    assert again.computed == ["fused", "given"]
    mine, wanted = artifact_files(again.folder), artifact_files(done.folder)
    assert [name for name in wanted if mine.get(name) != wanted[name]] == []


@pytest.mark.parametrize("source", ["no queries", "no dev"])
def test_without_dev_queries_all_weigh_the_same_and_a_line_says_so(source: str, tmp_path: Path) -> None:
    data = ["data=beir", "data.dev_queries=0", "data.splits.dev=null"] if source == "no dev" else ["data=text"]
    write = write_beir if source == "no dev" else write_text_files
    write(tmp_path / "data", some_text(documents=6))
    fused = "stages.fused={stage: fuse, retrievers: [short, long]}"
    row = ["+table.rows.fused=fused"] if source == "no dev" else []
    arguments = [*LEXICAL, *data, f"data.root={tmp_path / 'data'}", fused, *row, f"output_root={tmp_path / 'out'}"]
    done = run_command(*arguments).sound()
    about, name = read_json(stage(done, "fused").path / "index.json"), "beir" if row else "text"
    assert (about["weights"], about["chosen"]) == ([0.5, 0.5], None)
    line = f"[fused] the collection {name} has no dev queries to choose weights by, so the weights are 0.5 short, 0.5 long;"
    assert done.out.count(line) == 1
    assert "stages.fused.weights" in done.out
    assert ("fused" in json.dumps(metrics_of(done.folder))) == bool(row)


def test_too_few_queries_to_choose_by_leave_the_weights_that_are_given_for_it(tmp_path: Path) -> None:
    write_beir(tmp_path / "data", some_text(documents=6))
    given = [*LEXICAL, "data=beir", f"data.root={tmp_path / 'data'}", f"output_root={tmp_path / 'out'}"]
    fused = "{stage: fuse, retrievers: [short, long], otherwise: [0.7, 0.3]"
    few, enough = (f"stages.{name}={fused}, least_queries: {least}}}" for name, least in (("few", 99), ("enough", 1)))
    done = run_command(*given, few, enough).sound()
    about = read_json(stage(done, "few").path / "index.json")
    assert (about["weights"], about["chosen"]) == ([0.7, 0.3], None)
    assert read_json(stage(done, "enough").path / "index.json")["chosen"] is not None
    assert re.search(
        r"\[few\] the collection beir has only (1 dev query|\d+ dev queries) to choose weights by,"
        r" so the weights are 0.7 short",
        done.out,
    )


def test_a_dry_run_shows_what_is_encoded_for_it(on_beir: list[str], tmp_path: Path) -> None:
    out = run_command("experiment=tiny", *on_beir, FUSED, "dry_run=plan", f"output_root={tmp_path}").sound().out
    assert out.index("round1.index") < out.index("fused")


BAD = {
    "retrievers: [bm25]": "stages.fused.retrievers: must have at least 2 item(s)",
    "retrievers: [bm25, corpus]": "stages.fused.retrievers: the stage 'corpus' makes corpus, but index is needed here",
    "retrievers: [bm25, round7]": "stages.fused.retrievers: no stage is named 'round7'",
    "weights: [1]": "stages.fused.weights: 1 weights for 2 retrievers",
    "otherwise: [1]": "stages.fused.otherwise: 1 weights for 2 retrievers",
    "weights: [1, -0.5]": "stages.fused.weights[1]: must be >= 0",
    "weights: [0, 0]": "stages.fused.weights: all weights are 0",
    "metric: MRX@10": "stages.fused.metric: metric 'MRX@10' does not exist",
    "metric: Hit@20": "stages.fused.metric: Hit@20 needs answers; the split dev of the collection beir has none",
    "depth: 5": "stages.fused.depth: 5 passages are too few for MRR@10, by which weights are chosen",
    "depth: 0": "depth: must be >= 1",
    "grid: 0.3": "stages.fused.grid: must divide 1 without a remainder",
    "grid: 0.0004": "stages.fused.grid: 2,501 combinations of 2 weights would be tried, more than 2,000",
    "method: mean": "stages.fused.method: must be 'weighted' or 'reciprocal_rank'",
    "retrievers: [bm25, other]": (
        "stages.fused.retrievers: other ranks only for the queries of test, so weights cannot be chosen on dev"
    ),
}


@pytest.mark.parametrize("setting", BAD)
def test_what_cannot_be_is_one_line(setting: str, on_beir: list[str], tmp_path: Path) -> None:
    settings = {"retrievers": "[bm25, round1]", **dict([setting.split(": ", 1)])}
    fused = ", ".join(f"{key}: {value}" for key, value in settings.items())
    other = "stages.other={stage: rerank, retriever: bm25, cross_encoders: [cross]}"
    cross = "stages.cross={stage: train_cross_encoder, init: backbone, length: 48}"
    done = run_command(
        "experiment=tiny", *on_beir, cross, other, f"stages.fused={{stage: fuse, {fused}}}", "dry_run=plan",
        f"output_root={tmp_path}",
    )  # fmt: skip
    assert done.code == 1, done.out
    assert BAD[setting] in done.err
    assert done.err.count("\n") == 1
