"""Filled sheets of suspected negatives: what they mean, and what is wrong with them, by line and column."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from condensery.errors import UserError
from condensery.retrieval.denoising import write_denoised
from condensery.retrieval.negatives import open_relabelled
from condensery.retrieval.published_negatives import from_triples
from condensery.retrieval.relabelled import NOTHING, read_relabelled
from condensery.retrieval.runs import Run
from condensery.text.collection import Collection

HEAD = ["query id", "passage id", "relevant"]


def sheet(
    folder: Path, *rows: list[str], head: list[str] = HEAD, name: str = "sheet.csv", separator: str = ","
) -> Path:
    path = folder / name
    with open(path, "w", encoding="utf-8-sig", newline="") as stream:
        csv.writer(stream, delimiter=separator).writerows([head, *rows])
    return path


def pairs(*rows: tuple[int, int]) -> list[int]:
    return [(query << 32) + passage for query, passage in rows]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_yes_no_and_nothing_in_any_order_of_columns(tmp_path: Path, collection: Collection, separator: str) -> None:
    rows = [["Yes", "x", "q3", "p9"], ["no", "x", "q3", "p10"], ["", "x", "q3", "p11"], ["NO ", "", "q1", "'p2"]]
    path = sheet(tmp_path, *rows, head=["Relevant", "score", "Query ID", "passage id"], separator=separator)
    found = read_relabelled([path], collection, "train")
    assert found.yes.tolist() == pairs((3, 9))
    assert found.no.tolist() == pairs((1, 2), (3, 10))
    positives = collection.qrels("train").positives()
    more = found.added_to(positives)
    assert more[3].tolist() == [3, 7, 9]
    assert [more[query].tolist() for query in (0, 1)] == [positives[query].tolist() for query in (0, 1)]
    assert found.added_to({1: positives[1]}).keys() == {1}, "no query is added"


def test_what_is_saved_opens_again(tmp_path: Path, collection: Collection) -> None:
    found = read_relabelled([sheet(tmp_path, ["q3", "p9", "yes"], ["q4", "p1", "no"])], collection, "train")
    assert found.saved(tmp_path, collection, "mined") == {"relabelled_relevant": 1, "relabelled_not_relevant": 1}
    again = open_relabelled(tmp_path, collection)
    assert (again.yes.tolist(), again.no.tolist()) == (found.yes.tolist(), found.no.tolist())
    assert open_relabelled(tmp_path / "nowhere", collection) is NOTHING
    assert NOTHING.saved(tmp_path / "nowhere", collection, "mined") == {}


TEXTS = [*HEAD, "query", "passage"]


@pytest.mark.parametrize(
    ("head", "row", "said"),
    [
        (HEAD, ["q3", "p9", "maybe"], r'sheet\.csv:3: column "relevant": \'maybe\' is not yes, no or empty'),
        (HEAD, ["q99", "p9", "yes"], r'sheet\.csv:3: column "query id": \'q99\' is unknown \(in \'woods\'\)'),
        (HEAD, ["q3", "P9", "yes"], r'sheet\.csv:3: column "passage id": \'P9\' is unknown'),
        (HEAD, ["q3", "p3", "no"], r'sheet\.csv:3: column "relevant": no for \'p3\' contradicts the split \'train\''),
        (HEAD, ["q5", "p8", "no"], r'sheet\.csv:3: column "relevant": no for \'p8\' contradicts .*sheet\.csv:2'),
        (
            TEXTS,
            ["q3", "p9", "yes", "other", ""],
            r'sheet\.csv:3: column "query id": the text differs from that of \'q3\'',
        ),
        (
            TEXTS,
            ["q3", "p9", "yes", "", "other"],
            r'sheet\.csv:3: column "passage id": the text differs from that of \'p9\'',
        ),
        (["query id", "passage id"], ["q3", "p9"], r'sheet\.csv:1: the column "relevant" is missing'),
        ([*HEAD, "relevant"], ["q3", "p9", "yes", ""], r'sheet\.csv:1: the column "relevant" comes twice'),
    ],
)
def test_what_is_wrong_is_named_with_line_and_column(
    tmp_path: Path, collection: Collection, head: list[str], row: list[str], said: str
) -> None:
    path = sheet(tmp_path, ["q5", "p8", "yes"], row, head=head)
    with pytest.raises(UserError, match=said) as error:
        read_relabelled([path], collection, "train")
    assert "\n" not in str(error.value)


def test_a_sheet_that_nobody_filled_in_says_so(tmp_path: Path, collection: Collection) -> None:
    with pytest.raises(UserError, match=r"sheet\.csv: nothing is judged; write yes or no"):
        read_relabelled([sheet(tmp_path, ["q3", "p9", ""])], collection, "train")


def test_two_sheets_that_disagree(tmp_path: Path, collection: Collection) -> None:
    both = [sheet(tmp_path, ["q3", "p9", word], name=f"{word}.csv") for word in ("yes", "no")]
    with pytest.raises(UserError, match=r"no\.csv:2: .* contradicts .*yes\.csv:2"):
        read_relabelled(both, collection, "train")
    same = [both[0], sheet(tmp_path, ["q3", "p9", "yes"], name="again.csv")]
    assert read_relabelled(same, collection, "train").yes.tolist() == pairs((3, 9))


def test_given_negatives_are_relabelled_too(tmp_path: Path, collection: Collection) -> None:
    triples = tmp_path / "triples.tsv"
    triples.write_text("q3\tp3\tp9\nq3\tp3\tp10\nq5\tp5\tp9\n")
    found = read_relabelled([sheet(tmp_path, ["q3", "p9", "yes"])], collection, "train")
    assert from_triples(triples, collection, 5)[0].passage_rows.tolist() == [[9, 10], [9, -1]]
    assert from_triples(triples, collection, 5, relabelled=found)[0].passage_rows.tolist() == [[10], [9]]


def test_denoising_keeps_what_is_no_for_certain(tmp_path: Path, collection: Collection) -> None:
    candidates = np.array([[9, 10, 11], [9, 12, -1]], np.int32)
    scores = np.where(candidates < 0, -np.inf, 5.0).astype(np.float32)
    how = (collection, Run(np.array([3, 4]), candidates, scores), 0.5)
    counts = write_denoised(tmp_path / "n.jsonl", *how, kept=np.array(pairs((3, 10), (4, 12))))
    assert (counts["negatives"], counts["left_out"], counts["queries_without"]) == (2, 3, 0)
    found = [json.loads(line)["negative_ids"] for line in (tmp_path / "n.jsonl").read_text().splitlines()]
    assert found == [["p10"], ["p12"]]
