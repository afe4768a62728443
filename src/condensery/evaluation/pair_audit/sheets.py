"""Write one blind CSV sheet for each annotator, and read the filled sheets as spreadsheet programs save them.

A sheet does not show the kind of a pair. The key to the kinds is stored separately. Each group of annotators judges its
own share of the pairs, as in appendix A of query-as-context pre-training (Wu et al. 2023: two groups of three).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from condensery.errors import UserError, shown
from condensery.evaluation.pair_audit.pairs import Pair
from condensery.evaluation.pair_audit.votes import Votes
from condensery.randomness import generator
from condensery.text.sheets import bare, cell, sheet_rows, write_sheet

COLUMNS = ("number", "first text", "second text", "judgement")
JUDGEMENTS = {"high": True, "low": False}


@dataclass(frozen=True)
class Item:
    """One line of a sheet: ``number`` counts from 1, ``group`` from 0."""

    number: int
    group: int
    pair: Pair


def items_of(pairs: Sequence[Sequence[Pair]], groups: int, seed: int) -> list[Item]:
    """Shuffle the pairs of all kinds together and number them. The pairs of each kind are dealt to the groups in turn."""
    dealt = [(at % groups, pair) for of_kind in pairs for at, pair in enumerate(of_kind)]
    order = generator("audit", seed, "sheet").permutation(len(dealt))
    return [Item(number, *dealt[at]) for number, at in enumerate(order.tolist(), start=1)]


def write_sheets(items: Sequence[Item], folder: Path, annotators: int, groups: int) -> list[Path]:
    """Write ``sheet-1.csv``, ... into ``folder``, one for each annotator of each group. Returns the paths of the sheets."""
    paths = []
    for group in range(groups):
        own = [item for item in items if item.group == group]
        for annotator in range(annotators):
            paths.append(folder / f"sheet-{group * annotators + annotator + 1}.csv")
            rows = ([item.number, cell(item.pair.text), cell(item.pair.context), ""] for item in own)
            write_sheet(paths[-1], COLUMNS, rows)
    return paths


def read_sheets(paths: Sequence[Path], items: Sequence[Item], annotators: int, groups: int) -> Votes:
    """Read the votes of all annotators on all pairs. Columns and lines may be in any order; further columns are allowed.

    Returns:
        bool (items, annotators), in the order of ``items``; True = high.

    Raises:
        UserError: a judgement is unknown; a number is missing, repeated or from another group's sheet; the texts differ from
            the pair's texts; or a group has fewer or more sheets than annotators. The message names file and line where
            possible.
    """
    if len(paths) != annotators * groups:
        wanted = f"{annotators} annotators" + (f" in each of {groups} groups" if groups > 1 else "")
        raise UserError(f"{paths[0].parent if paths else 'sheets'}: {len(paths)} sheets for {wanted}; give one each")
    by_number = {item.number: item for item in items}
    votes = np.zeros((len(items), annotators), bool)
    taken = [0] * groups
    for path in paths:
        group, judged = _read_sheet(path, by_number)
        if taken[group] == annotators:
            raise UserError(
                f"{path}: its group has more sheets than its {annotators} annotators; is this sheet a copy?"
            )
        for number, high in judged.items():
            votes[number - 1, taken[group]] = high
        taken[group] += 1
    return votes


def _read_sheet(path: Path, items: dict[int, Item]) -> tuple[int, dict[int, bool]]:
    """Return the group of a sheet, and its judgements: number of a pair -> True for high, False for low."""
    group = -1
    judged: dict[int, bool] = {}
    places: dict[int, str] = {}
    for place, cells in sheet_rows(path, COLUMNS):
        number, first, second, judgement = (" ".join(one.split()) for one in cells)
        item = items.get(_number(number, place))
        if item is None:
            raise UserError(f"{place}: there is no pair {number} in this audit (its numbers are 1 to {len(items)})")
        if item.number in judged:
            raise UserError(f"{place}: the number {item.number} is also at {places[item.number]}; keep one line")
        if group not in (-1, item.group):
            raise UserError(
                f"{place}: the pair {item.number} belongs to the sheet of another group; put each sheet in its own file"
            )
        for text, original in ((first, item.pair.text), (second, item.pair.context)):
            if bare(text) != bare(cell(original)):
                raise UserError(
                    f"{place}: the texts are not those of pair {item.number}: they were edited, or the sheet is of"
                    " another audit (other passages, queries, seed or pairs); fill in the sheets of this one"
                )
        if judgement.casefold() not in JUDGEMENTS:
            message = f"{shown(judgement)!r} is no judgement" if judgement else "the judgement is empty"
            raise UserError(f"{place}: {message} (number {item.number}); write high or low")
        group, places[item.number] = item.group, place
        judged[item.number] = JUDGEMENTS[judgement.casefold()]
    missing = [item.number for item in items.values() if item.group == group and item.number not in judged]
    if missing or not judged:
        named = ", ".join(map(str, missing[:5])) + (" ..." if len(missing) > 5 else "")
        raise UserError(f"{path}: {f'the number {named} is missing' if judged else 'it has no lines'}; judge all pairs")
    return group, judged


def _number(text: str, place: str) -> int:
    """Parse the number of a pair. A spreadsheet program may have written 7 as 7.0 or 7,0."""
    if not re.fullmatch(r"\d{1,9}([.,]0+)?", text, re.ASCII):
        raise UserError(f"{place}: the column number must hold the number of a pair, not {text[:40]!r}")
    return int(re.split("[.,]", text)[0])
