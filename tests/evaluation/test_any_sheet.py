"""Sheets on whatever hypothesis thinks of: judgements come back whatever the texts are, no file gives a traceback."""

import csv
import tempfile
from pathlib import Path

from damage import FEW, MORE, damaged, named
from hypothesis import given
from hypothesis import strategies as st

from condensery.errors import UserError
from condensery.evaluation.pair_audit.pairs import NO_ROW, PASSAGES, QUERIES, Pair
from condensery.evaluation.pair_audit.sheets import Item, items_of, read_sheets, write_sheets

texts = st.text(st.characters(exclude_categories=[]), max_size=30)


def items_with(pairs: list[tuple[str, str]]) -> list[Item]:
    kinds = (PASSAGES, QUERIES)
    made = [Pair(kinds[at % 2], at, NO_ROW, f"p{at}", "", *pair) for at, pair in enumerate(pairs)]
    return items_of([[pair for pair in made if pair.kind == kind] for kind in kinds], 1, seed=1)


def filled(items: list[Item], folder: Path, judgements: list[bool]) -> Path:
    """The sheet of one annotator, judged."""
    (path,) = write_sheets(items, folder, annotators=1, groups=1)
    with open(path, encoding="utf-8-sig", newline="") as stream:
        heading, *rows = csv.reader(stream)
    with open(path, "w", encoding="utf-8", newline="") as stream:
        judged = [[*row[:3], "high" if high else "low"] for row, high in zip(rows, judgements, strict=True)]
        csv.writer(stream).writerows([heading, *judged])
    return path


@FEW
@given(pairs=st.lists(st.tuples(texts, texts), min_size=1, max_size=6), data=st.data())
def test_judgements_come_back_whatever_the_texts_are(pairs: list[tuple[str, str]], data: st.DataObject) -> None:
    items = items_with(pairs)
    judgements = data.draw(st.lists(st.booleans(), min_size=len(items), max_size=len(items)))
    with tempfile.TemporaryDirectory() as name:
        votes = read_sheets([filled(items, Path(name), judgements)], items, 1, 1)
    assert votes[:, 0].tolist() == judgements


@MORE
@given(data=st.data())
def test_no_accident_to_a_sheet_gives_a_traceback(data: st.DataObject) -> None:
    items = items_with([("a text, and more", 'a "second" one'), ("b", "c")])
    with tempfile.TemporaryDirectory() as name:
        path = filled(items, Path(name), [True, False])
        path.write_bytes(data.draw(st.one_of(st.binary(max_size=40), damaged(path.read_bytes()))))
        try:
            read_sheets([path], items, 1, 1)
        except UserError as error:
            named(error, path)
