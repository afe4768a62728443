"""The stage `passages`: rows, tokens and documents that belong together, grouped or as the collection has them."""

from pathlib import Path

import numpy as np
import pytest
from single_stage import TEXT, inputs, run_stage

from condensery.text.collection import Collection
from condensery.text.records import Document, Passage
from condensery.text.writer import CollectionWriter
from condensery.tokens.artifacts import Passages, Queries, Tokens
from condensery.tokens.batches import text_rows
from condensery.tokens.spans import SentencePacked
from condensery.tokens.tokenizer import train_wordpiece


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return inputs(tmp_path_factory.mktemp("made"))


def _words(texts: list[str]) -> str:
    return " ".join(" ".join(texts).split())


@pytest.mark.parametrize("titles", [True, False])
def test_grouped_passages_hold_all_text_and_fit_with_their_titles(
    made: dict[str, Path], titles: bool, tmp_path: Path
) -> None:
    about = run_stage("passages", tmp_path, made, length=48, workers=1, titles=titles)
    found, collection = Passages(tmp_path), Collection(made["corpus"])
    _, starts = text_rows(found.store, range(len(found.table)), found.vocabulary, 10_000, found.titles)
    assert np.diff(starts).max() <= 48
    assert (found.titles is not None) == titles
    assert any(found.table.column("title")) == titles
    assert about["passages"] == len(found.table) == len(found.store)
    assert about["documents"] == len(found.store.documents) - 1 == 8
    for number in range(8):
        rows = slice(*found.store.documents[number : number + 2].tolist())
        own = slice(*collection.document_starts[number : number + 2].tolist())
        assert _words(found.table.column("text")[rows]) == _words(collection.passages.column("text")[own])
        assert set(found.table.column("document")[rows]) == {f"d{number}"}
        assert found.table.column("id")[rows] == [f"d{number}#{at}" for at in range(rows.stop - rows.start)]
        if titles:
            assert set(found.table.column("title")[rows]) == {TEXT.passages[number * 3][1]}
    assert found.table.rows_of(["d3#1"]) == [found.table.ids.index("d3#1")]
    spans = SentencePacked(found.store, 32, 0.0, 1, 4)  # the store serves passage pairs, too
    assert spans.documents == 8


def test_more_workers_make_the_same(made: dict[str, Path], tmp_path: Path) -> None:
    for workers in (1, 2):
        run_stage("passages", tmp_path / f"{workers}", made, length=40, workers=workers)
    for name in ("passages.arrow", "texts/tokens.bin", "texts/documents.npy", "titles/tokens.bin"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


def test_the_passages_of_the_collection_stay_as_they_are(made: dict[str, Path], tmp_path: Path) -> None:
    run_stage("passages", tmp_path, made, grouping="collection", length=16, workers=1)
    found, own = Passages(tmp_path), Collection(made["corpus"])
    for name in ("id", "document", "title", "text"):
        assert list(found.table.column(name)) == list(own.passages.column(name))
    assert found.store.documents.tolist() == own.document_starts.tolist()


def test_separate_documents_are_what_is_grouped(made: dict[str, Path], tmp_path: Path) -> None:
    with CollectionWriter(tmp_path / "corpus", "small") as writer:
        writer.add_passage(Passage("p", "", "Not this."))
        writer.add_document(Document("a", "poda", ["Known near pipe. Some kata.", "Of the faripu."]))
        writer.add_document(Document("b", "", ["Was it?"]))
    run_stage("passages", tmp_path / "out", {**made, "corpus": tmp_path / "corpus"}, workers=1)
    table = Passages(tmp_path / "out").table
    assert list(table.column("text")) == ["Known near pipe. Some kata. Of the faripu.", "Was it?"]
    assert list(table.column("id")) == ["a#0", "b#0"]
    assert list(table.column("title")) == ["poda", ""]


def test_sentences_end_by_the_rules_of_their_language(tmp_path: Path) -> None:
    made = {"corpus": tmp_path / "corpus", "tokenizer": tmp_path / "tokenizer"}
    with CollectionWriter(made["corpus"], "german") as writer:
        writer.add_passage(Passage("p", "", "Am 3. Juni kam er in Bonn an. Dort blieb er bis zum 5. Juli.", "d"))
    train_wordpiece(Collection(made["corpus"]).passages.column("text"), 100, made["tokenizer"], warn=False)
    for language, sentences in {"en": 4, "de": 2}.items():
        folder, how = tmp_path / language, {"sentence_language": language}
        run_stage("tokens", folder / "tokens", made, workers=1, **how)
        assert len(Tokens(folder / "tokens").passages.sentence_spans(0)) == sentences
        run_stage("passages", folder / "passages", made, workers=1, length=40, **how)
        read = {**made, "passages": folder / "passages"}
        assert len(Passages(read["passages"]).store.sentence_spans(0)) == sentences
        run_stage("extract_queries", folder / "queries", read, minimum_words=1, number=9, **how)
        assert len(Queries(folder / "queries").texts(0)) == sentences
