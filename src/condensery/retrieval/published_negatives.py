"""Read published hard negatives from a file of id triples, from JSON lines with a list per system, or from the collection.

- Triples have MS MARCO's form: query, positive and negative, tab-separated.
- A JSON line with a list per system has the format of sentence-transformers' msmarco-hard-negatives: ``{"qid": 867436, "pos":
  [5238393], "neg": {"bm25": [...], "msmarco-distilbert-base-tas-b": [...], ...}}``. Its ids are numbers or strings, and each
  list is best first.
- A JSON line of this project, ``{"query_id": ..., "negative_ids": [...]}``, is read as the list of one system.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
from numpy.typing import NDArray

from condensery.errors import UserError, close_to, shown
from condensery.retrieval.lookup import LINES, in_blocks, known_rows, rows_of, rows_of_lists
from condensery.retrieval.negatives import Negatives
from condensery.retrieval.no_negatives import NoNegatives, packed
from condensery.retrieval.relabelled import NOTHING, Relabelled
from condensery.system.inputs import look
from condensery.system.progress import progress
from condensery.text.collection import Collection
from condensery.text.lines import check_whole, field, fields_of, read_lines, read_objects

COMPARED = 16_000_000  # maximum number of stored passages that are compared with new triples at a time: 64 MB

Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]  # queries (n,) and passages (n,)
Line = tuple[str, str, list[str], list[str]]  # "file:line", query, positives, negatives


def from_triples(
    path: Path, collection: Collection, depth: int, split: str = "train", relabelled: Relabelled = NOTHING
) -> tuple[Negatives, dict[str, Any]]:
    """Read the negatives from a file of id triples (query, positive, negative) such as MS MARCO's.

    The file is tab-separated, plain or .gz. Each query keeps its first ``depth`` distinct negatives. Passages that are
    relevant by the judgements of ``split`` or by ``relabelled`` are excluded, as are their duplicates (``_screened``).
    Queries that are not in the collection are counted and skipped.

    Returns:
        The negatives, and counts for the manifest.

    Raises:
        UserError: a line does not have three columns, a passage is unknown, or no negative is left.
    """
    counts = {"triples": 0, "unknown_queries": 0}

    def place(row: int) -> str:
        return _place(path, counts["triples"] + row)

    def pairs() -> Iterator[Pairs]:
        with progress("triples", 0, "triples") as task:
            for batch in _triple_batches(path):
                passages = known_rows(collection, "passage", batch.column(2), place)
                queries = rows_of(collection.queries, batch.column(0))
                known = queries >= 0
                if not counts["unknown_queries"] and not known.all():
                    row = int(np.argmin(known))
                    check_unlike(collection, batch.column(0)[row].as_py(), place(row))
                counts["triples"] += len(queries)
                counts["unknown_queries"] += int(len(queries) - known.sum())
                yield queries[known], passages[known]
                task.advance(len(queries))

    none = f"{path}: no triple has a negative for a query of the collection '{collection.name}'"
    negatives, kept = _screened(pairs(), collection, depth, split, relabelled, none)
    return negatives, {**counts, **kept}


def from_systems(
    path: Path,
    collection: Collection,
    depth: int,
    split: str = "train",
    systems: Sequence[str] | None = None,
    per_system: int | None = None,
    relabelled: Relabelled = NOTHING,
) -> tuple[Negatives, dict[str, Any]]:
    """Read a file of JSON lines with lists of negatives, and merge the lists of each line round-robin.

    A query gets the first negative of every system, then the second of every system, and so on. Two kinds of passages are
    excluded: the positives of the line, and the passages that ``_screened`` excludes because of the judgements.

    Args:
        path: the file, plain or .gz.
        collection: the collection of the queries and passages.
        depth: maximum number of distinct negatives kept per query.
        split: split whose judgements are used.
        systems: names of the systems whose lists are used; None = all.
        per_system: maximum number of negatives used from each list; None = all.
        relabelled: judgements from filled-in sheets of the stage ``audit_negatives``.

    Returns:
        The negatives, and counts for the manifest.

    Raises:
        UserError: a line is malformed JSON, a field is missing or has the wrong type, or a passage is unknown. The message
            names the line. The error is also raised if one of the ``systems`` occurs in no line, or if no line has a query
            of the collection.
    """
    counts, seen = {"lines": 0, "unknown_queries": 0}, dict[str, None]()

    def pairs() -> Iterator[Pairs]:
        for block in in_blocks(_parsed(path, systems, per_system, seen), LINES):
            queries = collection.queries.rows_of([query for _, query, _, _ in block])
            if not counts["unknown_queries"] and (queries < 0).any():
                place, query, *_ = block[int(np.argmin(queries))]
                check_unlike(collection, query, place)
            known = [line for line, row in zip(block, queries.tolist(), strict=True) if row >= 0]
            counts["lines"] += len(block)
            counts["unknown_queries"] += len(block) - len(known)
            yield _pairs(collection, known, queries[queries >= 0])
        if missing := [name for name in systems or [] if name not in seen]:
            raise UserError(
                f"stage.read_negatives.systems: {path} has no system {missing[0]!r}{close_to(missing[0], seen)}"
            )

    none = f"{path}: no line has a negative for a query of the collection '{collection.name}'"
    negatives, kept = _screened(pairs(), collection, depth, split, relabelled, none)
    return negatives, {**counts, **kept}


def _pairs(collection: Collection, lines: list[Line], queries: NDArray[np.int64]) -> Pairs:
    """Return the (query, passage) pairs of the lines' negatives, without the positives of the same line."""
    counts, passages = rows_of_lists(collection, [line[0] for line in lines], [line[3] for line in lines])
    of_line = np.repeat(np.arange(len(lines)), counts)
    positives = rows_of(collection.passages, [one for _, _, positives, _ in lines for one in positives])
    of_positives = np.repeat(np.arange(len(lines)), [len(positives) for _, _, positives, _ in lines])
    first = collection.passage_texts.same.first  # also excludes passages with a positive's text and another id
    own = np.isin(packed(of_line, first(passages)), packed(of_positives, first(positives)))
    return queries[of_line[~own]], passages[~own]


