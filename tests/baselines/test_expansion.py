"""docT5query and doc2query--: the expanded index is that of the concatenated text, the filter is a plain threshold."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from error_lines import names
from small_runs import MODEL, Done, Text, metrics_of, run_command, some_text, write, write_beir
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from condensery.baselines.expansion.filter_queries import best_share
from condensery.errors import DiskError
from condensery.retrieval import cross_encoders
from condensery.tokens.artifacts import Queries

TEXT = some_text(documents=12, seed=2)
QUESTIONS = {passage: question for _, question, passage in TEXT.questions}
# several queries for some passages, one for others, none for every seventh
GENERATED = {
    name: [f"{title} in {number}" for number in range(int(name) % 3 + 1)] + [QUESTIONS.get(name, "the rest of it")]
    for name, title, *_ in TEXT.passages
    if int(name) % 7
}
STAGES = [
    *("stages.corpus={stage: corpus}", "stages.tokenizer={stage: tokenizer}", "stages.bm25={stage: bm25}"),
    *("stages.tokens={stage: tokens, titles: false, workers: 1}", "logger=csv", "+table.rows.BM25=bm25"),
    "stages.passages={stage: passages, grouping: collection, titles: false, workers: 1}",
    "stages.expanded={stage: expanded_bm25, queries: queries}",
    "stages.cross={stage: train_cross_encoder, init: backbone, steps: 2, epochs: null, batch_size: 4, length: 120,"
    " validate_every: 0}",
    "stages.filtered={stage: filter_queries, queries: queries, cross_encoders: [cross], share: 0.4, shard_size: 16}",
    "stages.kept={stage: expanded_bm25, queries: filtered}",
    *("+table.rows.docT5query=expanded", "+table.rows.doc2query--=kept", "table.baseline=BM25"),
]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("expansion")
    data = ["data=beir", f"data.root={write_beir(folder / 'beir', TEXT)}", "data.splits.dev=dev"]
    lines = (json.dumps({"id": name, "queries": queries}) for name, queries in GENERATED.items())
    queries = f"stages.queries={{stage: read_queries, path: {write(folder / 'queries.jsonl', lines)}, missing: skip}}"
    return [*STAGES, *MODEL, *data, queries, "backbone.vocab_size=300", f"output_root={folder / 'out'}"]


@pytest.fixture(scope="module")
def done(recipe: list[str]) -> Done:
    return run_command(*recipe).sound()


def run_of(done: Done, stage: str) -> list[list[str]]:
    """Query, passage, rank and score of each line of a row's run."""
    with gzip.open(done.folder / "stages" / f"{stage}.evaluation" / "run.trec.gz", "rt") as stream:
        return [[*line.split()[:1], *line.split()[2:5]] for line in stream]


def test_the_expanded_index_is_bm25_over_the_concatenated_text(done: Done, tmp_path: Path) -> None:
    passages = [
        (name, title, " ".join([text, *GENERATED.get(name, [])]), of) for name, title, text, of in TEXT.passages
    ]
    beir = write_beir(tmp_path / "joined", Text(passages, TEXT.questions))
    plain = run_command(
        *("stages.corpus={stage: corpus}", "stages.bm25={stage: bm25}", "+table.rows.BM25=bm25", "logger=csv"),
        *("data=beir", f"data.root={beir}", "data.splits.dev=dev", "trainer=cpu", f"output_root={tmp_path / 'out'}"),
    ).sound()
    assert run_of(done, "expanded") == run_of(plain, "bm25")
    assert run_of(done, "expanded") != run_of(done, "bm25")
    rows = metrics_of(done.folder)
    assert rows["docT5query"]["MRR@10"] > rows["BM25"]["MRR@10"], "it holds the questions themselves"


