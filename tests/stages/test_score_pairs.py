"""Stage ``score_pairs``: what is scored and by whom, kills and files; and a fine-tuning that learns from it."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from single_stage import inputs, run_stage
from small_runs import run_command
from stage_defaults import defaults_of

from condensery.errors import UserError
from condensery.pipeline.artifact_id import artifact_id
from condensery.retrieval.indexes.bm25 import BM25Index
from condensery.retrieval.indexes.fusion import FusedIndex, write_fused
from condensery.retrieval.mining import mine
from condensery.retrieval.negatives import open_negatives
from condensery.retrieval.pair_scores import PairScores
from condensery.stages.base import Context, Input, StageConfig
from condensery.stages.finetuning.batching import scores_of
from condensery.stages.finetuning.config import FinetuneConfig
from condensery.stages.registry import registry
from condensery.stages.scoring import score_pairs
from condensery.text.collection import Collection

SCORED = ("queries.npy", "passages.npy", "scores.npy", "pair_scores.jsonl")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders by the fields of the stage: a corpus, its BM25 index and negatives of it."""
    folder = tmp_path_factory.mktemp("pairs")
    corpus = {"corpus": inputs(folder)["corpus"]}
    run_stage("bm25", folder / "bm25", corpus)
    collection = Collection(corpus["corpus"])
    (folder / "mined").mkdir()
    mine(BM25Index(folder / "bm25", collection), collection, "train", 4, folder / "mined")
    return {**corpus, "retrievers": folder / "bm25", "negatives": folder / "mined"}


def score(folder: Path, made: dict[str, Path], **changes: Any) -> dict[str, Any]:
    """Run the stage on what is made."""
    named = {name: [name] for name in made if name != "corpus"}
    return run_stage("score_pairs", folder, made, **{**named, "shard_size": 3, **changes})


def test_positives_and_negatives_have_the_scores_of_the_retriever(tmp_path: Path, made: dict[str, Path]) -> None:
    found = score(tmp_path / "out", made, depth=3)
    collection, pairs = Collection(made["corpus"]), PairScores.mapped(tmp_path / "out")
    mined = open_negatives(made["negatives"], collection)
    positives = collection.qrels("train").positives()
    assert pairs.query_rows.tolist() == sorted(positives)
    wanted = BM25Index(made["retrievers"], collection).score(pairs.query_rows, pairs.passage_rows)
    np.testing.assert_array_equal(pairs.scores[pairs.filled], wanted[np.asarray(pairs.passage_rows) >= 0])
    for query, passages in zip(pairs.query_rows.tolist(), pairs.passage_rows, strict=True):
        own = mined.passage_rows[mined.query_rows.tolist().index(query)][:3]
        assert set(passages[passages >= 0]) == {*positives[query].tolist(), *own[own >= 0].tolist()}
        assert passages[0] in positives[query]
    assert found["pairs"] == int(pairs.filled.sum())
    lines = [json.loads(line) for line in (tmp_path / "out" / "pair_scores.jsonl").read_text().splitlines()]
    assert [len(line["scores"]) for line in lines] == pairs.filled.sum(axis=1).tolist()


