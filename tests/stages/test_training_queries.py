"""What fine-tuning trains on: subsets of the queries, and negatives pooled from sources with depths and weights."""

import json
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from single_stage import inputs, run_stage
from small_runs import PROJECT
from stage_defaults import defaults_of

from condensery.errors import UserError
from condensery.randomness import nested_subset
from condensery.stages.base import Artifact, Context, Runtime, Wandb
from condensery.stages.finetuning.config import FinetuneConfig
from condensery.stages.finetuning.training_queries import text_queries, training_queries
from condensery.text.collection import Collection
from condensery.training.data.training_queries import TrainingQueries

SOURCES = {  # for every query the passages of these rows, best first
    "lexical": [1, 3, 5, 7],
    "mined": [9, 3, 11, 13, 15, 17],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection and two sources of negatives, of which the second lacks the first query."""
    made = tmp_path_factory.mktemp("made")
    inputs(made)
    collection = Collection(made / "corpus")
    for name, rows in SOURCES.items():
        (made / name).mkdir()
        queries = [collection.queries.ids[row] for row in collection.qrels("train").query_set.tolist()]
        lines = [
            json.dumps({"query_id": query, "negative_ids": [collection.passages.ids[row] for row in rows]})
            for query in (queries if name == "lexical" else queries[1:])
        ]
        (made / name / "negatives.jsonl").write_text("\n".join(lines))
    return made


def config_of(**changes: Any) -> FinetuneConfig:
    backbone = yaml.safe_load((PROJECT / "conf" / "backbone" / "bert_base.yaml").read_text())
    given = {
        "seed": 1,
        "precision": "fp32",
        "callbacks": {},
        "backbone": backbone,
        "init": "backbone",
        "negatives": list(SOURCES),
    }
    return FinetuneConfig.model_validate({**defaults_of("finetune"), **given, **changes})


def read(folder: Path, **changes: Any) -> TrainingQueries:
    """What a stage of this config trains on, the pools of all queries read."""
    config = config_of(**changes)
    sources = tuple(Artifact(folder / name) for name in config.negatives)
    runtime = Runtime("cpu", 1, 1, 0, Wandb(project="x", entity=None, enabled=False), "x", folder)
    context = Context("round1", folder, runtime, {"negatives": sources})
    found = training_queries(config, context, Collection(folder / "corpus"))
    every = np.arange(len(found.rows))
    weights = None if found.weights is None else found.weights[every]
    return replace(found, negatives=found.negatives[every], weights=weights)


def test_a_smaller_training_set_lies_in_every_larger_one(folder: Path) -> None:
    whole = read(folder)
    number = len(whole.rows)
    assert number == 12
    found = [read(folder, train_queries=size).rows.tolist() for size in (3, 7, 11, number)]
    assert [len(rows) for rows in found] == [3, 7, 11, number]
    for smaller, larger in pairwise(found):
        assert set(smaller) < set(larger)
    assert found[-1] == whole.rows.tolist()
    assert found[1] == sorted(found[1])
    assert read(folder, train_queries=7, seed=2).rows.tolist() != found[1]


def test_a_subset_keeps_what_belongs_to_its_queries(folder: Path) -> None:
    whole, part = read(folder), read(folder, train_queries=5)
    for at, row in enumerate(part.rows.tolist()):
        place = whole.rows.tolist().index(row)
        own, all_of_it = (t.positives[t.starts[i] : t.starts[i + 1]] for t, i in ((part, at), (whole, place)))
        assert own.tolist() == all_of_it.tolist()
        assert part.negatives[at].tolist() == whole.negatives[place].tolist()


def test_more_queries_than_there_are_is_an_error_in_one_line(folder: Path) -> None:
    with pytest.raises(UserError, match=r"^stages\.round1\.train_queries=13: there are only 12 judged queries in"):
        read(folder, train_queries=13)


def test_a_batch_that_has_all_queries_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    number = len(read(folder).rows)
    assert "a batch has" not in capsys.readouterr().out
    read(folder, batch_size=number)
    assert "a batch has" not in capsys.readouterr().out, "as many as asked for"
    read(folder, batch_size=number + 1)
    said = f"[round1] a batch has {number} queries, as there are no more (batch_size: {number + 1})\n"
    assert capsys.readouterr().out == said
    read(folder, batch_size=1000, train_queries=1)
    assert "a batch has 1 query, as there are no more (batch_size: 1,000)" in capsys.readouterr().out


def test_nothing_of_a_subset_is_drawn_by_its_size() -> None:
    assert nested_subset(3, 50, None).tolist() == list(range(50))
    sets = [set(nested_subset(3, 50, number).tolist()) for number in range(51)]
    assert all(len(one) == number for number, one in enumerate(sets))
    assert all(smaller < larger for smaller, larger in pairwise(sets))


def test_depths_cut_each_source_before_the_pools_are_joined(folder: Path) -> None:
    found = read(folder, negative_depths=[2, 3])
    assert found.negatives[1].tolist() == [1, 3, 9, -1, 11], "passage 3 is of both"
    assert found.negatives[0].tolist() == [1, 3, -1, -1, -1], "the second source lacks this query"
    assert found.weights is None
    assert read(folder).negatives[1].tolist() == [1, 3, 5, 7, 9, -1, 11, 13, 15, 17]


def test_each_positive_is_a_training_query_with_the_pool_of_its_query(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Collection(folder / "corpus").qrels("train").query_set[:3].tolist()
    judged = dict(zip(rows, ([2], [0, 4, 6], [2, 8]), strict=True))
    positives = {row: np.array(passages) for row, passages in judged.items()}
    monkeypatch.setattr(f"{training_queries.__module__}.judged_queries", lambda *given: positives)
    one, each = (read(folder, positives=key, negative_weights=[1.0, 3.0]) for key in ("one", "each"))
    of_each = [0, 1, 1, 1, 2, 2]
    assert one.rows.tolist() == rows
    assert each.rows.tolist() == [rows[query] for query in of_each]
    assert each.positives.tolist() == one.positives.tolist() == [2, 0, 4, 6, 2, 8]
    assert each.starts.tolist() == list(range(7))
    assert each.by_text == one.by_text == 0
    for query, pair in zip(of_each, range(6), strict=True):
        assert each.no_negatives(np.array([pair]))[0].tolist() == judged[rows[query]]
        assert each.negatives[pair].tolist() == one.negatives[query].tolist()
        assert each.weights[pair].tolist() == one.weights[query].tolist()


def test_a_weight_is_the_share_of_a_source_and_adds_up_where_a_passage_is_of_several(folder: Path) -> None:
    found = read(folder, negative_weights=[1.0, 3.0])
    assert found.weights is not None
    expected = [0.25, 0.25 + 0.5, 0.25, 0.25, 0.5, 0.75, 0.5, 0.5, 0.5, 0.5]
    assert found.weights[1].tolist() == pytest.approx(expected)
    assert found.weights[0][:4].tolist() == pytest.approx([0.25] * 4)


@pytest.mark.parametrize("key", ["negative_depths", "negative_weights"])
def test_a_number_for_each_source_is_needed(key: str) -> None:
    with pytest.raises(ValueError, match="1 numbers for 2 sources of negatives"):
        config_of(**{key: [1]})


def test_negatives_are_drawn_by_weight(tmp_path: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
    import trainings

    pools = np.tile(np.arange(3, 13, dtype=np.int32), (13, 1))
    known = (np.arange(13) * 2, np.zeros(13, np.int64), np.arange(14))
    shares = np.tile([4.0, *[1.0] * 8, 0.001], (13, 1))
    draws: dict[str, list[int]] = {"plain": [], "alike": [], "weighted": []}
    for name, weights in (("plain", None), ("alike", np.ones((13, 10))), ("weighted", shares)):
        batches = trainings.triple_batches(tmp_path, TrainingQueries(*known, pools, weights), negatives=1)
        for epoch in range(150):
            found = batches._hard_negatives(epoch, np.arange(13), np.zeros(13, np.int64))
            draws[name] += found[:, 0].tolist()
    assert draws["plain"] == draws["alike"], "equal weights draw what no weights draw"
    share = np.bincount(draws["weighted"], minlength=13) / len(draws["weighted"])
    assert share[3] == pytest.approx(4 / 12, abs=0.04)
    assert share[4:12].tolist() == pytest.approx([1 / 12] * 8, abs=0.03)
    assert share[12] < 0.005


def test_queries_of_passages_with_one_text_have_none_of_their_passages_as_a_negative(tmp_path: Path) -> None:
    made = inputs(tmp_path)
    passages = {"passages": tmp_path / "passages", **made}
    run_stage("passages", passages["passages"], made, grouping="collection", titles=False)
    ids = Collection(made["corpus"]).passages.ids
    asked = {name: "What does it do?" if number % 3 == 0 else f"what is {name}?" for number, name in enumerate(ids)}
    path = tmp_path / "q.tsv"
    path.write_text("".join(f"{name}\t{query}\n" for name, query in asked.items()))
    run_stage("read_queries", tmp_path / "queries", passages, path=str(path))
    config = config_of(negatives=[], text_queries="queries")
    runtime = Runtime("cpu", 1, 1, 0, Wandb(project="x", entity=None, enabled=False), "x", tmp_path)
    context = Context("round1", tmp_path, runtime, {"text_queries": (Artifact(tmp_path / "queries"),)})
    found = text_queries(config, context, Collection(made["corpus"]))
    assert found is not None
    same = {number: found.passages[found.passages % 3 == 0].tolist() for number in found.passages if number % 3 == 0}
    flat, numbers = found.no_negatives(np.arange(len(found.rows)))
    excluded = dict(zip(found.passages.tolist(), np.split(flat, np.cumsum(numbers)[:-1]), strict=True))
    assert {own: rows.tolist() for own, rows in excluded.items()} == {own: same.get(own, [own]) for own in excluded}
    assert len(same) > 5


def test_the_id_says_how_queries_of_passages_are_used_where_there_are_any() -> None:
    without, given = (config_of(text_queries=name).identity() for name in (None, "queries"))
    assert given == [*without, "text_queries with the same text share their positives"]