def test_the_kept_queries_are_those_above_the_quantile_of_the_cross_encoders_logits(done: Done) -> None:
    stages = done.folder / "stages"
    before, after = Queries(stages / "queries"), Queries(stages / "filtered")
    tokenizer = AutoTokenizer.from_pretrained(stages / "cross")
    model = AutoModelForSequenceClassification.from_pretrained(stages / "cross").eval()
    pairs = [(row, query) for row in range(len(TEXT.passages)) for query in before.texts(row)]
    texts = [text for _, _, text, _ in TEXT.passages]
    scores = []
    with torch.inference_mode():
        for row, query in pairs:
            read = tokenizer(query, texts[row], truncation="only_second", max_length=120, return_tensors="pt")
            scores.append(float(model(**read).logits[0, 0]))
    np.testing.assert_allclose(np.load(stages / "filtered" / "scores.npy")[:, 0], scores, atol=1e-4)
    number = round(0.4 * len(scores))
    threshold = sorted(scores, reverse=True)[number - 1]
    wanted = [pair for pair, score in zip(pairs, scores, strict=True) if score >= threshold]
    assert [(row, query) for row in range(len(TEXT.passages)) for query in after.texts(row)] == wanted
    assert 0 < len(wanted) < len(pairs)
    assert f"[filtered] {len(wanted)} of {len(pairs)} queries are kept" in done.out


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 1.0])
def test_a_share_of_the_scores_is_kept(share: float) -> None:
    scores = np.random.default_rng(3).normal(size=1001).astype(np.float32)
    kept = best_share(scores, share)
    assert kept.sum() == pytest.approx(share * 1001, abs=1)
    assert scores[kept].min() > (scores[~kept].max() if share < 1 else -np.inf)
    assert best_share(np.ones(5, np.float32), share).all(), "equal scores at the threshold are all kept"


def test_stopped_while_it_scores_it_ends_with_the_same_bytes(
    done: Done, recipe: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = cross_encoders.logits, 0

    def stopping(*given: object) -> object:
        score = real(*given)  # type: ignore[arg-type]

        def scored(*rows: object) -> object:
            nonlocal calls
            calls += 1
            if calls == 3:
                raise DiskError("stopped")
            return score(*rows)  # type: ignore[arg-type]

        return scored

    monkeypatch.setattr("condensery.baselines.expansion.filter_queries.logits", stopping)
    arguments = [*recipe, f"output_root={tmp_path / 'out'}"]
    assert run_command(*arguments).code != 0
    again = run_command(*arguments).sound()
    assert "cross" not in again.computed
    for name in ("queries.jsonl", "scores.npy", "first.npy"):
        mine, wanted = (one.folder / "stages" / "filtered" / name for one in (again, done))
        assert mine.read_bytes() == wanted.read_bytes()


def test_what_does_not_belong_together_is_one_line(recipe: list[str]) -> None:
    split = "stages.passages={stage: passages, length: 48, workers: 1}"
    done = run_command(*recipe, split, "dry_run=plan")
    assert done.code == 1
    names(done.err, "passages", "passages splits the documents in its own way", "grouping", "collection")
    more = "stages.others={stage: passages, grouping: collection, titles: true, workers: 1}"
    done = run_command(*recipe, more, "stages.expanded={stage: expanded_bm25, queries: queries, passages: others}")
    assert done.code == 1
    names(done.err, "stages.expanded.queries", "made for other passages")
    words = "stages.words={stage: tokenizer, vocab_size: 350}"
    tokens = "stages.more={stage: tokens, titles: false, workers: 1, tokenizer: words}"
    cross = (
        "stages.cross={stage: train_cross_encoder, init: backbone, steps: 2, epochs: null, batch_size: 4, length: 120,"
        " validate_every: 0, tokenizer: words, tokens: more}"
    )
    done = run_command(*recipe, words, tokens, cross)
    assert done.code == 1
    names(done.err, "stages.filtered.cross_encoders", "another tokenizer")


def test_the_recipe_runs_to_its_table(tmp_path: Path) -> None:
    data = ["data=beir", f"data.root={write_beir(tmp_path / 'beir', TEXT)}", "data.splits.dev=dev"]
    few = [f"stage.{kind}.steps=2" for kind in ("finetune_generator", "train_cross_encoder")]
    done = run_command(
        "experiment=doc2query", *data, *MODEL, *few, "logger=csv", f"output_root={tmp_path / 'out'}"
    ).sound()
    assert list(metrics_of(done.folder)) == ["BM25", "docT5query", "doc2query--"]
