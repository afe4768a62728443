"""What a program of one's own computes is what the stages compute; and what is wrong with its input is said."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from single_stage import TEXT, inputs, run_stage
from small_runs import write_beir
from transformers import BertConfig, BertModel

import condensery
from condensery import BM25, Retriever, UserError, evaluate
from condensery.evaluation.metrics import evaluate as evaluate_run
from condensery.retrieval import neighbours
from condensery.retrieval.indexes.dense import DenseIndex
from condensery.retrieval.indexes.opening import open_index
from condensery.retrieval.runs import Run
from condensery.system import processor
from condensery.system.files import read_json
from condensery.system.processor import quick_precision
from condensery.text.collection import Collection
from condensery.tokens.tokenizer import load_tokenizer

LENGTHS = {"query_length": 16, "passage_length": 40}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A collection, a tokenizer, a retriever with random weights, and both indexes, as the stages make them."""
    folder = tmp_path_factory.mktemp("made")
    read = inputs(folder)
    tokenizer = load_tokenizer(read["tokenizer"])
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=40, **sizes)
    BertModel(config, add_pooling_layer=False).save_pretrained(folder / "plain")
    tokenizer.save_pretrained(folder / "plain")
    run_stage("retriever", folder / "retriever", {}, folder=folder / "plain", **LENGTHS)
    run_stage("tokens", folder / "tokens", read, titles=True)
    dense = {"model": folder / "retriever", "tokens": folder / "tokens", "corpus": read["corpus"]}
    run_stage("encode", folder / "dense", dense)
    run_stage("retriever", folder / "narrow", {}, folder=folder / "plain", query_length=16, passage_length=14)
    run_stage("encode", folder / "windows", {**dense, "model": folder / "narrow"}, windows=3)
    for dtype in ("int8", "binary"):
        run_stage("encode", folder / dtype, dense, dtype=dtype)
    run_stage("encode", folder / "int8 windows", {**dense, "model": folder / "narrow"}, windows=3, dtype="int8")
    run_stage("bm25", folder / "bm25", {"corpus": read["corpus"]})
    return {path.name: path for path in folder.iterdir()}


@pytest.mark.parametrize("dtype", ["int8", "binary"])
def test_the_precision_of_the_encoder_leaves_the_search_that_measures_quantisation_alone(
    dtype: str, made: dict[str, Path], tmp_path: Path
) -> None:
    read = {"model": made["retriever"], "tokens": made["tokens"], "corpus": made["corpus"]}
    values = run_stage("encode", tmp_path / dtype, read, dtype=dtype, precision="bf16")
    assert values["compared"] == len(TEXT.questions)
    assert 0 < values["recall_10"] <= 1


def passages(corpus: Path) -> dict[str, dict[str, str]]:
    table = Collection(corpus).passages
    columns = (table.column(name) for name in ("id", "title", "text"))
    return {name: {"title": title, "text": text} for name, title, text in zip(*columns, strict=True)}


def test_a_retriever_has_the_vectors_of_the_stage_encode(made: dict[str, Path]) -> None:
    retriever = Retriever(made["retriever"], device="cpu", precision="fp32")
    assert (retriever.query_length, retriever.passage_length) == (16, 40)
    texts = passages(made["corpus"])
    index = DenseIndex(made["dense"], device="cpu")
    found = retriever.encode_passages([one["text"] for one in texts.values()], [one["title"] for one in texts.values()])
    np.testing.assert_allclose(found, index.passage_vectors(np.arange(len(texts))), atol=1e-5)
    questions = Collection(made["corpus"]).queries.column("text")[:]
    np.testing.assert_allclose(
        retriever.encode_queries(questions), index.query_vectors(np.arange(len(questions))), atol=1e-5
    )
    assert retriever.encode_queries([]).shape[0] == 0


