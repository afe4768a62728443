"""How large a collection is, told without reading it."""

import gzip
import json
from pathlib import Path

import pytest

from condensery.text.input_file import InputFile
from condensery.text.sizes import CHARACTERS, counted, sentence_tokens
from condensery.text.source import DataConfig

from .conftest import Make

LINE = "x" * 43 + "\n"  # ten tokens


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_is_counted_by_the_length_of_its_lines(packed: bool, tmp_path: Path) -> None:
    path = tmp_path / ("corpus.jsonl.gz" if packed else "corpus.jsonl")
    text = (LINE * 500).encode()
    path.write_bytes(gzip.compress(text) if packed else text)
    (tmp_path / "train.tsv").write_text("head\tof\n" + "".join(f"q{n // 4}\tp{n}\t1\n" for n in range(400)))
    files = [InputFile("corpus", path), InputFile("qrels of train", tmp_path / "train.tsv")]
    found = counted([*files, InputFile("qrels of test", tmp_path / "none.tsv")])
    assert found.passages == pytest.approx(500)
    assert found.passage_tokens == pytest.approx(44 / CHARACTERS)
    assert dict(found.queries) == {"train": pytest.approx(101)}, "a query has four judgements; the head is one more"
    assert dict(found.pairs) == {"train": pytest.approx(401)}
    assert not found.published


@pytest.mark.parametrize("searched", ["passages", "documents"])
def test_all_files_of_documents_are_counted(searched: str, config: Make, tmp_path: Path) -> None:
    for name, lines, of_line in (("documents", 300, LINE), ("a", 100, LINE * 3), ("b", 200, LINE)):
        line = of_line.replace("\n", " ")[:-1] + "\n"
        (tmp_path / f"{name}.jsonl").write_text(line * lines)
    extra = [str(tmp_path / f"{name}.jsonl") for name in ("a", "b", "missing")]
    found = config("documents", root=tmp_path, extra=extra, searched=searched).sizes()
    tokens = 300 * 10 + 100 * 30 + 200 * 10
    assert found.passages
    assert found.passage_tokens
    assert found.passages * found.passage_tokens == pytest.approx(tokens)
    assert searched == "passages" or found.passages == pytest.approx(600)


@pytest.mark.parametrize("sentence", ["Twenty-two characters. ", "二十二个汉字，一句话说完，没有空白字符。"])
def test_sentences_are_as_long_as_the_first_ones_of_a_file(sentence: str, tmp_path: Path) -> None:
    passages = [sentence * 10, sentence * 10]
    (tmp_path / "documents.jsonl").write_text(
        "".join(json.dumps({"passages": passages}, ensure_ascii=False) + "\n" for _ in range(50)), "utf-8"
    )
    file = InputFile("file of articles", tmp_path / "documents.jsonl")
    assert sentence_tokens(file) == pytest.approx(len(sentence) / CHARACTERS, rel=0.1)
    assert sentence_tokens(InputFile("file of articles", tmp_path / "none.jsonl")) is None


class Named(DataConfig):
    """A collection of which a library knows the number."""

    def input_files(self) -> list[InputFile]:
        return []

    def expected(self) -> dict[str, int]:
        return {"passages": 7_000, "documents": 0}


def test_what_a_library_knows_is_taken() -> None:
    given = {"format": "named", "name": "x", "empty_passages": "error", "dev_queries": 0, "unlabelled_queries": 0}
    found = Named.model_validate(given).sizes()
    assert (found.passages, found.documents) == (7_000, None)
    assert found.passage_tokens
