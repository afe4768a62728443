"""DeepCT: targets and loss are the paper's, the index is BM25 over words repeated by their weights."""

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from error_lines import names
from hypothesis import given
from hypothesis import strategies as st
from small_runs import MODEL, Done, Text, artifact_files, metrics_of, run_command, some_text, write_beir

from condensery.baselines.term_weights import weighted_bm25
from condensery.baselines.term_weights.config import TrainTermWeightsConfig
from condensery.baselines.term_weights.model import load_term_weights
from condensery.baselines.term_weights.train_term_weights import NO_TARGET, Regression, WeightBatches, WeightChunk
from condensery.baselines.term_weights.words import query_term_recall, read_texts, term_frequencies, weighted_text
from condensery.errors import DiskError
from condensery.losses.gradient_cache import backpropagate
from condensery.retrieval.indexes.terms import Analyser
from condensery.text.collection import Collection
from condensery.tokens.tokenizer import load_tokenizer, train_wordpiece

TEXT = some_text(documents=12, seed=4)
STAGES = [
    *("stages.corpus={stage: corpus}", "stages.tokenizer={stage: tokenizer}", "stages.bm25={stage: bm25}"),
    *("logger=csv", "+table.rows.BM25=bm25", "+table.rows.DeepCT=weighted", "table.baseline=BM25"),
    "stages.weights={stage: train_term_weights, init: backbone, steps: 40, epochs: null, batch_size: 16, length: 80,"
    " learning_rate: 3e-3, checkpoint_every: 10}",
    "stages.weighted={stage: weighted_bm25, weights: weights, shard_size: 10}",
]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("term_weights")
    data = ["data=beir", f"data.root={write_beir(folder / 'beir', TEXT)}", "data.splits.dev=dev"]
    return [*STAGES, *MODEL, *data, "backbone.vocab_size=300", f"output_root={folder / 'out'}"]


@pytest.fixture(scope="module")
def done(recipe: list[str]) -> Done:
    return run_command(*recipe).sound()


def batches_of(done: Done, **changes: Any) -> tuple[WeightBatches, Collection, Any]:
    stages = done.folder / "stages"
    given = {
        "init": "backbone",
        "learning_rate": 1e-3,
        "precision": "fp32",
        "seed": 1,
        "callbacks": {},
        "batch_size": 6,
    }
    backbone = {"name": None, "tokenizer": None, "revision": None, "vocab_size": 300, "family": "bert", "layers": 2}
    backbone |= {"hidden": 32, "heads": 2, "intermediate": 64, "max_positions": 128, "dropout": None}
    config = TrainTermWeightsConfig.model_validate(
        {**given, "backbone": {**backbone, "initializer_range": 0.02}, "length": 40, **changes}
    )
    collection, tokenizer = Collection(stages / "corpus"), load_tokenizer(stages / "tokenizer")
    return WeightBatches(config, collection, tokenizer), collection, tokenizer


def test_the_targets_are_the_share_of_a_passages_queries_that_have_the_word() -> None:
    analyser = Analyser(stemmer="porter")
    queries = [set(analyser.terms(query)) for query in ("What do grasslands need", "the grassland animals", "rain")]
    words = ["tropical", "grassland", "animals", "the", "need", "raining"]
    found = query_term_recall(words, queries, analyser)
    np.testing.assert_allclose(found, [0, 2 / 3, 1 / 3, 0, 1 / 3, 1 / 3], rtol=1e-6)


