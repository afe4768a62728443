"""What was trained, behind a vector store and in an evaluator of others: the programs of the page find what ours find."""

import ast
import json
import re
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import numpy as np
import pytest
from forked import run_program
from released import two_towers
from small_runs import PROJECT, some_text, splits_of, write, write_beir

from condensery.retrieval.indexes.fusion import FusedIndex
from condensery.retrieval.ranking import Ranking
from condensery.retrieval.searchers.bm25 import BM25
from condensery.retrieval.searchers.retriever import Retriever
from condensery.tokens.tokenizer import train_wordpiece

TEXT = some_text(documents=20, seed=5)
PASSAGES = {name: {"title": title, "text": words} for name, title, words, _ in TEXT.passages}
ASKED = "what is known of rain"  # by the page


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the programs name: ``adapted``, two towers by cosine with prefixes; ``scifact``; ``nanobeir``."""
    folder = tmp_path_factory.mktemp("serve")
    write_beir(folder / "scifact", TEXT)
    train_wordpiece([one["text"] for one in PASSAGES.values()], 400, folder / "words")
    kind: dict[str, Any] = {"behind": [("Normalize", {})], "prompts": {"query": "to: ", "document": "of: "}}
    two_towers(folder, folder / "words", lengths=(24, 38), apart=0.02, **kind).rename(folder / "adapted")
    parts = {
        "corpus": [{"_id": name, "text": one["text"]} for name, one in PASSAGES.items()],
        "queries": [{"_id": name, "text": words} for name, words, _ in splits_of(TEXT)["test"]],
        "qrels": [{"query-id": name, "corpus-id": passage} for name, _, passage in splits_of(TEXT)["test"]],
    }
    about = ["---", "configs:"]
    for part, rows in parts.items():
        write(folder / "nanobeir" / part / "NanoSciFact.jsonl", map(json.dumps, rows))
        about += [f"- config_name: {part}", "  data_files:"]
        about += ["  - split: NanoSciFact", f"    path: {part}/NanoSciFact.jsonl"]
    write(folder / "nanobeir" / "README.md", [*about, "---"])
    return folder


@pytest.fixture(scope="module")
def ours(place: Path) -> tuple[BM25, Retriever]:
    """Both retrievers over the passages."""
    bm25, retriever = BM25(), Retriever(place / "adapted")
    bm25.index(PASSAGES)
    retriever.index(PASSAGES)
    return bm25, retriever


RANKINGS: list[tuple[int, str, list[float]]] = [(100, "reciprocal_rank", [1, 1]), (1000, "weighted", [0.6, 0.4])]


def fused(ours: tuple[BM25, Retriever], query: str, depth: int, method: str, weights: list[float], k: int) -> Ranking:
    """The k best by our own fusion."""
    members = [one.rank([query], depth) for one in ours]
    return FusedIndex(ours, weights, depth, method).combine(members, k)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def query(ours: tuple[BM25, Retriever]) -> str:
    """A question of which no two passages have the same score."""
    for words in (f"{words} known near some often" for _, words, _ in TEXT.questions):
        rankings = [ours[0].rank([words], len(PASSAGES)), *(fused(ours, words, *ranking, k=11) for ranking in RANKINGS)]
        if all(np.diff(scores[rows >= 0]).max() < -1e-5 for scores, rows in rankings):
            return words
    raise AssertionError("there is none")


@pytest.fixture(scope="module")
def printed(place: Path, query: str) -> list[str]:
    """What the program of the page prints, line by line."""
    program = (PROJECT / "examples" / "serve.py").read_text()
    assert program.count(ASKED) == 3
    return run_program(program.replace(ASKED, query), place).splitlines()


@pytest.mark.parametrize("line", [0, 1], ids=["ranks, joined by the store", "scores"])
def test_hybrid_search_finds_what_our_fusion_finds(
    line: int, printed: list[str], ours: tuple[BM25, Retriever], query: str
) -> None:
    found = ast.literal_eval(printed[line])
    scores, rows = fused(ours, query, *RANKINGS[line], k=10)
    assert [name for name, _ in found] == [list(PASSAGES)[row] for row in rows[0]]
    np.testing.assert_allclose([score for _, score in found], scores[0], rtol=1e-5)
    for alone in ours:
        assert alone.rank([query], 10)[1].tolist() != rows.tolist(), "both have a part in it"


def test_a_passage_that_is_added_later_is_found(printed: list[str]) -> None:
    assert [name for name, _ in ast.literal_eval(printed[2])] == ["news"]


def test_the_store_has_the_scores_of_both_and_forgets_what_is_deleted(
    printed: list[str], place: Path, ours: tuple[BM25, Retriever]
) -> None:
    from qdrant_client import QdrantClient, models

    bm25, retriever = ours
    store = QdrantClient(path=str(place / "store"))
    assert store.count("passages").count == len(PASSAGES) + 1
    store.delete("passages", [str(uuid5(NAMESPACE_URL, "news"))])
    questions = [*(words for _, words, _ in TEXT.questions[:10]), "of the", "unknown"]
    vectors = bm25.encode_queries(questions)
    sparse = [models.SparseVector(indices=list(one), values=list(one.values())) for one in vectors]
    for name, searcher, asked in (
        ("bm25", bm25, sparse),
        ("dense", retriever, [one.tolist() for one in retriever.encode_queries(questions)]),
    ):
        scores, rows = searcher.rank(questions, len(PASSAGES))
        for own, passages, vector in zip(scores, rows, asked, strict=True):
            found = store.query_points("passages", query=vector, using=name, limit=len(PASSAGES)).points
            held = {point.payload["id"]: point.score for point in found}
            wanted = {list(PASSAGES)[row]: score for row, score in zip(passages, own, strict=True) if row >= 0}
            assert held == pytest.approx(wanted, rel=1e-5, abs=1e-6)
    store.close()


def test_sentence_transformers_has_our_vectors_with_prefixes_and_titles(
    printed: list[str], place: Path, query: str
) -> None:
    (told,) = re.findall(r"^tensor\(\[\[(-?[\d.]+)\]\]\)$", "\n".join(printed), re.MULTILINE)
    exact = Retriever(place / "adapted", precision="fp32")
    score = exact.encode_queries([query]) @ exact.encode_passages(["Rain fell."], ["Weather"]).T
    assert float(told) == pytest.approx(score.item(), abs=1e-4)  # as it prints


def test_an_evaluator_of_nanobeir_has_our_figures(place: Path, tmp_path: Path) -> None:
    own_cache = f"import datasets\ndatasets.config.HF_DATASETS_CACHE = {str(tmp_path)!r}\n"
    program = (PROJECT / "examples" / "nanobeir.py").read_text()
    theirs, own = run_program(own_cache + program, place).strip().splitlines()[-2:]
    figures = ast.literal_eval(own)
    assert list(map(float, theirs.split())) == pytest.approx(list(figures.values()), abs=1e-6)
    assert 0 < figures["NDCG@10"] < 1
