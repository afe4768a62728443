"""Averaged word vectors: the file of GloVe, the mean, the metrics, and bad input."""

import gzip
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from small_runs import some_text, write_articles, write_stsb

from condensery.baselines.word_vectors.evaluate import averaged, read_vectors
from condensery.errors import UserError
from condensery.evaluation.metrics import Evaluation
from condensery.system.files import read_json
from condensery.text.table import TextTable
from condensery.text.words import words
from condensery.tokens.artifacts import Sentences

sys.path.insert(0, str(Path(__file__).parents[1] / "stages"))
from single_stage import inputs, run_stage

TEXT = some_text(documents=24, paragraphs=6)
LINES = ["the 1 2 3", ". 0 0 0", "at name@domain.com 1 2 3", "b 2 2 -1e-1", "the 9 9 9"]


def written(path: Path, lines: list[str]) -> Path:
    raw = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
@pytest.mark.parametrize("header", [[], ["4 3"]])
def test_the_words_that_are_wanted_are_read(name: str, header: list[str], tmp_path: Path) -> None:
    found = read_vectors(written(tmp_path / name, [*header, *LINES]), {"the", "b", "at", "c"})
    assert {word: vector.tolist() for word, vector in found.items()} == {
        "the": [1, 2, 3],
        "b": [2, 2, pytest.approx(-0.1)],
    }
    assert all(vector.dtype == np.float32 for vector in found.values())


def test_words_are_compared_in_the_form_of_the_sentences_words(tmp_path: Path) -> None:
    lines = [f"{word} {number} 0 1" for number, word in enumerate(["Straße", "straße", "λόγος", "école", "the"])]
    found = read_vectors(written(tmp_path / "v.txt", lines), {*words("Straße λόγος e\u0301cole the")})
    assert [int(vector[0]) for vector in found.values()] == [1, 2, 3, 4]


def test_a_sentence_is_the_mean_of_its_known_words() -> None:
    vectors = {"the": np.array([1, 2], np.float32), "b": np.array([4, 0], np.float32)}
    found = averaged([["the", "b", "the", "c"], ["c"], []], vectors)
    np.testing.assert_allclose(found, [[2, 4 / 3], [0, 0], [0, 0]], rtol=1e-6)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("words")
    found = inputs(folder, TEXT)
    run_stage("read_sts", folder / "pairs", found, root=str(write_stsb(folder / "stsb", TEXT)))
    articles = write_articles(folder / "articles", TEXT) / "documents.jsonl"
    shares = {"dev_share": 0.2, "test_share": 0.2}
    run_stage("section_triplets", folder / "triplets", found, path=str(articles), per_article=9, **shares)
    texts = [
        text for name in ("pairs", "triplets") for text in TextTable(folder / name / "sentences.arrow").column("text")
    ]
    known = sorted({word for text in texts for word in words(text)})
    draw = np.random.default_rng(4)
    lines = [f"{word} {' '.join(f'{x:.4f}' for x in draw.normal(size=6))}" for word in known[::2]]
    return {"pairs": folder / "pairs", "triplets": folder / "triplets", "glove": written(folder / "glove.txt", lines)}


def by_hand(made: dict[str, Path], task: str) -> np.ndarray:
    """The vectors (n, k, d) of the sentences of the test examples."""
    table = {
        line.split(" ")[0]: np.array(line.split(" ")[1:], float) for line in made["glove"].read_text().splitlines()
    }
    texts, vectors = list(TextTable(made[task] / "sentences.arrow").column("text")), []
    for row in Sentences(made[task]).rows("test").reshape(-1).tolist():
        own = [table[word] for word in words(texts[row]) if word in table]
        vectors.append(np.mean(own, axis=0) if own else np.zeros(6))
    return np.array(vectors).reshape(*Sentences(made[task]).rows("test").shape, 6)


@pytest.mark.parametrize("task", ["pairs", "triplets"])
def test_the_metric_is_that_of_the_means(task: str, made: dict[str, Path], tmp_path: Path) -> None:
    found = run_stage(
        "evaluate_word_vectors", tmp_path / "made", {"sentences": made[task]}, path=str(made["glove"]), split="test"
    )
    vectors = by_hand(made, task)
    if task == "pairs":
        lengths = np.linalg.norm(vectors, axis=2).prod(axis=1)
        cosines = (vectors[:, 0] * vectors[:, 1]).sum(axis=1) / np.maximum(lengths, 1e-30)
        expected = {"Spearman": stats.spearmanr(cosines, Sentences(made[task]).scores("test")).statistic}
    else:
        near, far = (np.linalg.norm(vectors[:, 0] - vectors[:, at], axis=1) for at in (1, 2))
        expected = {"Accuracy": (near < far).mean()}
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-6)
        assert read_json(tmp_path / "made" / "metrics.json")["metrics"][name] == found[name]
    assert 0.4 < found["words_with_a_vector"] < 0.6
    assert Evaluation.load(tmp_path / "made" / "evaluation.npz").metrics == pytest.approx(
        {name: found[name] for name in expected}
    )


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["the 1 2 3", "b 1 2"], ":2: 2 numbers; expected a word and its numbers, separated by spaces"),
        (["the 1 2 3", "b 1 x 2"], ":2: 3 finite numbers are expected after the word"),
        (["the 1 nan 3"], ":1: 3 finite numbers are expected after the word"),
        (["the"], ":1: 0 numbers"),
        (["4 3", "the\t1\t2"], ":2: 0 numbers"),
    ],
)
def test_bad_lines_are_named(lines: list[str], said: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", lines)
    with pytest.raises(UserError) as raised:
        read_vectors(path, {"the", "b"})
    assert str(raised.value).startswith(f"{path}{said}")


def test_a_file_of_another_language_is_one_line(made: dict[str, Path], tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", ["straße 1 2"])
    with pytest.raises(
        UserError, match=r"a.txt: has no word of the sentences of sentences; name vectors of their language"
    ):
        run_stage(
            "evaluate_word_vectors", tmp_path / "made", {"sentences": made["pairs"]}, path=str(path), split="test"
        )
