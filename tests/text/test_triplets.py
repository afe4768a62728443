"""The published triplets of Wikipedia sections: what is read, and what is said of files that are something else."""

from pathlib import Path

import pytest
from error_lines import names

from condensery.errors import UserError
from condensery.text.formats.triplets import read_triplets, triplet_files

HEADER = "Sentence1,Sentence2,Sentence3\n"


def _file(folder: Path, text: str) -> Path:
    path = folder / "train.csv"
    path.write_text(text, newline="")
    return path


def test_the_three_sentences_are_found_by_their_names(tmp_path: Path) -> None:
    path = _file(
        tmp_path, 'id,Sentence3,Sentence1,Sentence2\n1,other,"first, with a comma","of the\nsame"\n\n2,c,a,b\n'
    )
    assert list(read_triplets(path)) == [("first, with a comma", "of the same", "other"), ("a", "b", "c")]


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("a,b,c\n", ":1", "Sentence1, Sentence2, Sentence3"),
        ("", ":1", "Sentence1"),
        (HEADER + "a,b,c\na,b\n", ":3", "2 columns"),
        (HEADER + "a, ,c\n", ":2", "empty"),
        (HEADER + 'a,"b,c\n', ":2", "not valid CSV"),
        (HEADER, "", "no triplet"),
    ],
)
def test_what_is_no_such_file_is_told_with_its_line(text: str, line: str, word: str, tmp_path: Path) -> None:
    path = _file(tmp_path, text)
    with pytest.raises(UserError) as caught:
        list(read_triplets(path))
    names(str(caught.value), f"{path}{line}", word)


def test_a_missing_split_is_told_with_its_file(tmp_path: Path) -> None:
    _file(tmp_path, HEADER)
    with pytest.raises(UserError) as caught:
        triplet_files(tmp_path)["dev"].open_path()
    names(str(caught.value), f"{tmp_path}/validation.csv", "dev", "Sentence1")
