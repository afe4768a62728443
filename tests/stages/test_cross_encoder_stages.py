"""Reranking, denoising and augmentation from the command line: what they make, what is kept, what people get wrong."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import CONF, PROJECT, Done, artifact_files, half_written, metrics_of, run_command

from condensery.errors import DiskError, UserError
from condensery.retrieval.denoising import probabilities
from condensery.retrieval.negatives import read_negatives
from condensery.retrieval.runs import read_run
from condensery.stages.base import Artifact
from condensery.stages.scoring import scoring
from condensery.system.files import read_json
from condensery.text.collection import Collection

ALONE = [  # the members of the ensemble by themselves
    f"stages.alone{number}={{stage: rerank, retriever: round1, cross_encoders: [{name}]}}"
    for number, name in enumerate(("cross_encoder", "other"))
]


@pytest.fixture(scope="module")
def recipe(on_beir: list[str]) -> list[str]:
    return ["experiment=reranked", *on_beir, *ALONE]


@pytest.fixture(scope="module")
def done(recipe: list[str], tmp_path_factory: pytest.TempPathFactory) -> Done:
    return run_command(*recipe, f"output_root={tmp_path_factory.mktemp('reranked')}").sound()


def stage(done: Done, name: str) -> Artifact:
    return Artifact((done.folder / "stages" / name).resolve())


def collection_of(done: Done) -> Collection:
    return Collection(stage(done, "corpus").path)


def test_every_row_is_in_the_table(done: Done) -> None:
    assert list(metrics_of(done.folder)) == ["BM25", "coCondenser", "BM25, reranked", "ensemble", "RocketQA"]


def test_reranking_keeps_the_candidates_and_orders_them_by_score(done: Done) -> None:
    collection, made = collection_of(done), stage(done, "reranked")
    before = read_run(stage(done, "bm25.evaluation").path / "run.trec.gz", collection)
    after = read_run(stage(done, "reranked.evaluation").path / "run.trec.gz", collection)
    assert after.query_rows.tolist() == collection.qrels("test").query_set.tolist()
    changed = 0
    for one, other in zip(before.passage_rows[:, :12], after.passage_rows, strict=True):
        assert set(other[other >= 0]) == set(one[one >= 0])
        changed += one[one >= 0].tolist() != other[other >= 0].tolist()
    assert changed
    assert read_json(made.path / "index.json") == {
        "method": "rerank", "passages": 120, "split": "test", "queries": 10, "depth": 12
    }  # fmt: skip


def test_the_cross_encoder_is_validated_on_dev_queries(done: Done) -> None:
    assert 0.1 <= stage(done, "cross_encoder").manifest["metrics"]["val/mrr@10"] <= 1


def test_the_ensemble_is_the_mean_of_its_members(done: Done) -> None:
    arrays = [
        {file: np.load(stage(done, name).path / file) for file in ("candidates.npy", "scores.npy")}
        for name in ("ensemble", "alone0", "alone1")
    ]
    assert all(np.array_equal(found["candidates.npy"], arrays[0]["candidates.npy"]) for found in arrays)
    both, one, other = (found["scores.npy"] for found in arrays)
    np.testing.assert_allclose(both, (one + other) / 2, rtol=1e-5, atol=1e-6)
    assert not np.allclose(one, other, atol=1e-3)


def test_denoised_negatives_are_the_unlikely_ones_and_remember_where_they_come_from(done: Done) -> None:
    collection, made = collection_of(done), stage(done, "denoised")
    mined = read_negatives(made.input("negatives").path / "negatives.jsonl", collection)
    kept = read_negatives(made.path / "negatives.jsonl", collection)
    likely = probabilities(np.load(made.path / "scores.npy"))
    for row in range(len(mined.query_rows)):
        wanted = mined.passage_rows[row][(mined.passage_rows[row] >= 0) & (likely[row] < 0.32)]
        assert kept.passage_rows[row][kept.passage_rows[row] >= 0].tolist() == wanted.tolist()
    counts = made.manifest["metrics"]
    assert 0 < counts["negatives"] == kept.counts.sum() < mined.counts.sum()
    assert counts["left_out"] == mined.counts.sum() - kept.counts.sum()
    assert made.input("negatives").input("retriever").kind == "bm25"
    assert made.input("cross_encoders").id == stage(done, "cross_encoder").id


def test_augmentation_labels_the_queries_whose_judgements_were_set_aside(done: Done, beir: Path) -> None:
    collection, made = collection_of(done), stage(done, "augmented")
    unjudged = collection.unjudged()
    assert len(unjudged) == 12
    of_files = (beir / "qrels" / "train.tsv").read_text()
    assert all(f"{collection.queries.ids[row]}\t" in of_files for row in unjudged.tolist())
    labels = [json.loads(line) for line in (made.path / "labels.jsonl").read_text().splitlines()]
    rows = collection.queries.rows_of([line["query_id"] for line in labels])
    assert len(rows) > 0
    assert set(rows.tolist()) <= set(unjudged.tolist())
    likely, candidates = probabilities(np.load(made.path / "scores.npy")), np.load(made.path / "candidates.npy")
    names = collection.passages.ids
    for row, line in zip(rows.tolist(), labels, strict=True):
        place = unjudged.tolist().index(row)
        for field, wanted in (("positive_ids", likely[place] > 0.345), ("negative_ids", likely[place] < 0.3)):
            assert line[field] == [names[passage] for passage in candidates[place][wanted].tolist()]
    trained = stage(done, "rocketqa").manifest["metrics"]["queries"]
    assert trained == len(collection.qrels("train").query_set) + len(rows)
    assert stage(done, "round1").manifest["metrics"]["queries"] == len(collection.qrels("train").query_set)


def test_a_rerank_that_was_interrupted_goes_on_and_ends_with_the_same_bits(
    done: Done, recipe: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, real, shards = tmp_path / "out", scoring.logits, 0
    shutil.copytree(done.folder.parents[1], root, symlinks=True)
    for kind in ("rerank", "denoise", "pseudo_label"):
        shutil.rmtree(root / "artifacts" / kind)

    def stopping(*scorers: Any) -> Any:
        def score(*pairs: Any) -> Any:
            nonlocal shards
            shards += 1
            if shards in (2, 5):
                raise DiskError("stopped")  # what ends a run at once
            return real(*scorers)(*pairs)

        return score

    monkeypatch.setattr(scoring, "logits", stopping)
    arguments = [*recipe, f"output_root={root}"]
    for _ in range(2):
        assert run_command(*arguments).code != 0
        assert not half_written(root)
    again = run_command(*arguments).sound()
    assert again.computed == ["ensemble", "denoised", "augmented", "alone0", "alone1"]
    # 10 queries in shards of 4: three for each rerank; two for denoise, three for augment; and two were stopped
    assert shards == 4 * 3 + 2 + 3 + 2
    mine, wanted = artifact_files(again.folder), artifact_files(done.folder)
    assert mine.keys() == wanted.keys()
    assert [name for name in wanted if mine[name] != wanted[name]] == []


def test_ask_searches_what_was_reranked(recipe: list[str], done: Done) -> None:
    rows = ["table.rows={BM25: bm25, reranked: reranked}"]
    found = run_command(*recipe, *rows, f"output_root={done.folder.parents[1]}", "ask=what about it").sound()
    assert "found by" in found.out


BAD: dict[str, tuple[list[str], list[str]]] = {
    "no cross-encoder": (["stages.reranked.cross_encoders=[]"], ["stages.reranked.cross_encoders: must have at least"]),
    "not a cross-encoder": (
        ["stages.reranked.cross_encoders=[round1]"],
        ["stages.reranked.cross_encoders: the stage 'round1' makes encoder, but cross_encoder is needed here"],
    ),
    "a cross-encoder as a row": (
        ["table.rows.x=cross_encoder"],
        ["'cross_encoder' makes cross_encoder, but evaluation"],
    ),
    "a split that is not there": (["data.splits.test=null"], ["the collection beir has no such split"]),
    "a threshold of 2": (["stages.denoised.below=2"], ["stages.denoised.below: must be <= 1, got 2"]),
    "thresholds the wrong way round": (
        ["stages.augmented.positive=0.2"],
        ["negative=0.3 is above positive=0.2; lower negative"],
    ),
    "listwise scores as probabilities": (
        ["stages.cross_encoder.loss=listwise"],
        ["cross_encoders: thresholds need probabilities", "set its loss to pointwise"],
    ),
    "an unknown loss": (["stages.cross_encoder.loss=pairwise"], ["stages.cross_encoder.loss"]),
    "no query without judgement": (
        ["data.unlabelled_queries=0"],
        ["all queries of the collection beir are judged; set data.unlabelled_queries"],
    ),
    "an unknown word for unlabelled queries": (["data.unlabelled_queries=all"], ["data.unlabelled_queries"]),
    "rows beyond the positions": (
        ["stages.other.length=65"],
        ["stages.other: length=65 is longer than the backbone's 64 positions"],
    ),
    "no room for a passage": (["stages.other.query_length=46"], ["query_length=46 leaves no room for a passage"]),
    "labels that are none": (
        ["stages.rocketqa.labels=[denoised]"],
        ["'denoised' makes negatives, but labels is needed"],
    ),
    "no negatives": (["stages.other.negatives_per_query=0"], ["stages.other.negatives_per_query: must be >= 1"]),
}


@pytest.mark.parametrize("name", BAD)
def test_a_fault_of_the_config_is_named_with_its_key(name: str, recipe: list[str], tmp_path: Path) -> None:
    overrides, wanted = BAD[name]
    failed = run_command(*recipe, *overrides, f"output_root={tmp_path}")
    assert failed.code == 1, failed.out
    assert failed.err.startswith("error: ")
    assert failed.err.count("\n") == 1, failed.err
    assert all(words in failed.err for words in wanted), failed.err
    assert not list(tmp_path.glob("artifacts/*/*/manifest.json")), "found only after work was done"


LATE: dict[str, tuple[list[str], list[str]]] = {
    "more negatives than passages": (
        ["stages.other.negatives_per_query=200"],
        ["stages.other.negatives_per_query: 200, but up to 1 of 120 passages cannot be negatives"],
    ),
    "queries that were not reranked": (
        ["table.split=dev", "stage.rerank.split=test", "~table.rows.ensemble"],
        ["was not reranked (only those of the split 'test' were)"],
    ),
}


@pytest.mark.parametrize("name", LATE)
def test_a_fault_that_shows_late_is_one_line_too(name: str, recipe: list[str], done: Done) -> None:
    overrides, wanted = LATE[name]
    failed = run_command(*recipe, *overrides, f"output_root={done.folder.parents[1]}")
    assert failed.code == 1, failed.out
    assert failed.err.count("\n") == 1, failed.err
    assert all(words in failed.err for words in wanted), failed.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"query_id": "q0"\n', ":1: not valid JSON"),
        ('{"query_id": "q0", "positive_ids": "0", "negative_ids": []}\n', ":1: positive_ids must be a list of strings"),
        ('\n{"query_id": "q0", "positive_ids": [], "negative_ids": []}\n', ":1: not valid JSON"),
        ('{"query_id": "q0", "positive_ids": ["nix"]}\n', ":1: passage 'nix' is unknown"),
        ('{"query_id": "nix", "positive_ids": ["0"]}\n', ":1: query 'nix' is unknown"),
    ],
)
def test_broken_labels_are_named_with_their_line(content: str, message: str, done: Done, tmp_path: Path) -> None:
    (tmp_path / "labels.jsonl").write_text(content)
    with pytest.raises(UserError, match=f"labels.jsonl{message}"):
        read_negatives(tmp_path / "labels.jsonl", collection_of(done), "positive_ids")


def test_a_dry_run_imports_nothing_heavy(recipe: list[str], tmp_path: Path) -> None:
    code = (
        "import runpy, sys\nsys.argv = sys.argv[1:]\n"
        "try:\n    runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "finally:\n    print({'torch', 'transformers', 'faiss', 'matplotlib', 'pyarrow'} & set(sys.modules))"
    )
    given = [*recipe, "dry_run=plan", f"output_root={tmp_path}"]
    command = [sys.executable, "-c", code, str(PROJECT / "run.py"), "--config-dir", str(CONF), *given]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.stdout.splitlines()[-1] == "set()", ran.stdout + ran.stderr