def _parsed(path: Path, systems: Sequence[str] | None, per_system: int | None, seen: dict[str, None]) -> Iterator[Line]:
    """Yield the parsed lines of a file, each with its systems' lists merged round-robin. System names go into ``seen``."""
    for place, record in read_objects(path):
        if "neg" in record:
            lists = {name: _ids(listed, place) for name, listed in field(record, "neg", place, dict).items()}
            query, positives = _ids([record.get("qid")], place)[0], _ids(field(record, "pos", place, list, []), place)
        elif "negative_ids" in record:
            lists, positives = {"": _ids(record["negative_ids"], place)}, list[str]()
            query = field(record, "query_id", place, str)
        else:
            raise UserError(f'{place}: the field "neg" or "negative_ids" is missing ({fields_of(record)})')
        seen |= dict.fromkeys(lists)
        wanted = [lists.get(name, [])[:per_system] for name in (lists if systems is None else systems)]
        yield place, query, positives, [one for one in chain(*zip_longest(*wanted)) if one is not None]


def _ids(value: Any, place: str) -> list[str]:
    """Read a list of ids, which may be numbers. Raises ``UserError`` if ``value`` is anything else."""
    if not isinstance(value, list) or not all(type(one) in (int, str) for one in value):
        raise UserError(f"{place}: qid, pos and the lists of neg must be ids, as numbers or strings")
    ids = [str(one) for one in value]
    check_whole("".join(ids), "id", place)
    return ids


def from_collection(
    collection: Collection, depth: int, split: str = "train", relabelled: Relabelled = NOTHING
) -> tuple[Negatives, dict[str, Any]]:
    """Return the negatives that the collection's own files list: the first ``depth`` for each query of ``split``.

    Relevant passages and their duplicates are excluded (``_screened``).

    Returns:
        The negatives, and counts for the manifest.

    Raises:
        UserError: the collection lists no negatives, or none for the queries of ``split``.
    """
    given = collection.given_negatives
    if given is None:
        raise UserError(f"collection '{collection.name}' gives no negatives; set stage.read_negatives.file")
    pairs = given[np.isin(given[:, 0], collection.questions(split))].T
    none = f"collection '{collection.name}' gives no negatives for the queries of the split {split!r}"
    return _screened([(pairs[0], pairs[1])], collection, depth, split, relabelled, none)


def check_unlike(collection: Collection, query: str, place: str) -> None:
    """Raise ``UserError`` if the id of an unknown query looks like the id of a known query.

    Any other unknown query usually belongs to another split and is not an error. A check reads all query ids, so callers
    check only the first unknown query of a file.
    """
    if hint := collection.queries.unlike(query):
        raise UserError(f"{place}: query {shown(query)!r} is unknown (in '{collection.name}'){hint}")


