"""BM25 gives Lucene's scores, whatever the threads, and says what is wrong."""

import json
import math
import os
import pickle
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from bm25s.stopwords import STOPWORDS_EN

from condensery.errors import UserError
from condensery.retrieval.indexes import bm25
from condensery.retrieval.indexes.bm25 import BM25Index, build_bm25
from condensery.retrieval.indexes.opening import open_index
from condensery.retrieval.indexes.terms import STOPWORDS, Analyser
from condensery.text.collection import Collection
from condensery.text.records import Passage
from condensery.text.writer import CollectionWriter


@pytest.fixture(scope="module")
def index(collection: Collection, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bm25")
    build_bm25(collection, folder, k1=0.9, b=0.4)
    return folder


def scores_by_definition(collection: Collection, query: str, k1: float, b: float) -> np.ndarray:
    analyser = Analyser()
    titles, texts = collection.passages.column("title"), collection.passages.column("text")
    passages = [analyser.terms(f"{title} {text}") for title, text in zip(titles, texts, strict=True)]
    average = sum(map(len, passages)) / len(passages)
    frequency = Counter(term for passage in passages for term in set(passage))
    scores = np.zeros(len(passages))
    for row, passage in enumerate(passages):
        counts = Counter(passage)
        for term in analyser.terms(query):
            idf = math.log(1 + (len(passages) - frequency[term] + 0.5) / (frequency[term] + 0.5))
            scores[row] += idf * counts[term] / (counts[term] + k1 * (1 - b + b * len(passage) / average))
    return scores


@pytest.mark.parametrize("query", ["amber birch", "title", "amber amber fjord", "Oasis, of the PLAIN"])
def test_scores_are_those_of_the_formula_over_title_and_text(index: Path, collection: Collection, query: str) -> None:
    expected = scores_by_definition(collection, query, 0.9, 0.4)
    scores, rows = BM25Index(index).search_texts([query], 60)
    found = rows[0] >= 0
    assert found.sum() == (expected > 0).sum()
    np.testing.assert_allclose(scores[0][found], expected[rows[0][found]], rtol=1e-5)
    assert (np.diff(scores[0][found]) <= 0).all()


def test_a_single_text_gets_the_bits_of_the_product(index: Path) -> None:
    texts = ["amber birch", "title", "fjord amber amber birch title", "of the", "zebra", ""]
    scores, rows = BM25Index(index).search_texts(texts, 60)
    assert (rows[2] >= 0).sum() > 30
    for number, text in enumerate(texts):
        alone = BM25Index(index)
        own = alone.search_texts([text], 60)
        np.testing.assert_array_equal(own[0][0], scores[number])
        np.testing.assert_array_equal(own[1][0], rows[number])
        assert "postings" not in vars(alone), "SciPy was imported for it"


def test_k1_and_b_change_the_ranking_score(tmp_path: Path, collection: Collection) -> None:
    build_bm25(collection, tmp_path, k1=1.5, b=0.75)
    expected = scores_by_definition(collection, "amber birch", 1.5, 0.75)
    scores, rows = BM25Index(tmp_path).search_texts(["amber birch"], 5)
    np.testing.assert_allclose(scores[0], expected[rows[0]], rtol=1e-5)


def test_equal_scores_come_in_row_order(tmp_path: Path) -> None:
    with CollectionWriter(tmp_path / "c", "same") as writer:
        for passage in range(50):
            writer.add_passage(Passage(f"p{passage}", "", "one word more" if passage % 3 else "another text here"))
    build_bm25(Collection(tmp_path / "c"), tmp_path / "i", 0.9, 0.4)
    _, rows = BM25Index(tmp_path / "i").search_texts(["word"], 7)
    assert rows[0].tolist() == [1, 2, 4, 5, 7, 8, 10]


def test_threads_and_blocks_change_nothing(
    index: Path, collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = np.array([3, 1, 11, 0, 7])
    scores, rows = open_index(index, collection, threads=1).search(queries, 10)
    monkeypatch.setattr(bm25, "POSTINGS", 20)  # one query a block
    again = open_index(index, collection, threads=3).search(queries, 10)
    np.testing.assert_array_equal(scores, again[0])
    np.testing.assert_array_equal(rows, again[1])


def test_a_query_without_known_words_finds_nothing(index: Path) -> None:
    scores, rows = BM25Index(index).search_texts(["", "the of", "zebra"], 4)
    assert (rows == -1).all()
    assert np.isneginf(scores).all()


def test_the_index_is_read_from_disk_as_it_is_needed(index: Path) -> None:
    data = BM25Index(index).postings.data
    base = data
    while base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)


def test_the_same_collection_gives_the_same_bytes(index: Path, collection: Collection, tmp_path: Path) -> None:
    build_bm25(collection, tmp_path, k1=0.9, b=0.4)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in index.iterdir()}
    for path in index.iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes(), path.name


