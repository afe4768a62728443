"""People's judgements of suspected false negatives, read from the sheets that the stage ``audit_negatives`` writes.

A passage judged relevant becomes a positive of its query. A passage judged not relevant becomes a confirmed negative.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError, number_of, shown
from condensery.retrieval.lookup import OTHER
from condensery.retrieval.no_negatives import ROW, Ids, packed
from condensery.system.files import atomic
from condensery.system.spreadsheets import harmless
from condensery.text.collection import Collection, Qrels
from condensery.text.sheets import bare, cell, sheet_rows
from condensery.text.table import TextTable

QUERY, PASSAGE, RELEVANT = "query id", "passage id", "relevant"  # the columns that are read
QUERY_TEXT, PASSAGE_TEXT = "query", "passage"  # these columns check that the sheet belongs to the collection
ANSWERS = {"yes": True, "no": False}
FILE = "relabelled.jsonl"  # file in an artifact of negatives, in the format of pseudo-labels


@dataclass(frozen=True)
class Relabelled:
    """People's judgements of (query, passage) pairs. A pair is stored as (query << 32) + passage.

    Attributes:
        yes: int64 (y,), the pairs judged relevant, ascending.
        no: int64 (n,), the pairs judged not relevant, ascending.
    """

    yes: Ids
    no: Ids

    def added_to(self, positives: Mapping[int, NDArray[np.integer]]) -> dict[int, NDArray[np.integer]]:
        """Return ``positives`` (query row -> relevant passages) with the pairs of ``yes`` added.

        Pairs of queries that are not in ``positives`` are ignored.
        """
        more = dict(positives)
        for query in np.unique(self.yes >> 32).tolist():
            if query in more:
                own = self.yes[self.yes >> 32 == query] & ROW
                more[query] = np.concatenate([more[query], own[~np.isin(own, more[query])]])
        return more

    def all_no(self, qrels: Qrels) -> Ids:
        """Return all confirmed negatives: the pairs of ``no``, and the pairs with grade 0 or less in ``qrels``."""
        never = qrels.grades <= 0
        return np.union1d(self.no, packed(qrels.query_rows[never], qrels.passage_rows[never]))

    def saved(self, folder: Path, collection: Collection, label: str) -> dict[str, int]:
        """Write the pairs into an artifact of negatives, print their number, and return the counts for a manifest.

        If there are no pairs, nothing is written or printed, and {} is returned.
        """
        if not len(self.yes) + len(self.no):
            return {}
        queries = np.unique(np.concatenate([self.yes, self.no]) >> 32)
        with atomic(folder / FILE) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as stream:
            for query, name in zip(queries.tolist(), collection.queries.ids_at(queries), strict=True):
                line: dict[str, Any] = {"query_id": name}
                for key, pairs in (("positive_ids", self.yes), ("negative_ids", self.no)):
                    line[key] = list(collection.passages.ids_at(pairs[pairs >> 32 == query] & ROW))
                stream.write(json.dumps(line, ensure_ascii=False) + "\n")
        message = f"{number_of(len(self.yes), 'passages were')} relabelled as relevant, {len(self.no):,} as irrelevant"
        print(f"[{label}] {message}", flush=True)
        return {"relabelled_relevant": len(self.yes), "relabelled_not_relevant": len(self.no)}


NOTHING = Relabelled(np.empty(0, np.int64), np.empty(0, np.int64))


def read_relabelled(paths: Sequence[Path], collection: Collection, split: str) -> Relabelled:
    """Read people's judgements from sheets with the columns ``query id``, ``passage id`` and ``relevant``.

    The cell in ``relevant`` is yes, no, or empty for a pair that nobody judged. Without sheets, ``NOTHING`` is returned.

    Raises:
        UserError: a cell in ``relevant`` has a word other than yes and no, an id is not in the collection, a query has no
            positive in ``split``, a text differs from the text of its id, or a pair has contradicting judgements, within the
            sheets or between the sheets and ``split``. The message names file, line and column. The error is also raised if
            no pair is judged.
    """
    if not paths:
        return NOTHING
    positives = collection.qrels(split).positives()
    judged: dict[int, tuple[bool, str]] = {}
    for path in paths:
        for place, cells in sheet_rows(path, (QUERY, PASSAGE, RELEVANT), (QUERY_TEXT, PASSAGE_TEXT)):
            word = bare(cells[2]).casefold()
            if not word:
                continue
            if word not in ANSWERS:
                raise UserError(f'{place}: column "{RELEVANT}": {shown(cells[2])!r} is not yes, no or empty')
            query = _row(collection.queries, cells[0], cells[3], f'{place}: column "{QUERY}"', collection.name)
            passage = _row(collection.passages, cells[1], cells[4], f'{place}: column "{PASSAGE}"', collection.name)
            if query not in positives:
                raise UserError(f'{place}: column "{QUERY}": {shown(cells[0])!r} has no positive in {split!r}')
            pair, yes = (query << 32) + passage, ANSWERS[word]
            other = judged.get(pair, (yes, ""))
            if not yes and passage in positives[query]:
                other = True, f"the split {split!r}"
            if other[0] != yes:
                raise UserError(
                    f'{place}: column "{RELEVANT}": {word} for {shown(cells[1])!r} contradicts {other[1]}; keep one of them'
                )
            judged[pair] = yes, other[1] or place
    if not judged:
        names = ", ".join(map(str, paths))
        raise UserError(f'{names}: nothing is judged; write yes or no into the column "{RELEVANT}"')
    return Relabelled(
        *(np.array(sorted(pair for pair in judged if judged[pair][0] == yes), np.int64) for yes in (True, False))
    )


def _row(table: TextTable, name: str, text: str, where: str, collection: str) -> int:
    """Return the row number of an id. An apostrophe before the id, which a spreadsheet may add, is ignored.

    Args:
        table: the queries or the passages of the collection.
        name: the id.
        text: the text next to the id in the sheet; empty = not checked.
        where: beginning of error messages.
        collection: name of the collection, for error messages.

    Raises:
        UserError: the id is unknown, or its text in the collection differs from ``text``.
    """
    name = name.strip()
    row = int(table.rows_of([name])[0])
    if row < 0 and name.startswith("'"):
        name = name[1:]
        row = int(table.rows_of([name])[0])
    if row < 0:
        raise UserError(f"{where}: {shown(name)!r} is unknown (in '{collection}'){table.unlike(name) or OTHER}")
    if text and bare(text) != bare(cell(table.column("text")[row])):
        raise UserError(f"{where}: the text differs from that of {shown(name)!r}; use a sheet of this collection")
    return row


def named(collection: Collection, query: int, passage: int) -> tuple[str, str]:
    """Return the query id and the passage id of a pair, as cells of a sheet."""
    return harmless(collection.queries.column("id")[query]), harmless(collection.passages.column("id")[passage])