def test_windows_of_texts_change_no_vector(made: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    texts = passages(made["corpus"])
    given = [[one[part] for one in texts.values()] for part in ("text", "title")]
    retriever = Retriever(made["retriever"], device="cpu", precision="fp32")
    whole = retriever.encode_passages(*given)
    monkeypatch.setattr("condensery.retrieval.searchers.retriever.WINDOW", 5)
    assert len(texts) > 15
    np.testing.assert_allclose(retriever.encode_passages(*given), whole, atol=1e-6)
    with pytest.raises(UserError, match=r"encode: .* titles, but .* texts"):
        retriever.encode_passages(given[0], given[1][:-1])
    with pytest.raises(UserError, match="text"):
        retriever.encode_passages([*given[0], "half of a pair: \ud800"])


def test_the_precision_is_that_of_a_recipe(
    made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense = {"model": made["retriever"], "tokens": made["tokens"], "corpus": made["corpus"]}
    run_stage("encode", tmp_path / "bf16", dense, precision="bf16")
    texts = passages(made["corpus"])
    given = [[one[part] for one in texts.values()] for part in ("text", "title")]
    found: dict[str, np.ndarray] = {}
    for quick, precision in ((True, "bf16"), (False, "fp32")):
        monkeypatch.setattr(processor, "_cpu_is_quick_at_bf16", lambda quick=quick: quick)
        retriever = Retriever(made["retriever"], device="cpu")
        assert retriever.precision == precision == quick_precision("cpu")
        assert retriever.identity().endswith(" bf16") is quick
        found[precision] = retriever.encode_passages(*given)
        asked = Retriever(made["retriever"], device="cpu", precision=precision).encode_passages(*given)  # type: ignore[arg-type]
        assert (asked == found[precision]).all()
    index = DenseIndex(tmp_path / "bf16", device="cpu")
    ours, wanted = found["bf16"], index.passage_vectors(np.arange(len(texts)))
    rounding = np.abs(ours - found["fp32"]).max()
    assert 1e-5 < rounding / np.abs(wanted).max() < 1e-2
    assert np.abs(ours - wanted).max() < rounding / 2, "the stage rounds at the same places"


def test_bm25_is_set_in_python_as_in_a_recipe(made: dict[str, Path]) -> None:
    settings = {name: parameter.default for name, parameter in inspect.signature(BM25).parameters.items()}
    stage = read_json(made["bm25"] / "index.json")
    assert (settings.pop("language"), stage["language"]) == ("auto", "any"), "guessed of English"
    assert {name: stage[name] for name in settings} == settings == neighbours.BM25


@pytest.mark.parametrize("kind", ["dense", "windows", "bm25", "int8", "binary", "int8 windows"])
def test_it_finds_and_measures_what_the_stages_do(kind: str, made: dict[str, Path], tmp_path: Path) -> None:
    searchers = {
        "dense": lambda: Retriever(made["retriever"], device="cpu", precision="fp32"),
        "windows": lambda: Retriever(made["narrow"], device="cpu", windows=3, precision="fp32"),
        "bm25": BM25,
        "int8": lambda: Retriever(made["retriever"], device="cpu", dtype="int8", precision="fp32"),
        "binary": lambda: Retriever(made["retriever"], device="cpu", dtype="binary", precision="fp32"),
        "int8 windows": lambda: Retriever(made["narrow"], device="cpu", windows=3, dtype="int8", precision="fp32"),
    }
    retriever = searchers[kind]()
    metrics = ["MRR@10", "Recall@5"]
    collection = Collection(made["corpus"])
    queries = collection.questions("train")
    scores, rows = open_index(made[kind], collection, device="cpu").search(queries, 10)
    wanted = evaluate_run(Run(queries, rows, scores), collection, "train", metrics).metrics
    assert evaluate(retriever, collection, metrics, split="train") == pytest.approx(wanted)
    assert len(retriever) == 0, "the retriever's own index stays as it is"
    folder = write_beir(tmp_path / "beir", TEXT)
    assert evaluate(retriever, folder, ["MRR@10"]).keys() == {"MRR@10"}


@pytest.mark.parametrize("windows", [1, 3])
@pytest.mark.parametrize(("dtype", "bits"), [("int8", 8), ("binary", 1)])
def test_vectors_in_fewer_bits_say_what_they_lose_and_score_by_their_levels(
    dtype: Any, bits: int, windows: int, made: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    texts = passages(made["corpus"])
    exact = Retriever(made["narrow"], device="cpu", windows=windows, precision="fp32").index(texts)
    capsys.readouterr()
    fewer = Retriever(made["narrow"], device="cpu", windows=windows, dtype=dtype, precision="fp32").index(texts)
    said = capsys.readouterr().out
    before, after = exact.passage_vectors, fewer.passage_vectors
    number = len(before)
    assert after.shape == before.shape
    assert all(len(np.unique(column)) <= 2**bits for column in after.T)
    for depth in (10, 100):
        wanted = hits = 0
        for row in range(number):
            best, found = (
                [one for one in np.argsort(-(vectors @ before[row]), kind="stable") if one != row][:depth]
                for vectors in (before, after)
            )
            wanted, hits = wanted + len(best), hits + len({*best} & {*found})
        share = re.search(rf"([\d.]+) % of the {depth} best", said)
        assert share is not None
        assert float(share[1]) == pytest.approx(100 * hits / wanted, abs=2), "but for scores that rounding orders"
    assert f"{dtype}: " in said
    assert f"({number:,} passages as queries)" in said
    question = "a question about a river"
    (scores,) = fewer.score([question], np.arange(len(texts))[None])
    products = after @ fewer.encode_queries([question])[0]
    if windows == 1:
        np.testing.assert_allclose(scores, products, atol=1e-4)
    assert max(scores) == pytest.approx(max(products), abs=1e-4)
    assert fewer.search(question)[0].score == pytest.approx(max(products), abs=1e-4)
    assert fewer.identity() != exact.identity()


def test_hits_say_what_was_found(made: dict[str, Path]) -> None:
    texts = ["the cat sat on the mat", "dogs bark at the moon", "a cat and a dog"]
    bm25 = BM25().index(texts)
    (hit,) = bm25.search("moon")
    assert (hit.rank, hit.id, hit.title, hit.text) == (1, "1", "", texts[1])
    assert [[one.id for one in found] for found in bm25.search(["cat", "no such word"], k=5)] == [["2", "0"], []]
    named = {"a": "the cat sat", "b": {"title": "Dogs", "text": "bark"}}
    assert [one.title for one in bm25.index(named).search("dogs")] == ["Dogs"]
    assert len(bm25) == 2
    dense = Retriever(made["plain"], passage_length=20, device="cpu").index(texts)
    found = dense.search("a cat", k=10)
    assert sorted(one.id for one in found) == ["0", "1", "2"]
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    assert dense.search([]) == []
    same = Retriever(dense.model, tokenizer=made["plain"], passage_length=20, device="cpu").index(texts)
    assert same.search("a cat") == found


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda made: BM25().search("x"), "nothing is indexed yet"),
        (lambda made: BM25().index([]), "must not be empty"),
        (lambda made: BM25().index("one text"), "a sequence of texts"),
        (lambda made: BM25().index({"a": {"title": "no text"}}), "passage 'a' has no text"),
        (lambda made: BM25(stemmer="none", stopwords="klingon").index(["x"]), "klingon"),
        (lambda made: Retriever(made["plain"], dtype="int4"), "dtype must be one of float32, int8, binary, not 'int4'"),
        (lambda made: Retriever(made["corpus"]), "cannot be loaded .*; give a complete checkpoint"),
        (lambda made: Retriever(Retriever(made["plain"]).model), "give the argument `tokenizer`"),
        (
            lambda made: Retriever(made["plain"], precision="half"),
            "^Retriever: precision must be one of auto, fp32, bf16, fp16, not 'half'$",
        ),
        (lambda made: Retriever(made["plain"], device="cpu", precision="fp16"), "precision: fp16 needs a GPU"),
        (lambda made: evaluate(BM25(), made["corpus"] / "nowhere"), "no such folder"),
        (lambda made: evaluate(BM25(), Collection(made["corpus"]), ["Speed@3"], split="train"), "Speed"),
        (lambda made: evaluate(BM25(), Collection(made["corpus"]), split="test"), 'no split "test"'),
    ],
)
def test_what_is_wrong_is_one_line(wrong: Any, message: str, made: dict[str, Path]) -> None:
    with pytest.raises(UserError, match=message):
        wrong(made)


