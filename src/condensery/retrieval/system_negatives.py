"""Read negatives that several systems found, in JSON lines: sentence-transformers' msmarco-hard-negatives.

A line is ``{"qid": 867436, "pos": [5238393], "neg": {"bm25": [...], "msmarco-distilbert-base-tas-b": [...], ...}}``. Ids are
numbers or strings, and each list is best first. Lines of this project, ``{"query_id": ..., "negative_ids": [...]}``, are read
as the list of one system.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError, close_to, shown
from condensery.retrieval.lookup import rows_of
from condensery.retrieval.negatives import LINES, Distinct, Negatives, Screen, check_unlike, numbers
from condensery.retrieval.no_negatives import packed
from condensery.retrieval.relabelled import NOTHING, Relabelled
from condensery.text.collection import Collection
from condensery.text.lines import check_whole, field, fields_of, read_objects

ENDINGS = (".jsonl", ".jsonl.gz")

Line = tuple[str, str, list[str], list[str]]  # place, query, positives, negatives


def from_systems(
    path: Path,
    collection: Collection,
    depth: int,
    split: str = "train",
    systems: Sequence[str] | None = None,
    per_system: int | None = None,
    relabelled: Relabelled = NOTHING,
) -> tuple[Negatives, dict[str, Any]]:
    """Read the negatives of a file. Each query has the first negative of every system first, then the second, ...

    The line's own positives are left out, and passages that are no negatives by ``split`` or ``relabelled`` (``Screen``).

    Args:
        path: the file, plain or .gz.
        collection: of queries and passages.
        depth: most distinct negatives that are kept of a query.
        split: gives the judgements.
        systems: names of the systems whose lists are used; None = all.
        per_system: most negatives that are used of each list; None = all.
        relabelled: people's later judgements.

    Returns:
        The negatives, and counts for the manifest.

    Raises:
        UserError: with the line: broken JSON, a missing or mistyped field, an unknown passage. Also where no line has one
            of the ``systems``, or no line belongs to a query of the collection.
    """
    distinct, screen = Distinct(len(collection.queries), depth), Screen(collection, split, relabelled)
    lines = unknown = 0
    seen = dict[str, None]()
    for block in _blocks(_parsed(path, systems, per_system, seen)):
        queries = collection.queries.rows_of([query for _, query, _, _ in block])
        if not unknown and (queries < 0).any():
            place, query, *_ = block[int(np.argmin(queries))]
            check_unlike(collection, query, place)
        known = [line for line, row in zip(block, queries.tolist(), strict=True) if row >= 0]
        lines, unknown = lines + len(block), unknown + len(block) - len(known)
        distinct.add(_pairs(collection, known, queries[queries >= 0], screen))
    if missing := [name for name in systems or [] if name not in seen]:
        raise UserError(
            f"stage.read_negatives.systems: {path} has no system {missing[0]!r}{close_to(missing[0], seen)}"
        )
    negatives = distinct.result()
    if not len(negatives.query_rows):
        raise UserError(f"{path}: no negative of a query of the collection '{collection.name}'")
    return negatives, {"lines": lines, "unknown_queries": unknown, **numbers(negatives), **screen.counts()}


def _pairs(collection: Collection, lines: list[Line], queries: NDArray[np.int64], screen: Screen) -> NDArray[np.int64]:
    """(n,) (query << 32) + passage of the real negatives of these lines."""
    counts = np.array([len(negatives) for *_, negatives in lines], np.int64)
    passages = rows_of(collection.passages, [one for *_, negatives in lines for one in negatives])
    if (passages < 0).any():
        at = int(np.argmax(passages < 0))
        place, _, _, negatives = lines[int(np.searchsorted(np.cumsum(counts), at, side="right"))]
        name = next(one for one in negatives if collection.passages.rows_of([one])[0] < 0)
        hint = collection.passages.unlike(name)
        raise UserError(f"{place}: passage {shown(name)!r} is unknown (in '{collection.name}'){hint}")
    positives = rows_of(collection.passages, [one for _, _, positives, _ in lines for one in positives])
    of_positives = np.repeat(np.arange(len(lines)), [len(positives) for _, _, positives, _ in lines])
    first = collection.passage_texts.same.first  # a positive's text under another id is no negative either
    own = np.isin(
        packed(np.repeat(np.arange(len(lines)), counts), first(passages)), packed(of_positives, first(positives))
    )
    return screen.kept(np.repeat(queries, counts)[~own], passages[~own])


def _parsed(path: Path, systems: Sequence[str] | None, per_system: int | None, seen: dict[str, None]) -> Iterator[Line]:
    """The lines of a file, each with one list that takes from its systems in turn. ``seen`` gets the systems' names."""
    for place, record in read_objects(path):
        if "neg" in record:
            lists = {name: _ids(listed, place) for name, listed in field(record, "neg", place, dict).items()}
            query, positives = _ids([record.get("qid")], place)[0], _ids(field(record, "pos", place, list, []), place)
        elif "negative_ids" in record:
            lists, positives = {"": _ids(record["negative_ids"], place)}, list[str]()
            query = field(record, "query_id", place, str)
        else:
            raise UserError(f'{place}: neither "neg" nor "negative_ids" ({fields_of(record)})')
        seen |= dict.fromkeys(lists)
        wanted = [lists.get(name, [])[:per_system] for name in (lists if systems is None else systems)]
        yield place, query, positives, [one for one in chain(*zip_longest(*wanted)) if one is not None]


def _ids(value: Any, place: str) -> list[str]:
    """Read a list of ids, which may be numbers. Raises ``UserError`` where ``value`` is no such list."""
    if not isinstance(value, list) or not all(
        isinstance(one, int | str) and not isinstance(one, bool) for one in value
    ):
        raise UserError(f"{place}: qid, pos and the lists of neg must be ids, as numbers or strings")
    ids = [str(one) for one in value]
    check_whole("".join(ids), "id", place)
    return ids


def _blocks(lines: Iterator[Line]) -> Iterator[list[Line]]:
    block = list[Line]()
    for line in lines:
        block.append(line)
        if len(block) == LINES:
            yield block
            block = []
    if block:
        yield block