def _screened(
    given: Iterable[Pairs], collection: Collection, depth: int, split: str, relabelled: Relabelled, none: str
) -> tuple[Negatives, dict[str, int]]:
    """Return the first ``depth`` negatives of each query from a stream of (query, passage) pairs.

    Two kinds of passages are excluded: passages that are relevant by the judgements of ``split`` or by later human
    judgements (``relabelled``), and passages with the same text as a relevant passage or as the query (``NoNegatives``).

    Returns:
        The negatives, and counts for the manifest. ``left_out_by_text`` counts the passages excluded for their text alone.

    Raises:
        UserError: no negatives are left. ``none`` is the message.
    """
    qrels = collection.qrels(split)
    relevant = qrels.grades >= qrels.relevant_from
    judged = np.concatenate([packed(qrels.query_rows[relevant], qrels.passage_rows[relevant]), relabelled.yes])
    known = NoNegatives.of(collection, relabelled.added_to(qrels.positives()), np.arange(len(collection.queries)))
    distinct, by_text = Distinct(len(collection.queries), depth), 0
    for queries, passages in given:
        pairs, no_negatives = packed(queries, passages), known.among(queries, passages)
        by_text += int((~np.isin(pairs[no_negatives], judged)).sum())
        distinct.add(pairs[~no_negatives])
    negatives = distinct.result()
    if not len(negatives.query_rows):
        raise UserError(none)
    counts = {"queries": len(negatives.query_rows), "negatives": int(negatives.counts.sum())}
    return negatives, {**counts, **({"left_out_by_text": by_text} if by_text else {})}


def _triple_batches(path: Path) -> Iterator[pa.RecordBatch]:
    names = ["query", "positive", "negative"]
    convert = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False)
    read = csv.ReadOptions(column_names=names, block_size=16 * 2**20)
    parse = csv.ParseOptions(delimiter="\t", quote_char=False)
    look([path])  # Arrow would wait for the content of a pipe
    try:
        yield from csv.open_csv(path, read_options=read, parse_options=parse, convert_options=convert)
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(_broken_triple(path, str(error).splitlines()[0])) from None


def _broken_triple(path: Path, reason: str) -> str:
    """Return the message that names the first line without three columns. Arrow does not report its line number.

    Raises:
        UserError: ``read_lines`` cannot read a line.
    """
    for place, line in read_lines(path):
        if line and (columns := line.count("\t") + 1) != 3:
            return f"{place}: expected 3 tab-separated ids (query, positive, negative), found {columns}"
    return f"{path}: not readable as triples of ids ({reason})"


def _place(path: Path, row: int) -> str:
    """Return ``path:line`` of the triple number ``row``. Like Arrow, ``row`` counts from 0 and skips empty lines."""
    return next(islice((place for place, line in read_lines(path) if line), row, None))


class Distinct:
    """Collects the first ``depth`` distinct passages of each query from a stream of (query << 32) + passage.

    Only these passages are held in memory.

    Args:
        queries: number of queries in the collection.
        depth: maximum number of passages per query.
    """

    def __init__(self, queries: int, depth: int) -> None:
        self.depth = depth
        self.counts = np.zeros(queries, np.int64)
        self.table = np.full((queries, 0), -1, np.int32)  # (queries, width), in order of arrival, padded with -1

    def add(self, pairs: NDArray[np.int64]) -> None:
        """Add the next pairs of the stream."""
        while len(pairs):
            size = max(1, COMPARED // max(1, self.table.shape[1]))
            self._add(pairs[:size])
            pairs = pairs[size:]

    def _add(self, pairs: NDArray[np.int64]) -> None:
        pairs = pairs[self.counts[pairs >> 32] < self.depth]  # a full query needs no more
        _, first = np.unique(pairs, return_index=True)
        pairs = pairs[np.sort(first)]
        queries, passages = pairs >> 32, (pairs & 0xFFFFFFFF).astype(np.int32)
        fresh = ~(self.table[queries] == passages[:, None]).any(axis=1)
        order = np.argsort(queries[fresh], kind="stable")
        queries, passages = queries[fresh][order], passages[fresh][order]
        place = self.counts[queries] + np.arange(len(queries)) - np.searchsorted(queries, queries)
        kept = place < self.depth
        queries, passages, place = queries[kept], passages[kept], place[kept]
        width, known = int(place.max(initial=-1)) + 1, self.table.shape[1]
        if width > known:
            more = min(self.depth, max(width, 2 * known)) - known
            self.table = np.pad(self.table, [(0, 0), (0, more)], constant_values=-1)
        self.table[queries, place] = passages
        np.add.at(self.counts, queries, 1)

    def result(self) -> Negatives:
        """Return the negatives collected so far. Queries are in row order; queries without negatives are left out."""
        queries = np.flatnonzero(self.counts)
        return Negatives(queries, self.table[queries, : self.counts.max(initial=0)])