def test_importing_the_package_is_quick_and_changes_nothing() -> None:
    program = """
import csv, gc, os, signal, sys, time, warnings
before = dict(os.environ), csv.field_size_limit(), gc.isenabled(), signal.getsignal(signal.SIGINT), list(warnings.filters)
clock = time.process_time()
import condensery
assert time.process_time() - clock < 0.3
after = dict(os.environ), csv.field_size_limit(), gc.isenabled(), signal.getsignal(signal.SIGINT), list(warnings.filters)
assert before == after
assert not {"torch", "numpy", "hydra", "pytorch_lightning"} & sys.modules.keys()
assert set(condensery.__all__) <= set(dir(condensery))
"""
    all_of_it = """
import csv, gc, os, signal
before = csv.field_size_limit(), gc.isenabled(), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
import condensery
assert all(getattr(condensery, name) for name in condensery.__all__)
after = csv.field_size_limit(), gc.isenabled(), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
assert before == after, after
assert not {"ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"} & os.environ.keys(), "the allocator is left alone"
"""
    # tests before this one may have started stages here, which do set these
    inherited = {name: value for name, value in os.environ.items() if not name.endswith("_CACHE_CAPACITY")}
    environment = {**inherited, "PYTHONPATH": os.pathsep.join(sys.path)}
    for code in (program, all_of_it):
        subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert all(getattr(condensery, name) for name in condensery.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = condensery.nothing


def test_what_is_public_says_what_it_takes() -> None:
    for name in condensery.__all__:
        assert (getattr(condensery, name).__doc__ or "").strip(), name
