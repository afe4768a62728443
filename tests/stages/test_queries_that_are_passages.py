"""Queries that are passages themselves, from the command line: what ranks and mines does without them, and says so."""

import gzip
import json

import pytest
import pytrec_eval
from small_runs import Done, run_command

from condensery.retrieval.negatives import open_negatives
from condensery.stages.base import Artifact
from condensery.text.collection import Collection

TOPICS = [
    "solar panels",
    "old trams",
    "school coats",
    "wild bees",
    "night trains",
    "salt roads",
    "loud parks",
    "red tools",
]
RECIPE = [
    "trainer=cpu",
    "logger=csv",
    "data=beir",
    "stages.corpus={stage: corpus}",
    "stages.short={stage: bm25}",
    "stages.long={stage: bm25, b: 0.9, k1: 2, stemmer: none}",
    "stages.mined={stage: mine, retriever: short, depth: 3}",
    "stages.fused={stage: fuse, retrievers: [short, long], depth: 20, split: train, metric: MRR@10}",
    "stages.ranked={stage: evaluate, index: short, depth: 20}",
    "stages.by_id={stage: evaluate, index: short, depth: 20, ignore_identical_ids: true}",
    "stages.sampled={stage: evaluate, index: short, depth: 20, candidates: long, candidates_number: 30}",
    "stages.joined={stage: evaluate, index: fused, depth: 20}",
    "table.split=test",
    "table.metrics=[MRR@10,NDCG@10,Recall@10]",
]


@pytest.fixture(scope="module")
def judged() -> dict[str, dict[str, int]]:
    """Query t<i> is passage t<i>; u<i> answers it. t7 is judged relevant to itself, too, and "x0" is nobody's own."""
    found = {f"t{number}": {f"u{number}": 1} for number in range(8)}
    found["t7"]["t7"] = 1
    return {**found, "x0": {"u0": 1}}


@pytest.fixture(scope="module")
def done(judged: dict[str, dict[str, int]], tmp_path_factory: pytest.TempPathFactory) -> Done:
    root = tmp_path_factory.mktemp("arguments") / "data"
    (root / "qrels").mkdir(parents=True)
    passages = {f"t{number}": f" {topic}" for number, topic in enumerate(TOPICS)}
    passages |= {f"u{number}": f"{topic} in winter" for number, topic in enumerate(TOPICS)}
    passages |= {"x0": "panels of wood", "a1": "old  trams in winter"}  # a1 has the text of u1
    lines = [{"_id": name, "title": "", "text": text} for name, text in passages.items()]
    (root / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    queries = {f"t{number}": topic for number, topic in enumerate(TOPICS)} | {"x0": "solar panels tomorrow"}
    lines = [{"_id": name, "text": text} for name, text in queries.items()]
    (root / "queries.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = [f"{query}\t{passage}\t1\n" for query, known in judged.items() for passage in known]
    for split in ("train", "test"):
        (root / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))
    return run_command(*RECIPE, f"data.root={root}", f"output_root={root.parent / 'out'}").sound()


def stage(done: Done, name: str) -> Artifact:
    return Artifact((done.folder / "stages" / name).resolve())


def ranked(done: Done, name: str) -> dict[str, dict[str, float]]:
    run: dict[str, dict[str, float]] = {}
    with gzip.open(stage(done, name).path / "run.trec.gz", "rt") as stream:
        for query, _, passage, _, score, _ in map(str.split, stream):
            run.setdefault(query, {})[passage] = float(score)
    return run


@pytest.mark.parametrize("name", ["ranked", "joined", "sampled"])
def test_only_whom_the_judgements_name_finds_itself(done: Done, name: str) -> None:
    assert {query for query, found in ranked(done, name).items() if query in found} <= {"t7", "x0"}
    artifact = stage(done, name)
    assert artifact.manifest["metrics"]["own_passages_left_out"] == 7
    assert json.loads((artifact.path / "metrics.json").read_text())["own_passages_left_out"] == 7
    assert f"[{name}] 7 of 9 queries are passages, too (same id and text)" in done.out


def test_of_the_same_id_and_another_text_nothing_is_left_out_but_by_beirs_rule(done: Done) -> None:
    assert "x0" in ranked(done, "ranked")["x0"]
    assert not any(query in found for query, found in ranked(done, "by_id").items())
    assert stage(done, "by_id").manifest["metrics"]["own_passages_left_out"] == 9


@pytest.mark.parametrize("name", ["ranked", "by_id", "joined"])
def test_other_evaluators_read_the_same_numbers(done: Done, name: str, judged: dict[str, dict[str, int]]) -> None:
    evaluator = pytrec_eval.RelevanceEvaluator(judged, {"ndcg_cut.10", "recall.10"})
    found = evaluator.evaluate(ranked(done, name)).values()
    metrics = stage(done, name).manifest["metrics"]
    for ours, theirs in (("NDCG@10", "ndcg_cut_10"), ("Recall@10", "recall_10")):
        assert metrics[ours] == pytest.approx(sum(one[theirs] for one in found) / len(judged))


def test_no_query_mines_itself_nor_the_text_of_its_positive(done: Done) -> None:
    mined, collection = stage(done, "mined"), Collection(stage(done, "corpus").path)
    negatives = open_negatives(mined.path, collection)
    found = {
        query: collection.passages.ids_at(rows[rows >= 0])
        for query, rows in zip(collection.queries.ids_at(negatives.query_rows), negatives.passage_rows, strict=True)
    }
    assert not any(query in names for query, names in found.items() if query != "x0")
    assert "a1" not in found["t1"]
    assert mined.manifest["metrics"]["left_out_by_text"] == 8  # seven queries and a1


def test_weights_are_chosen_without_them(done: Done) -> None:
    fused = stage(done, "fused")
    assert fused.manifest["metrics"]["own_passages_left_out"] == 7
    values = [point["value"] for point in json.loads((fused.path / "index.json").read_text())["chosen"]["grid"]]
    assert min(values) > 0.9
