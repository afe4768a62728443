"""TAS-Balanced: queries by topic, batches of one topic, pairs of even margins, and the stage that trains on them."""

import pickle
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from condensery.baselines.tas_b.batches import BalancedPairs, TopicOrder
from condensery.baselines.tas_b.clusters import CLUSTERS, QUERIES, clusters_of
from condensery.errors import UserError
from condensery.retrieval.pair_scores import PairScores, TeacherScores
from condensery.system.files import write_json
from condensery.text.collection import Collection
from condensery.training.data.triple_batches import TripleBatches

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
sys.path.insert(0, str(Path(__file__).parents[1] / "stages"))
import trainings
from single_stage import inputs, run_stage
from small_runs import check_refused


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A collection, and a dense index in which its queries lie around three points, far apart."""
    folder = tmp_path_factory.mktemp("topics")
    corpus = inputs(folder)["corpus"]
    collection, random = Collection(corpus), np.random.default_rng(3)
    points = np.arange(len(collection.queries)) % 3
    queries = 50 * np.eye(4)[points] + random.normal(size=(len(points), 4))
    index = folder / "index"
    index.mkdir()
    np.save(index / "queries.npy", queries.astype(np.float32))
    np.save(index / "passages-00000.npy", random.normal(size=(len(collection.passages), 4)).astype(np.float32))
    rows = len(collection.passages)
    write_json(index / "index.json", {"method": "dense", "passages": rows, "dim": 4, "shards": [[0, rows]]})
    return {"corpus": corpus, "retriever": index}


def test_queries_that_are_alike_are_in_one_cluster_to_the_same_bytes(made: dict[str, Path], tmp_path: Path) -> None:
    found = run_stage("cluster_queries", tmp_path / "one", made, retriever="x", clusters=3)
    rows, clusters = np.load(tmp_path / "one" / QUERIES), np.load(tmp_path / "one" / CLUSTERS)
    assert rows.tolist() == sorted(Collection(made["corpus"]).qrels("train").query_set.tolist())
    pairs = set(zip((rows % 3).tolist(), clusters.tolist(), strict=True))
    assert len(pairs) == 3, "each point is one cluster"
    assert found == {"queries": len(rows), "clusters": 3, "largest": found["largest"], "smallest": found["smallest"]}
    run_stage("cluster_queries", tmp_path / "two", made, retriever="x", clusters=3)
    for name in (QUERIES, CLUSTERS):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    np.testing.assert_array_equal(clusters_of(tmp_path / "one", rows[::-2], "here"), clusters[::-2])
    with pytest.raises(
        UserError, match=r"^here: 1 of 2 training queries are in no cluster; cluster the queries of the"
    ):
        clusters_of(tmp_path / "one", np.array([rows[0], rows[-1] + 1]), "here")


def test_clusters_that_cannot_be_are_one_line(made: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"^stages.cluster_queries.clusters: 2,000 clusters of \d+ queries; set it to \d+"
    ):
        run_stage("cluster_queries", tmp_path / "many", made, retriever="x")
    run_stage("bm25", tmp_path / "bm25", {"corpus": made["corpus"]})
    lexical = {**made, "retriever": tmp_path / "bm25"}
    with pytest.raises(
        UserError, match=r"^stages.cluster_queries.retriever: bm25 has no vectors of queries; name a dense"
    ):
        run_stage("cluster_queries", tmp_path / "words", lexical, retriever="bm25", clusters=3)


def order(sizes: list[int], batch_size: int, clusters_per_batch: int = 1) -> tuple[TopicOrder, np.ndarray]:
    clusters = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)) * 3, sizes))  # numbers with gaps
    return TopicOrder.of(clusters, batch_size, clusters_per_batch, seed=4), clusters


@pytest.mark.parametrize("per_batch", [1, 2])
def test_a_batch_has_the_queries_of_as_many_clusters_as_asked_for(per_batch: int) -> None:
    made, clusters = order([9, 12, 8, 10], batch_size=8, clusters_per_batch=per_batch)
    first: Counter[int] = Counter()
    for step in range(400):
        epoch, items = made(step)
        assert epoch == step, "the passages of each batch are drawn anew"
        assert len(items) == len(set(items.tolist())) == 8
        of = Counter(clusters[items].tolist())
        assert sorted(of.values()) == [8 // per_batch] * per_batch
        first[int(clusters[items[0]])] += 1
    assert min(first.values()) > 400 / 4 * 0.7, "all clusters are equally likely"
    np.testing.assert_array_equal(made(7)[1], pickle.loads(pickle.dumps(made))(7)[1])
    assert made(7)[1].tolist() != made(8)[1].tolist()


def test_small_clusters_are_filled_up_from_others_and_no_query_comes_twice() -> None:
    made, clusters = order([3, 2, 4], batch_size=6)
    for step in range(50):
        _, items = made(step)
        assert len(items) == len(set(items.tolist())) == 6
        whole = [
            number for number, count in Counter(clusters[items].tolist()).items() if count == (clusters == number).sum()
        ]
        assert whole, "the first cluster is taken whole"
    assert len(order([3, 2], batch_size=6)[0](0)[1]) == 5, "there are no more"


def balanced(folder: Path, bins: int, negatives: int = 1) -> tuple[TripleBatches, dict[tuple[int, int], float]]:
    """Batches of 13 queries, and the teacher's score of each pair of a query's number and a passage."""
    training = trainings.training_queries(pool=20)
    pools = np.asarray(training.negatives[np.arange(len(training.rows))]).copy()
    pools[0] = -1
    scores = np.random.default_rng(2).lognormal(sigma=1.5, size=(len(training.rows), 30)).astype(np.float32)
    scores[:, 7] = np.nan  # a passage that the teacher has not scored
    scores[2] = np.nan  # and a query of which it has scored nothing
    pairs = PairScores(training.rows, np.tile(np.arange(30), (len(scores), 1)), scores)
    training = replace(training, negatives=pools, teacher=TeacherScores([pairs], training.rows))
    made = trainings.triple_batches(folder, training, negatives=negatives)
    made.pairs = BalancedPairs(made, bins)
    return made, {(query, passage): float(scores[query, passage]) for query, passage in np.ndindex(*scores.shape)}


def margins(made: TripleBatches, scores: dict[tuple[int, int], float], query: int) -> dict[tuple[int, int], float]:
    training = made.training
    own = training.positives[training.starts[query] : training.starts[query + 1]].tolist()
    pool = [one for one in np.asarray(training.negatives[np.array([query])])[0].tolist() if one >= 0 and one not in own]
    every = {(p, n): scores[query, p] - scores[query, n] for p in own for n in pool}
    return {pair: margin for pair, margin in every.items() if margin == margin}


@pytest.mark.slow
def test_every_bin_that_holds_a_pair_is_equally_likely_and_every_pair_of_it(tmp_path: Path) -> None:
    made, scores = balanced(tmp_path, bins=4)
    query, draws = 11, 3000
    known = margins(made, scores, query)
    low, high = min(known.values()), max(known.values())
    bins = {pair: min(3, int((margin - low) / (high - low) * 4)) for pair, margin in known.items()}
    sizes = Counter(bins.values())
    found: Counter[tuple[int, int]] = Counter()
    for epoch in range(draws):
        positive, hard = made.draw(epoch, np.array([query]))
        found[int(positive[0]), int(hard[0, 0])] += 1
    assert set(found) == set(bins), "all pairs are drawn, and no others"
    assert max(sizes.values()) > 3 * min(sizes.values()), "bins differ in size, or this shows nothing"
    of_bins = Counter({number: sum(found[pair] for pair in bins if bins[pair] == number) for number in sizes})
    for number, count in of_bins.items():
        assert count / draws == pytest.approx(1 / len(sizes), abs=0.05)
        for pair in (pair for pair in bins if bins[pair] == number):
            assert found[pair] / count == pytest.approx(1 / sizes[number], abs=0.12)


@pytest.mark.parametrize("negatives", [1, 3])
def test_draws_are_a_function_of_query_and_epoch_and_never_relevant(negatives: int, tmp_path: Path) -> None:
    made, scores = balanced(tmp_path, bins=10, negatives=negatives)
    every = np.arange(13)
    for epoch in range(20):
        positive, hard = made.draw(epoch, every)
        assert hard.shape == (13, negatives)
        for query in every.tolist():
            alone = made.draw(epoch, np.array([query]))
            assert (alone[0][0], alone[1][0].tolist()) == (positive[query], hard[query].tolist())
            pairs = margins(made, scores, query)
            kept = min(negatives, len({negative for _, negative in pairs}))
            assert all((positive[query], negative) in pairs for negative in hard[query, :kept].tolist())
            if len(pairs) > negatives:
                assert len(set(hard[query].tolist())) == negatives
    evenly = made.draw_evenly(0, every)
    for query in (0, 2):  # without a pool, and without a score
        assert made.draw(0, every)[1][query].tolist() == evenly[1][query].tolist()
    assert made.draw(0, every)[1].tolist() != evenly[1].tolist()
    sent = pickle.loads(pickle.dumps(made))  # as to a process that makes batches
    assert sent.draw(3, every)[1].tolist() == made.draw(3, every)[1].tolist()
    assert made.batch(0).teacher is not None


WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"stages.tas_b.batching": "sequential"},
        "batching: sequential, but the batches of finetune_tas_b are",
    ),
    ({"stages.tas_balanced.teacher": "[]"}, "margin_bins: balances the margins of a teacher, but none is set"),
    (
        {"stages.tas_b.in_batch_teacher": "null"},
        "dual_supervision learns from two teachers; set both teacher and in_batch",
    ),
    ({"stages.tas_balanced.in_batch_teacher": "fused"}, "the loss margin_mse learns from one teacher"),
    ({"stages.tas_b.loss": "passage_centric"}, "teacher: the loss passage_centric takes no teacher's scores"),
    ({"stages.tas_b.clusters_per_batch": "97"}, "clusters_per_batch: 97, more than batch_size"),
    ({"stages.tas_b.negative_weights": "[1.0]"}, "negative_weights: pairs are drawn by their margins"),
    ({"stages.tas_b.clusters": "mined"}, "mined"),
    ({"stages.tas_b.split": "dev"}, "clusters: the queries of clusters are those of train, not of dev"),
    (
        {
            "stages.labelled": "{stage: pseudo_label, retriever: round1, cross_encoders: [cross]}",
            "stages.cross": "{stage: train_cross_encoder, init: round1, steps: 1, epochs: null}",
            "stages.tas_b.labels": "[labelled]",
            "data.unlabelled_queries": "100",
        },
        "labels: queries without judgements are in no cluster",
    ),
    (
        {
            "stages.round1_test": "{stage: encode, model: round1, query_splits: [test]}",
            "stages.tas_b.in_batch_teacher": "round1_test",
        },
        "in_batch_teacher: only the queries of test are encoded, not those of train",
    ),
]


@pytest.mark.parametrize(("changes", "said"), WRONG)
def test_what_cannot_be_is_one_line_before_any_work(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    given = [f"++{key}={value}" for key, value in changes.items()]
    check_refused(tmp_path, said, "experiment=tas_b", *given)
