"""From mining by a rule to a sheet, and back from the sheet into mining and training."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from single_stage import inputs, run_stage
from stage_defaults import defaults_of

from condensery.errors import UserError
from condensery.pipeline.artifact_id import artifact_id
from condensery.retrieval.negatives import open_negatives
from condensery.stages.base import Artifact, Context, Runtime, Wandb
from condensery.stages.finetuning.config import QueriesConfig
from condensery.stages.finetuning.training_queries import training_queries
from condensery.stages.registry import registry
from condensery.system.files import read_json, write_json
from condensery.text.collection import Collection

RULE = {"below_share": 0.9, "depth": 5}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A collection, BM25 over it, and what mining with a rule and without makes."""
    store = tmp_path_factory.mktemp("artifacts")
    corpus = inputs(store / "inputs")["corpus"]
    run_stage("bm25", store / "bm25" / "1", {"corpus": corpus}, stemmer="none")
    read = {"corpus": corpus, "retriever": store / "bm25" / "1"}
    write_json(read["retriever"] / "manifest.json", {"makes": "index", "inputs": {}})
    for name, changes in (("ruled", RULE), ("plain", {"depth": 5})):
        run_stage("mine", store / "mine" / name, read, retriever="bm25", **changes)
        manifest = {"makes": "negatives", "config": {"split": "train"}, "inputs": {"retriever": ["bm25/1"]}}
        write_json(store / "mine" / name / "manifest.json", manifest)
    return {**read, **{name: store / "mine" / name for name in ("ruled", "plain")}}


def audited(made: dict[str, Path], name: str, folder: Path, **changes: Any) -> list[dict[str, str]]:
    read = {"corpus": made["corpus"], "negatives": made[name]}
    run_stage("audit_negatives", folder, read, negatives=name, **changes)
    with open(folder / "sheet.csv", encoding="utf-8-sig", newline="") as stream:
        return list(csv.DictReader(stream))


def test_the_sheet_has_what_was_left_out_with_texts_and_scores(made: dict[str, Path], tmp_path: Path) -> None:
    lines, collection = audited(made, "ruled", tmp_path / "a", depth=2, rows=40), Collection(made["corpus"])
    negatives = open_negatives(made["ruled"], collection)
    assert 0 < len(lines) <= 40
    ratios = [float(line["ratio"]) for line in lines if line["ratio"]]
    assert ratios == sorted(ratios, reverse=True)
    assert min(ratios) > 0.89
    for line in lines:
        query, passage = (
            collection.queries.ids.index(line["query id"]),
            collection.passages.ids.index(line["passage id"]),
        )
        assert line["relevant"] == ""
        assert line["query"] == collection.queries.column("text")[query]
        assert line["passage"] == collection.passages.column("text")[passage]
        assert line["positive"] in collection.passages.column("text").take(collection.qrels("train").positives()[query])
        row = negatives.query_rows.tolist().index(query)
        assert passage not in negatives.passage_rows[row]
    found = read_json(tmp_path / "a" / "suspects.json")
    assert found["left_out"] is True
    assert found["items"][0]["ids"] == [lines[0]["query id"], lines[0]["passage id"]]
    assert audited(made, "ruled", tmp_path / "b", depth=2, rows=40) == lines


def test_without_a_rule_the_retriever_scores_its_first_negatives(made: dict[str, Path], tmp_path: Path) -> None:
    lines, collection = audited(made, "plain", tmp_path / "a", depth=1, rows=1000), Collection(made["corpus"])
    negatives = open_negatives(made["plain"], collection)
    first = {
        (collection.queries.ids[query], collection.passages.ids[rows[0]])
        for query, rows in zip(negatives.query_rows.tolist(), negatives.passage_rows.tolist(), strict=True)
        if rows[0] >= 0
    }
    assert {(line["query id"], line["passage id"]) for line in lines} == first
    assert read_json(tmp_path / "a" / "suspects.json")["left_out"] is False


