"""Fine-tuning reads the queries that the stage pseudo_label has labelled besides the judged ones."""

import json
from pathlib import Path

import numpy as np
import pytest

from condensery.errors import UserError
from condensery.stages.base import Artifact, Context, Runtime, Wandb
from condensery.stages.finetuning.config import QueriesConfig
from condensery.stages.finetuning.training_queries import training_queries
from condensery.text.collection import Collection
from condensery.text.records import Passage, Query
from condensery.text.writer import CollectionWriter

CONFIG = QueriesConfig(
    negatives=["negatives"],
    negative_depths=None,
    negative_weights=None,
    labels=["labels"],
    split="train",
    train_queries=None,
    leave_out_dev_passages=False,
    negatives_per_query=1,
    seed=1,
)


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    """12 passages, and for each of the first ten a query; two of these have lost their judgements."""
    with CollectionWriter(tmp_path / "collection", "small", unlabelled_queries=2) as writer:
        for at in range(12):
            if at < 10:
                writer.add_judgement("train", f"q{at}", f"p{at}", 1)
            writer.add_passage(Passage(f"p{at}", "", f"text of {at}"))
            writer.add_query(Query(f"q{at}", f"question {at}"))
    return Collection(tmp_path / "collection")


def context(folder: Path, labels: list[dict[str, object]], negatives: list[dict[str, object]]) -> Context:
    """A context with one artifact of labels and one of negatives."""
    made = {}
    for field, lines in (("labels", labels), ("negatives", negatives)):
        (folder / field).mkdir()
        (folder / field / f"{field}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        made[field] = (Artifact(folder / field),)
    return Context(
        "x", folder, Runtime("cpu", 1, 1, 0, Wandb(project="x", entity=None, enabled=False), "x", folder), made
    )


def test_the_union_has_the_positives_of_both_and_the_pools_of_all(collection: Collection, tmp_path: Path) -> None:
    first, second = (f"q{row}" for row in collection.unjudged())
    judged = f"q{collection.qrels('train').query_set[0]}"
    labels = [
        {"query_id": second, "positive_ids": ["p3", "p1"], "negative_ids": ["p7"]},
        {"query_id": first, "positive_ids": ["p2"], "negative_ids": []},
    ]
    negatives = [{"query_id": judged, "negative_ids": ["p11", "p10"]}]
    found = training_queries(CONFIG, context(tmp_path, labels, negatives), collection)
    every = np.arange(len(found.rows))
    positives = dict(zip(found.rows.tolist(), np.split(found.positives, found.starts[1:-1]), strict=True))
    wanted = {row: [row] for row in range(10)} | {int(first[1:]): [2], int(second[1:]): [3, 1]}
    assert list(positives) == list(range(10)), "in the order of the rows"
    assert {row: one.tolist() for row, one in positives.items()} == wanted
    pools = {
        row: set(pool[pool >= 0].tolist())
        for row, pool in zip(found.rows.tolist(), found.negatives[every], strict=True)
    }
    assert {row: pool for row, pool in pools.items() if pool} == {int(judged[1:]): {10, 11}, int(second[1:]): {7}}


def test_no_label_at_all_leaves_the_judged_queries(collection: Collection, tmp_path: Path) -> None:
    judged = collection.qrels("train").positives()
    negatives = [{"query_id": "q0", "negative_ids": []}]
    found = training_queries(CONFIG, context(tmp_path, [], negatives), collection)
    assert found.rows.tolist() == sorted(judged)
    assert found.negatives.shape == (len(judged), 0)


def test_broken_labels_are_named_with_their_line(collection: Collection, tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [{"query_id": "q0", "negative_ids": []}]
    with pytest.raises(UserError, match=r'labels\.jsonl:1: the field "positive_ids" is missing'):
        training_queries(CONFIG, context(tmp_path, lines, lines), collection)
