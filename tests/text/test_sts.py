"""The files of STS-b: what is read, and what is said of files that are something else."""

from pathlib import Path

import pytest

from condensery.errors import UserError
from condensery.text.formats.sts import read_sts, sts_files

HEADER = "sentence1,sentence2,score\n"


def _file(folder: Path, text: str) -> Path:
    path = folder / "train.csv"
    path.write_text(text, newline="")
    return path


@pytest.mark.parametrize("header", [HEADER, ""])
def test_pairs_are_read_with_or_without_the_header(header: str, tmp_path: Path) -> None:
    path = _file(tmp_path, header + 'A man, a plan.,"He said ""no"", twice",4.25\n\nx,y,0\n')
    with pytest.raises(UserError, match=":1: 4 columns" if not header else ":2: 4 columns"):
        list(read_sts(path))
    path = _file(tmp_path, header + '"A man, a plan.","He said ""no"", twice",4.25\n\nx , y,5\n')
    assert list(read_sts(path)) == [("A man, a plan.", 'He said "no", twice', 4.25), ("x", "y", 5.0)]


ORIGINAL = "main-captions\tMSRvid\t2012test\t0001\t5.000\tA plane is taking off.\tAn air plane is taking off.\n"
BROKEN = {
    "two columns": (HEADER + "a,b,1\na,b\n", r":3: 2 columns; .*quote sentences with commas"),
    "another order": (
        "score,sentence1,sentence2\n",
        r':1: the score must be a number from 0 to 5, not "sentence2"; the file is .*header',
    ),
    "score too high": (HEADER + "a,b,5.01\n", r':2: the score must be a number from 0 to 5, not "5.01"'),
    "score below zero": (HEADER + "a,b,-0.1\n", r":2: the score must be a number from 0 to 5"),
    "score not a number": (HEADER + "a,b,nan\n", r":2: the score must be a number from 0 to 5"),
    "an empty sentence": (HEADER + "a,b,1\na,  ,1\n", r":3: a sentence is empty"),
    "a quotation that does not end": (HEADER + 'a,b,1\n"a,b,1\nc,d,2\n', r":3: not valid CSV"),
    "score infinite": (HEADER + "a,b,inf\n", r":2: the score must be a number from 0 to 5"),
    "score beyond floats": (HEADER + "a,b,1e400\n", r":2: the score must be a number from 0 to 5"),
    "score missing": (HEADER + "a,b,\n", r':2: the score must be a number from 0 to 5, not ""'),
    "header twice": (HEADER * 2 + "a,b,1\n", r':2: the score must be a number .*, not "score"'),
    "semicolons": ("a;b;1\n", r":1: 1 columns; the file must be comma-separated"),
    "a line end of old": (HEADER + "a\rb,c,1\n", r":2: not valid CSV"),
    "UTF-16": ("a\0,\0b\0,\0" + "1\0\n\0", r"train\.csv: holds NUL bytes"),
    "nothing": (HEADER, r"train\.csv: no pair of sentences"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_fault_is_named_with_file_and_line(name: str, tmp_path: Path) -> None:
    text, wanted = BROKEN[name]
    with pytest.raises(UserError, match=wanted) as error:
        list(read_sts(_file(tmp_path, text)))
    assert str(error.value).startswith(str(tmp_path / "train.csv"))
    assert "\n" not in str(error.value)


def test_both_other_formats_are_explained(tmp_path: Path) -> None:
    mteb = '{"sentence1": "a", "sentence2": "b", "score": 1.0}\n'
    wanted = r":1: this file must be comma-separated .* original sts-\*\.csv is tab-separated .* MTEB's is JSON lines"
    for text in (ORIGINAL, ORIGINAL.replace("is", "is,", 1), mteb):
        with pytest.raises(UserError, match=wanted):
            list(read_sts(_file(tmp_path, text)))


def test_a_line_in_a_quotation_counts_for_the_next_place(tmp_path: Path) -> None:
    path = _file(tmp_path, HEADER + '"a\nb",c,1\nd,e,x\n')
    with pytest.raises(UserError, match=r":4: the score"):
        list(read_sts(path))


def test_a_missing_file_says_what_it_is(tmp_path: Path) -> None:
    for split in ("train", "dev"):
        (tmp_path / f"{split}.csv").write_text(HEADER)
    with pytest.raises(UserError, match=r"test\.csv: no such file .* the test split of STS-b, comma-separated"):
        sts_files(tmp_path)["test"].open_path()


def test_the_real_files_are_whole(shared: Path) -> None:
    found = {split: list(read_sts(file.path)) for split, file in sts_files(shared / "data" / "stsb").items()}
    assert {split: len(pairs) for split, pairs in found.items()} == {"train": 5749, "dev": 1500, "test": 1379}
    assert found["train"][0] == ("A plane is taking off.", "An air plane is taking off.", 5.0)