def test_a_filled_sheet_changes_mining_and_training(made: dict[str, Path], tmp_path: Path) -> None:
    lines, collection = audited(made, "ruled", tmp_path / "a", depth=3), Collection(made["corpus"])
    lines[0]["relevant"], lines[1]["relevant"] = "yes", "no"
    with open(tmp_path / "filled.csv", "w", newline="") as stream:
        writer = csv.DictWriter(stream, lines[0])
        writer.writeheader()
        writer.writerows(lines)
    read = {name: made[name] for name in ("corpus", "retriever")}
    about = run_stage(
        "mine", tmp_path / "n", read, retriever="bm25", relabel=tmp_path / "filled.csv", **{**RULE, "depth": 40}
    )
    assert (about["relabelled_relevant"], about["relabelled_not_relevant"]) == (1, 1)
    yes, no = (
        (collection.queries.ids.index(line["query id"]), collection.passages.ids.index(line["passage id"]))
        for line in lines[:2]
    )
    negatives = open_negatives(tmp_path / "n", collection)
    pools = dict(zip(negatives.query_rows.tolist(), negatives.passage_rows.tolist(), strict=True))
    assert yes[1] not in pools[yes[0]]
    assert no[1] in pools[no[0]]
    runtime = Runtime("cpu", 1, 1, 0, Wandb(project="x", entity=None, enabled=False), "x", tmp_path)
    context = Context("round2", tmp_path, runtime, {"negatives": (Artifact(tmp_path / "n"),)})
    options = dict.fromkeys(("negative_depths", "negative_weights", "train_queries"))
    options |= {"leave_out_dev_passages": False, "negatives_per_query": 1, "seed": 1}
    config = QueriesConfig(negatives=["n"], labels=[], split="train", **options)
    training = training_queries(config, context, collection)
    positives = np.split(training.positives, training.starts[1:-1])
    assert yes[1] in positives[training.rows.tolist().index(yes[0])]


def test_a_stage_without_a_retriever_wants_a_scorer() -> None:
    config = registry()["audit_negatives"].config.model_validate(
        {**defaults_of("audit_negatives"), "negatives": "given"}
    )
    given = {"negatives": [registry()["audit_negatives"].config.model_construct()]}
    assert config.input_error(given) == (
        "scorer", "the stage 'given' names no retriever; name a stage with an index or an encoder"
    )  # fmt: skip


def mine_config(**changes: Any) -> Any:
    given = {**defaults_of("mine"), "retriever": "bm25", "precision": "fp32"}
    return registry()["mine"].config.model_validate({**given, **changes})


def id_of(**changes: Any) -> str:
    config = mine_config(**changes)
    inputs = {"retriever": ("bm25",), "corpus": ("corpus",), "scorer": (config.scorer,) if config.scorer else ()}
    inputs["cross_encoders"] = tuple(config.cross_encoders)
    made_from = {field: tuple(f"{name}/1" for name in names) for field, names in inputs.items()}
    return artifact_id("mine", 3, config.identified_by(made_from))


def test_keys_that_are_not_set_leave_the_id_as_it_was(tmp_path: Path) -> None:
    plain = id_of()
    assert id_of(precision="bf16", chunk_tokens=1, shard_size=1) == plain
    (tmp_path / "s.csv").write_text("filled")
    others = [
        id_of(below_share=0.95),
        id_of(below_share=0.9),
        id_of(below_margin=0.95),
        id_of(below_score=0.95),
        id_of(below_score=0.95, scorer="other"),
        id_of(below_score=0.95, cross_encoders=["cross"]),
        id_of(below_score=0.95, cross_encoders=["cross"], precision="bf16"),
        id_of(relabel=str(tmp_path / "s.csv")),
    ]
    assert len({plain, *others}) == 1 + len(others)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"scorer": "other"}, "scorer has no effect without a rule; set below_share, below_margin or below_score"),
        ({"cross_encoders": ["cross"]}, "cross_encoders has no effect without a rule"),
        ({"scorer": "other", "cross_encoders": ["cross"], "below_score": 1}, "are both set"),
        ({"below_share": 0}, "greater than 0"),
        ({"below_share": 1.1}, "less than or equal to 1"),
        ({"below_margin": -1}, "greater than or equal to 0"),
    ],
)
def test_rules_that_make_no_sense_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        mine_config(**changes)


def test_a_missing_sheet_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"nowhere\.csv: no such file; set relabel to the folder, or the list, of filled"
    ):
        id_of(relabel=str(tmp_path / "nowhere.csv"))