def test_a_batch_holds_the_targets_at_the_first_token_of_each_word(done: Done) -> None:
    batches, collection, tokenizer = batches_of(done)
    texts, queries = (
        collection.passages.full_texts(np.arange(len(collection.passages))),
        collection.queries.column("text"),
    )
    asked: dict[str, list[str]] = {}
    for query, passages in collection.qrels("train").positives().items():
        for passage in passages.tolist():
            asked.setdefault(texts[passage], []).append(queries[query])
    assert len(batches.passages) == len(asked)
    assert batches.steps_an_epoch() == -(-len(asked) // 6)
    seen = set()
    analyser = Analyser(stemmer="porter")
    for step in range(batches.steps_an_epoch()):
        batch = batches.batch(step)
        assert batch.tokens == sum(int(chunk.lengths.sum()) for chunk in batch.chunks)
        for chunk in batch.chunks:
            assert isinstance(chunk, WeightChunk)
            for ids, length, weights in zip(
                chunk.input_ids.tolist(), chunk.lengths.tolist(), chunk.weights, strict=True
            ):
                text = next(
                    text
                    for text in asked
                    if tokenizer(text, truncation=True, max_length=40)["input_ids"] == ids[:length]
                )
                seen.add(text)
                pieces = tokenizer.convert_ids_to_tokens(ids[:length])
                # the word of a token: its pieces joined, as the text has no word of several scripts or with an underscore
                for place, piece in enumerate(pieces):
                    if piece in ("[CLS]", "[SEP]", ".") or piece.startswith("##"):
                        assert weights[place] == NO_TARGET
                        continue
                    more = [one[2:] for one in _continuing(pieces[place + 1 :])]
                    word = piece + "".join(more)
                    if place + 1 + len(more) == length - 1:
                        continue  # the last word may be cut
                    having = [bool(set(analyser.terms(word)) & set(analyser.terms(query))) for query in asked[text]]
                    assert weights[place] == pytest.approx(sum(having) / len(having))
                assert (weights[length:] == NO_TARGET).all()
    assert seen == set(asked)


def _continuing(pieces: list[str]) -> list[str]:
    number = next((at for at, piece in enumerate(pieces) if not piece.startswith("##")), len(pieces))
    return pieces[:number]


@pytest.mark.parametrize("budget", [80, 100_000])
def test_the_loss_is_the_mean_squared_error_over_the_words_however_it_is_chunked(budget: int, done: Done) -> None:
    batches, *_ = batches_of(done, chunk_tokens=budget)
    model, length = load_term_weights(done.folder / "stages" / "weights")
    assert length == 80
    model.eval()
    batch = batches.batch(1)
    assert (len(batch.chunks) == 1) == (budget > 1000)
    errors = []
    for chunk in batch.chunks:
        for at, number in enumerate(chunk.lengths.tolist()):
            states = model.encoder.model(chunk.input_ids[at : at + 1, :number]).last_hidden_state[0]  # (t, d)
            linear = model.encoder.head[0].linear
            weights = states @ linear.weight[0] + linear.bias
            targets = chunk.weights[at, :number]  # type: ignore[attr-defined]
            errors.append((weights - targets)[targets != NO_TARGET] ** 2)
    wanted = torch.cat(errors).mean()
    wanted.backward()
    gradient = [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]
    model.zero_grad()
    losses = backpropagate(Regression(model, len(torch.cat(errors))), batch.chunks, None, lambda loss: loss.backward())
    assert losses["weight"].item() == pytest.approx(wanted.item(), rel=1e-5)
    for ours, theirs in zip((w.grad for w in model.parameters() if w.grad is not None), gradient, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@given(st.lists(st.floats(-1, 2), min_size=1), st.integers(1, 1000))
def test_frequencies_are_rounded_weights_and_never_negative(weights: list[float], scale: int) -> None:
    found = term_frequencies(np.array(weights), scale)
    assert found.tolist() == [max(0, round(scale * weight)) for weight in weights]


def test_a_word_that_stands_several_times_has_its_largest_frequency() -> None:
    text = weighted_text(["rain", "falls", "rain", "on", "stone"], np.array([2, 1, 5, 0, 3]))
    assert Counter(text.split()) == {"rain": 5, "falls": 1, "stone": 3}
    assert weighted_text(["rain"], np.array([0])) == ""


def test_words_are_those_of_bm25_where_their_first_token_is_read(done: Done) -> None:
    tokenizer = load_tokenizer(done.folder / "stages" / "tokenizer")
    text = "Call foo_bar(x2) of naïve U.S. strings, 3.5 times"
    (whole,) = read_texts([text], tokenizer, 200)
    assert [word.lower() for word in whole.words] == Analyser("none").terms(text)
    assert whole.ids == tokenizer(text)["input_ids"]
    (cut,) = read_texts([text], tokenizer, 10)
    assert cut.words == whole.words[: len(cut.words)]
    assert 0 < len(cut.words) < len(whole.words)
    assert cut.places.max() < 9


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("हिन्दी में खोज करना", "any"),  # the vowel signs are marks
        ("re\u0301sume\u0301 des e\u0301coles", "any"),
        ("می\u200cخواهم کتاب بخوانم", "persian"),
        ("soft\u00adhyphens, \u200fmarks", "any"),
        ("ISI Irmak İstanbul ılık", "turkish"),
        ("ภาษาไทยไม่มีช่องว่าง", "thai"),
    ],
)
def test_in_any_language_the_indexed_terms_are_those_of_bm25(text: str, language: str, tmp_path: Path) -> None:
    tokenizer = train_wordpiece([text] * 3, 200, tmp_path, warn=False)
    (read,) = read_texts([text], tokenizer, 60)
    analyser = Analyser("none", language=language)
    assert analyser.terms(weighted_text(read.words, np.ones(len(read.words), int))) == analyser.terms(text)
    assert query_term_recall(read.words, [set(analyser.terms(text))], analyser).tolist() == [1.0] * len(read.words)