def test_stop_words_go_and_numbers_and_single_letters_stay() -> None:
    assert Analyser().terms("It's the 2 of C, isn't it? ÉTÉ x_y") == ["2", "c", "isn", "été", "x_y"]
    assert Analyser("none").terms("It is") == ["it", "is"]


def test_the_english_stop_words_are_those_of_bm25s() -> None:
    assert STOPWORDS["english"] == {*STOPWORDS_EN, "s", "t"}


@pytest.mark.parametrize("name", ["data.csc.index.npy", "indptr.csc.index.npy", "vocab.index.json"])
def test_a_damaged_file_is_a_user_error_that_names_it(index: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(index, folder)
    (folder / name).write_bytes(b"\x93NUM")
    with pytest.raises(UserError, match=name):
        BM25Index(folder)
    (folder / name).unlink()
    with pytest.raises(UserError, match=name):
        BM25Index(folder)


def test_stemming_conflates_forms_where_the_package_is_there() -> None:
    pytest.importorskip("Stemmer")
    assert Analyser(stemmer="porter").terms("connected connections") == ["connect", "connect"]


def test_an_unknown_stemmer_or_stop_word_list_is_a_user_error() -> None:
    with pytest.raises(UserError, match="stemmer"):
        Analyser(stemmer="nonsense")
    with pytest.raises(UserError, match="stopwords"):
        Analyser(stopwords="klingon")
    for none in ({"stemmer": None}, {"stopwords": None}, {"language": None}, {"language": 3}):
        with pytest.raises(UserError, match=r"BM25: \w+: '\w+' does not exist, choose from"):
            Analyser(**none)  # type: ignore[arg-type]


def test_a_collection_without_words_is_a_user_error(tmp_path: Path) -> None:
    with CollectionWriter(tmp_path / "c", "dots") as writer:
        writer.add_passage(Passage("p", "", "... the ..."))
    with pytest.raises(UserError, match="no passage has a word"):
        build_bm25(Collection(tmp_path / "c"), tmp_path / "i", 0.9, 0.4)


def test_an_index_of_another_collection_is_a_user_error(index: Path, collection: Collection, tmp_path: Path) -> None:
    with CollectionWriter(tmp_path / "c", "other") as writer:
        writer.add_passage(Passage("p", "", "text"))
    with pytest.raises(UserError, match="60 passages"):
        open_index(index, Collection(tmp_path / "c"))
    (tmp_path / "index.json").write_text(json.dumps({"method": "magic", "passages": 60}))
    with pytest.raises(UserError, match="magic"):
        open_index(tmp_path, collection)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_rank_of_a_passage_is_its_place_in_the_whole_ranking(
    index: Path, collection: Collection, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bm25, "POSTINGS", 60)
    searcher, random = BM25Index(index, threads=threads), np.random.default_rng(0)
    texts = [" ".join(random.choice(["amber", "birch", "fjord", "title", "oasis", "zzz"], 2)) for _ in range(50)]
    rows, without = random.integers(len(collection.passages), size=(2, 50))
    without[::2] = -1
    _, ranking = searcher.search_texts(texts, len(collection.passages))
    expected = []
    for found, row, left_out in zip(ranking.tolist(), rows, without, strict=True):
        ranked = [one for one in found if one not in (-1, left_out)]
        expected.append(ranked.index(row) + 1 if row in ranked else -1)
    assert -1 in expected
    assert max(expected) > 10
    np.testing.assert_array_equal(searcher.ranks(texts, rows, without), expected)


def test_jax_is_not_imported_with_bm25s(tmp_path: Path, project: Path) -> None:
    (tmp_path / "jax.py").write_text("raise SystemExit('JAX was imported, and would take the memory of a GPU')")
    program = (
        "import sys; from pathlib import Path; from condensery.retrieval.indexes.bm25 import Analyser, index_texts; "
        "index_texts(['a dog', 'a cat'], 2, Path(sys.argv[1]), 0.9, 0.4, Analyser('none'), 'here'); "
        "assert 'bm25s' in sys.modules and 'jax' not in sys.modules"
    )
    paths = os.pathsep.join([str(tmp_path), str(project / "src")])
    environment = {**os.environ, "PYTHONPATH": paths}
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "index")], check=True, env=environment)


def test_an_analyser_with_a_stemmer_can_be_sent_to_another_process() -> None:
    analyser = Analyser("english", "porter")
    assert pickle.loads(pickle.dumps(analyser)).terms("the running dogs") == analyser.terms("the running dogs")