def test_a_kill_at_any_shard_ends_with_the_same_bytes(
    tmp_path: Path, made: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    score(tmp_path / "whole", made)
    real, calls = score_pairs.by_retriever, 0

    def stopping(retriever: Any) -> Any:
        def work(*given: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls in (1, 3):
                raise KeyboardInterrupt
            return real(retriever)(*given)

        return work

    monkeypatch.setattr(score_pairs, "by_retriever", stopping)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            score(tmp_path / "killed", made)
    score(tmp_path / "killed", made)
    shards = -(-len(PairScores.mapped(tmp_path / "whole").query_rows) // 3)
    assert calls == shards + 2, "whole shards are kept"
    for name in SCORED:
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert sorted(path.name for path in (tmp_path / "killed").iterdir()) == sorted(SCORED)


def test_what_it_wrote_is_a_file_that_it_reads(
    tmp_path: Path, made: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    score(tmp_path / "first", made)
    lines = (tmp_path / "first" / "pair_scores.jsonl").read_text().splitlines()
    (tmp_path / "some.jsonl").write_text("\n".join(lines[:4]) + "\n")
    found = score(tmp_path / "second", {"corpus": made["corpus"]}, file=tmp_path / "some.jsonl")
    assert (tmp_path / "second" / "pair_scores.jsonl").read_text().splitlines() == lines[:4]
    assert found["queries_without_scores"] == found["queries"] - 4
    assert f"{found['queries'] - 4} queries have no scored positive" in capsys.readouterr().out
    runtime: Any = None
    context = Context("scores", tmp_path, runtime, {})
    score_pairs._tell(context, {"pairs": 1, "queries": 1, "queries_without_positive": 0, "queries_without_scores": 0})
    assert capsys.readouterr().out == "[scores] 1 pair of 1 query has a score\n"


def test_a_file_of_other_queries_is_one_line(tmp_path: Path, made: dict[str, Path]) -> None:
    name = Collection(made["corpus"]).queries.ids[0]
    (tmp_path / "a.run").write_text(f"{name} Q0 1 1 0.5 x\n")
    with pytest.raises(UserError, match=r"a\.run: no training query of the split 'train' has two scored passages"):
        score(tmp_path / "out", {"corpus": made["corpus"]}, file=tmp_path / "a.run")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({}, "nothing is set that scores the pairs; set cross_encoders, retrievers, or file"),
        ({"file": "x.run", "retrievers": ["bm25"]}, "leave out cross_encoders, retrievers and negatives"),
        ({"file": "x.run", "negatives": ["mined"]}, "leave out cross_encoders, retrievers and negatives"),
        ({"retrievers": ["bm25"], "weights": [1, 2]}, "2 weights for 1 scorers; give one for each"),
        ({"retrievers": ["bm25"], "cross_encoders": ["cross"]}, "set scaling to min_max, or weights"),
        ({"retrievers": ["bm25", "dense"]}, "set scaling to min_max, or weights"),
    ],
)
def test_a_fault_of_the_config_is_named(keys: dict[str, Any], said: str) -> None:
    given = {**defaults_of("score_pairs"), "seed": 1, "precision": "fp32", **keys}
    with pytest.raises(ValueError, match=said):
        registry()["score_pairs"].config.model_validate(given)


TAUGHT = "stages.taught={stage: score_pairs, retrievers: [bm25], negatives: [bm25_negatives]}"
BAD = {
    "a loss that needs a teacher": (["stages.round1.loss=kl"], "stages.round1.loss: kl learns from a teacher's scores"),
    "a loss that takes none": ([TAUGHT, "stages.round1.teacher=[taught]"], "stages.round1.teacher: the loss info_nce"),
    "adaptive batches whose chunks are to be measured before": (
        ["stages.round1.batching=adaptive", "stages.round1.chunk_tokens=auto"],
        "stages.round1.chunk_tokens: auto measures a batch before training",
    ),
    "negatives as a teacher": (
        ["stages.round1.teacher=[bm25_negatives]"],
        "'bm25_negatives' makes negatives, but pair_scores is needed",
    ),
    "a file that is not there": (["stages.taught={stage: score_pairs, file: /nowhere.run}"], "/nowhere.run"),
    "a temperature of 0": (
        [TAUGHT, "stages.round1.teacher=[taught]", "stages.round1.loss={name: kl, teacher_temperature: 0}"],
        "kl: teacher_temperature must be a number > 0, not 0",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_fault_of_the_recipe_is_found_before_any_work(name: str, on_beir: list[str], tmp_path: Path) -> None:
    overrides, said = BAD[name]
    failed = run_command("experiment=short", *on_beir, *overrides, f"output_root={tmp_path}")
    assert failed.code == 1, failed.out
    assert failed.err.count("\n") == 1, failed.err
    assert said in failed.err
    assert not failed.computed


class Before(StageConfig):
    negatives: Annotated[list[str], Input("negatives")]


class After(Before):
    """With a key that came later, as ``finetune`` has it."""

    teacher: Annotated[list[str], Input("pair_scores")]

    def by_content(self) -> set[str]:
        return set() if self.teacher else {"teacher"}


def test_a_fine_tuning_without_a_teacher_keeps_its_id() -> None:
    def identity(config: StageConfig, **made_from: tuple[str, ...]) -> str:
        return artifact_id("finetune", 4, config.identified_by(made_from))

    before = identity(Before(negatives=["mined"]), negatives=("mine/1",))
    assert identity(After(negatives=["mined"], teacher=[]), negatives=("mine/1",), teacher=()) == before
    taught = identity(After(negatives=["mined"], teacher=["a"]), negatives=("mine/1",), teacher=("score_pairs/1",))
    other = identity(After(negatives=["mined"], teacher=["a"]), negatives=("mine/1",), teacher=("score_pairs/2",))
    assert len({before, taught, other}) == 3
    later = {
        "teacher": ["a"],
        "passages": "b",
        "text_queries": "c",
        "shared_negatives": 5,
        "leave_out_dev_passages": True,
        "in_batch_teacher": "d",
    }
    nothing: dict[str, Any] = dict(zip(later, ([], None, None, 0, False, None), strict=True)) | {"callbacks": {}}
    assert {*later, "text_batch_size"} <= FinetuneConfig.model_construct(**nothing).by_content()
    for key, value in later.items():
        config = FinetuneConfig.model_construct(**{**nothing, key: value})
        assert key not in config.by_content()
        assert ("text_batch_size" in config.by_content()) == (key != "text_queries")


def test_an_in_batch_teacher_is_opened_by_each_process_that_makes_batches(made: dict[str, Path]) -> None:
    rows, collection = np.arange(4), Collection(made["corpus"])
    passages = np.broadcast_to(np.arange(6), (4, 6))
    scores = scores_of(made["retrievers"], made["corpus"], threads=1)
    sent = pickle.loads(pickle.dumps(scores))  # BM25's stemmer alone cannot be sent
    wanted = BM25Index(made["retrievers"], collection).score(rows, passages)
    assert wanted.any()
    for found in (scores, sent):
        np.testing.assert_array_equal(found(rows, passages), wanted)
    with pytest.raises(UserError, match="no such file"):
        scores_of(made["corpus"] / "nowhere", made["corpus"], threads=1)


@pytest.mark.parametrize(("depth", "warned"), [(2, True), (100, False)])
def test_a_fusion_that_ranks_few_passages_is_a_poor_in_batch_teacher(
    depth: int, warned: bool, made: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    collection, folder = Collection(made["corpus"]), tmp_path / "fuse" / "f"
    shutil.copytree(made["retrievers"], tmp_path / "bm25" / "b")
    folder.mkdir(parents=True)
    write_fused(folder, FusedIndex([BM25Index(made["retrievers"], collection)], [1.0], depth), ["bm25/b"], None)
    scores, number = scores_of(folder, made["corpus"], 1, "student"), len(collection.passages)
    found = scores(np.arange(2), np.broadcast_to(np.arange(number), (2, number)))
    assert (np.count_nonzero(found, axis=1) <= 2).all() == warned
    expected = f"[student] warning: the in-batch teacher scores the best 2 of {number} passages"
    assert (expected in capsys.readouterr().out) == warned