def run_of(done: Done, stage: str) -> list[list[str]]:
    with gzip.open(done.folder / "stages" / f"{stage}.evaluation" / "run.trec.gz", "rt") as stream:
        return [[*line.split()[:1], *line.split()[2:5]] for line in stream]


def test_the_index_is_bm25_over_the_repeated_words(done: Done, tmp_path: Path) -> None:
    model, _ = load_term_weights(done.folder / "stages" / "weights")
    model.eval()
    tokenizer, linear = load_tokenizer(done.folder / "stages" / "tokenizer"), model.encoder.head[0].linear
    passages = []
    for name, title, text, of in TEXT.passages:
        (read,) = read_texts([f"{title} {text}"], tokenizer, 80)
        with torch.inference_mode():
            states = model.encoder.model(torch.tensor([read.ids])).last_hidden_state[0]
            weights = (states @ linear.weight[0] + linear.bias).numpy()[read.places]
        largest: dict[str, int] = {}
        for word, weight in zip(read.words, weights.tolist(), strict=True):
            largest[word.lower()] = max(largest.get(word.lower(), 0), round(100 * weight))
        passages.append(
            (name, "", " ".join(word for word, number in largest.items() for _ in range(number)) or "-", of)
        )
    beir = write_beir(tmp_path / "repeated", Text(passages, TEXT.questions))
    plain = run_command(
        *("stages.corpus={stage: corpus}", "stages.bm25={stage: bm25}", "+table.rows.BM25=bm25", "logger=csv"),
        *("data=beir", f"data.root={beir}", "data.splits.dev=dev", "trainer=cpu", f"output_root={tmp_path / 'out'}"),
    ).sound()
    assert run_of(done, "weighted") == run_of(plain, "bm25")
    assert run_of(done, "weighted") != run_of(done, "bm25")


@pytest.mark.slow
def test_a_stopped_training_and_a_stopped_index_go_on_to_the_same_bytes(
    done: Done, recipe: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [*recipe, f"output_root={tmp_path / 'out'}"]
    real, calls = WeightBatches.batch, 0

    def stopping(self: WeightBatches, step: int, *given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 25:
            raise DiskError("stopped")
        return real(self, step, *given)

    monkeypatch.setattr(WeightBatches, "batch", stopping)
    assert run_command(*arguments).code != 0
    chunks, read = weighted_bm25.chunks, 0

    def failing(*given: Any) -> Any:
        nonlocal read
        read += 1
        if read == 3:
            raise DiskError("stopped")
        return chunks(*given)

    monkeypatch.setattr(weighted_bm25, "chunks", failing)
    again = run_command(*arguments)
    assert again.code != 0
    assert "[weights] resumes from step 20 of 40" in again.out
    again = run_command(*arguments).sound()
    assert again.computed[0] == "weighted"
    mine, wanted = artifact_files(again.folder), artifact_files(done.folder)
    assert [name for name in wanted if mine.get(name) != wanted[name]] == []


def test_it_learns_which_words_queries_have(done: Done) -> None:
    model, _ = load_term_weights(done.folder / "stages" / "weights")
    model.eval()
    batches, *_ = batches_of(done, length=80, batch_size=100)
    weights, targets = [], []
    for chunk in batches.batch(0).chunks:
        assert isinstance(chunk, WeightChunk)
        with torch.inference_mode():
            weights.append(model.weights(chunk)[chunk.weights >= 0])
        targets.append(chunk.weights[chunk.weights >= 0])
    found, wanted = torch.cat(weights), torch.cat(targets)
    assert found[wanted > 0].mean() > 1.2 * found[wanted == 0].mean()
    assert ((found - wanted) ** 2).mean() < wanted.var(), "better than the mean target for all words"
    assert list(metrics_of(done.folder)) == ["BM25", "DeepCT"]


def test_a_split_without_judgements_is_one_line(recipe: list[str]) -> None:
    done = run_command(*recipe, "stages.weights.split=dl19", "dry_run=plan")
    assert done.code == 1
    names(done.err, "stages.weights.split", "dl19")
    done = run_command(*recipe, "stages.weighted.weights=bm25", "dry_run=plan")
    assert done.code == 1
    names(done.err, "stages.weighted.weights", "makes index, but term_weights is needed")


def test_the_recipe_runs_to_its_table(tmp_path: Path) -> None:
    data = ["data=beir", f"data.root={write_beir(tmp_path / 'beir', TEXT)}", "data.splits.dev=dev"]
    done = run_command(
        "experiment=deepct",
        *data,
        *MODEL,
        "stage.train_term_weights.steps=2",
        "logger=csv",
        f"output_root={tmp_path / 'out'}",
    ).sound()
    assert list(metrics_of(done.folder)) == ["BM25", "DeepCT"]
