"""Hard negatives: as rows in memory-mapped arrays for training, and as JSONL for exchange.

JSONL has one query a line: {"query_id": ..., "negative_ids": [...], "scores": [...]}, best first; ``scores`` is optional.
Users also bring files in this format from elsewhere, so every line is checked.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
from numpy.typing import NDArray

from condensery.errors import UserError, shown
from condensery.retrieval.lookup import rows_of
from condensery.retrieval.no_negatives import NoNegatives, packed
from condensery.retrieval.relabelled import FILE, NOTHING, Relabelled
from condensery.system.files import atomic, load_array, write_json
from condensery.system.inputs import look
from condensery.system.progress import progress
from condensery.text.collection import Collection
from condensery.text.lines import check_whole, read_lines, read_value

LINES = 4096  # lines whose ids are looked up at a time
WRITTEN = 256  # lines written at a time
COMPARED = 16_000_000  # most passages that triples are compared with at a time: 64 MB


@dataclass(frozen=True)
class Negatives:
    """Negatives of q queries.

    Attributes:
        query_rows: int64 (q,), rows of the queries in the collection, in the order of the file.
        passage_rows: int32 (q, depth), best first, padded with -1.
        scores: float32 (q, depth), or None where scores are not known.
    """

    query_rows: NDArray[np.int64]
    passage_rows: NDArray[np.integer]
    scores: NDArray[np.float32] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Let another process map the files itself instead of copying the arrays."""
        if isinstance(self.passage_rows, np.memmap) and self.passage_rows.filename:
            return _mapped, (Path(self.passage_rows.filename).parent,)
        return Negatives, (self.query_rows, self.passage_rows, self.scores)

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of negatives of each query (q,)."""
        return (self.passage_rows >= 0).sum(axis=1)


def format_line(query_id: str, negative_ids: Sequence[str], scores: NDArray[np.float32] | None = None) -> str:
    """One line of the file, with its line end; scores to six digits."""
    line: dict[str, Any] = {"query_id": query_id, "negative_ids": list(negative_ids)}
    if scores is not None:
        line["scores"] = [float(f"{score:.6g}") for score in scores.tolist()]
    return json.dumps(line, ensure_ascii=False) + "\n"


def save_negatives(folder: Path, negatives: Negatives, collection: Collection, about: dict[str, Any]) -> None:
    """Write an artifact of negatives: arrays (``queries.npy``, ``passages.npy``, ``scores.npy``), JSONL and ``about``.

    Arrays that are mapped from files of ``folder`` are there already and are not written again.
    """
    if not isinstance(negatives.passage_rows, np.memmap):
        np.save(folder / "queries.npy", negatives.query_rows)
        np.save(folder / "passages.npy", negatives.passage_rows)
        if negatives.scores is not None:
            np.save(folder / "scores.npy", negatives.scores)
    out = folder / "negatives.jsonl"
    with atomic(out) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as stream:
        for first in range(0, len(negatives.query_rows), WRITTEN):
            part = slice(first, first + WRITTEN)
            rows = np.asarray(negatives.passage_rows[part])
            counts = (rows >= 0).sum(axis=1).tolist()
            passages = iter(collection.passages.ids_at(rows[rows >= 0]))
            for at, name in enumerate(collection.queries.ids_at(negatives.query_rows[part])):
                scores = None if negatives.scores is None else negatives.scores[first + at, : counts[at]]
                stream.write(format_line(name, list(islice(passages, counts[at])), scores))
    write_json(folder / "negatives.json", about)


def open_negatives(folder: Path, collection: Collection) -> Negatives:
    """Open the negatives of an artifact, memory-mapped. An artifact with JSONL alone is read into memory."""
    return (
        _mapped(folder)
        if (folder / "passages.npy").exists()
        else read_negatives(folder / "negatives.jsonl", collection)
    )


def open_relabelled(folder: Path, collection: Collection) -> Relabelled:
    """Open the judgements that ``Relabelled.saved`` wrote into an artifact of negatives; ``NOTHING`` where there are none."""
    path = folder / FILE
    if not path.exists():
        return NOTHING
    pairs = []
    for field in ("positive_ids", "negative_ids"):
        read = read_negatives(path, collection, field)
        pairs.append(np.unique(packed(read.query_rows[:, None], read.passage_rows)[read.passage_rows >= 0]))
    return Relabelled(*pairs)


def _mapped(folder: Path) -> Negatives:
    scores = folder / "scores.npy"
    return Negatives(
        load_array(folder / "queries.npy"),
        load_array(folder / "passages.npy", mapped=True),
        load_array(scores, mapped=True) if scores.exists() else None,
    )


def read_negatives(path: Path, collection: Collection, field: str = "negative_ids") -> Negatives:
    """Read a file of negatives, plain or .gz.

    Args:
        path: the file.
        collection: of queries and passages.
        field: the field of each line that lists the passages; ``positive_ids`` reads positives instead.

    Raises:
        UserError: with the line number: broken JSON, a missing or mistyped field, an unknown id, a query twice.
    """
    query_rows: list[NDArray[np.int64]] = []
    blocks: list[tuple[NDArray[np.int64], NDArray[np.int32]]] = []  # (counts, concatenated passage rows)
    seen = np.zeros(len(collection.queries), bool)
    for first, lines in _line_blocks(path):
        parsed = [_parse(line, f"{path}:{first + i}", field) for i, line in enumerate(lines)]
        rows = collection.queries.rows_of([query for query, _ in parsed])
        for i, row in enumerate(rows.tolist()):
            problem = "is unknown" if row < 0 else "has a line already" if seen[row] else ""
            if problem:
                hint = collection.queries.unlike(parsed[i][0]) if row < 0 else ""
                raise UserError(
                    f"{path}:{first + i}: query {shown(parsed[i][0])!r} {problem} (in '{collection.name}'){hint}"
                )
            seen[row] = True
        counts = np.array([len(ids) for _, ids in parsed], np.int64)
        flat = rows_of(collection.passages, [identifier for _, ids in parsed for identifier in ids])
        if len(flat) and flat.min() < 0:
            line = int(np.searchsorted(np.cumsum(counts), int(np.argmin(flat)), side="right"))
            unknown = next(one for one in parsed[line][1] if collection.passages.rows_of([one])[0] < 0)
            hint = collection.passages.unlike(unknown)
            raise UserError(
                f"{path}:{first + line}: passage {shown(unknown)!r} is unknown (in '{collection.name}'){hint}"
            )
        query_rows.append(rows)
        blocks.append((counts, flat.astype(np.int32)))
    if not blocks:
        raise UserError(f"{path}: no negatives, the file is empty")
    return Negatives(np.concatenate(query_rows), _padded(blocks))


def _padded(blocks: list[tuple[NDArray[np.int64], NDArray[np.int32]]]) -> NDArray[np.int32]:
    depth = max(int(counts.max()) for counts, _ in blocks)
    table = np.full((sum(len(counts) for counts, _ in blocks), depth), -1, np.int32)
    first = 0
    for counts, flat in blocks:
        table[first : first + len(counts)][np.arange(depth) < counts[:, None]] = flat
        first += len(counts)
    return table


def _line_blocks(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Blocks of lines without empty lines at the end of the file: (number of the first line, lines)."""
    number, lines = 1, list[str]()
    for _, line in read_lines(path):
        lines.append(line)
        if len(lines) == LINES:
            yield number, lines
            number, lines = number + LINES, []
    while lines and not lines[-1].strip():
        lines.pop()
    if lines:
        yield number, lines


def _parse(line: str, where: str, field: str) -> tuple[str, list[str]]:
    value = read_value(line, where)
    if not isinstance(value, dict):
        raise UserError(f"{where}: expected an object with query_id and {field}")
    query, ids = value.get("query_id"), value.get(field)
    if not isinstance(query, str):
        raise UserError(f"{where}: query_id must be a string, found {shown(json.dumps(query))}")
    if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
        raise UserError(f"{where}: {field} must be a list of strings")
    for identifier in (query, *ids):
        check_whole(identifier, "id", where)
    return query, ids


def from_triples(
    path: Path, collection: Collection, depth: int, split: str = "train", relabelled: Relabelled = NOTHING
) -> tuple[Negatives, dict[str, Any]]:
    """Read MS MARCO's triples of ids (query, positive, negative; tab-separated, .gz accepted) as negatives.

    Each query keeps its first ``depth`` distinct negatives. ``Screen`` leaves out passages that are no negatives by the
    judgements of ``split`` or by ``relabelled``. Queries that the collection does not know are counted, not kept.

    Returns:
        The negatives, and counts for the manifest.

    Raises:
        UserError: a line does not have three columns, a passage is unknown, or nothing is left.
    """
    distinct = Distinct(len(collection.queries), depth)
    screen = Screen(collection, split, relabelled)
    triples = unknown = 0
    with progress("triples", 0, "triples") as task:
        for batch in _triple_batches(path):
            queries = rows_of(collection.queries, batch.column(0))
            passages = rows_of(collection.passages, batch.column(2))
            if (passages < 0).any():
                row = int(np.argmax(passages < 0))
                unknown_id = batch.column(2)[row].as_py()
                hint = collection.passages.unlike(unknown_id)
                raise UserError(f"{_place(path, triples + row)}: passage {shown(unknown_id)!r} is unknown{hint}")
            known = queries >= 0
            if not unknown and not known.all():
                row = int(np.argmin(known))
                check_unlike(collection, batch.column(0)[row].as_py(), _place(path, triples + row))
            distinct.add(screen.kept(queries[known], passages[known]))
            triples += len(queries)
            unknown += int(len(queries) - known.sum())
            task.advance(len(queries))
    negatives = distinct.result()
    if not len(negatives.query_rows):
        raise UserError(f"{path}: no triple of a query of the collection '{collection.name}'")
    return negatives, {"triples": triples, "unknown_queries": unknown, **numbers(negatives), **screen.counts()}


def check_unlike(collection: Collection, query: str, place: str) -> None:
    """Raise ``UserError`` where the id of an unknown query looks the same as the id of a known query.

    Other unknown queries usually belong to other splits. One check reads all ids of queries, so only the first unknown
    query of a file is checked.
    """
    if hint := collection.queries.unlike(query):
        raise UserError(f"{place}: query {shown(query)!r} is unknown (in '{collection.name}'){hint}")


def from_collection(
    collection: Collection, depth: int, split: str = "train", relabelled: Relabelled = NOTHING
) -> tuple[Negatives, dict[str, Any]]:
    """The first ``depth`` negatives that the collection's own files give for each query of ``split``.

    ``Screen`` leaves out passages that are no negatives.

    Returns:
        The negatives, and counts for the manifest.

    Raises:
        UserError: there are no negatives.
    """
    given = collection.given_negatives
    if given is None:
        raise UserError(
            f"collection '{collection.name}' gives no negatives; set stage.read_negatives.file to a file of them"
        )
    distinct, screen = Distinct(len(collection.queries), depth), Screen(collection, split, relabelled)
    distinct.add(screen.kept(*given[np.isin(given[:, 0], collection.questions(split))].T))
    negatives = distinct.result()
    if not len(negatives.query_rows):
        raise UserError(f"collection '{collection.name}' gives no negatives for the queries of the split {split!r}")
    return negatives, {**numbers(negatives), **screen.counts()}


def numbers(negatives: Negatives) -> dict[str, int]:
    """The numbers of queries that have negatives, and of their negatives."""
    return {"queries": len(negatives.query_rows), "negatives": int(negatives.counts.sum())}


class Screen:
    """Leaves out given negatives that are none.

    These are passages that ``split`` or people since (``relabelled``) judge relevant, and passages that have the same text
    as a relevant passage or as the query (``NoNegatives``).

    Attributes:
        by_text: how often a passage was left out for its text alone.
    """

    def __init__(self, collection: Collection, split: str, relabelled: Relabelled = NOTHING) -> None:
        qrels = collection.qrels(split)
        relevant = qrels.grades >= qrels.relevant_from
        judged = packed(qrels.query_rows[relevant], qrels.passage_rows[relevant])
        self._judged = np.concatenate([judged, relabelled.yes])
        positives = relabelled.added_to(qrels.positives())
        self._known = NoNegatives.of(collection, positives, np.arange(len(collection.queries)))
        self.by_text = 0

    def kept(self, queries: NDArray[np.integer], passages: NDArray[np.integer]) -> NDArray[np.int64]:
        """The real negatives among pairs of queries (n,) and passages (n,): (m,) (query << 32) + passage, in order."""
        pairs, known = packed(queries, passages), self._known.among(queries, passages)
        self.by_text += int((~np.isin(pairs[known], self._judged)).sum())
        return pairs[~known]

    def counts(self) -> dict[str, int]:
        """The count of passages left out for their text, for a manifest; {} where there are none."""
        return {"left_out_by_text": self.by_text} if self.by_text else {}


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
    """The message that names the first line without three columns, whose number Arrow does not know.

    Raises ``UserError`` where ``read_lines`` does, because a line cannot be read.
    """
    for place, line in read_lines(path):
        if line and (columns := line.count("\t") + 1) != 3:
            return f"{place}: expected 3 tab-separated ids (query, positive, negative), found {columns}"
    return f"{path}: not readable as triples of ids ({reason})"


def _place(path: Path, row: int) -> str:
    """``path:line`` of the triple ``row``, counted from 0 as Arrow does, without empty lines."""
    return next(islice((place for place, line in read_lines(path) if line), row, None))


class Distinct:
    """The first ``depth`` distinct passages of each query, of a stream of (query << 32) + passage.

    Memory holds no more than these passages.
    """

    def __init__(self, queries: int, depth: int) -> None:
        self.depth = depth
        self.counts = np.zeros(queries, np.int64)
        self.table = np.full((queries, 0), -1, np.int32)  # (queries, width), in order of arrival, padded with -1

    def add(self, pairs: NDArray[np.int64]) -> None:
        """Take the next pairs of the stream."""
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
        self._widen(int(place.max(initial=-1)) + 1)
        self.table[queries, place] = passages
        np.add.at(self.counts, queries, 1)

    def _widen(self, width: int) -> None:
        known = self.table.shape[1]
        if width > known:
            wider = np.full((len(self.table), min(self.depth, max(width, 2 * known))), -1, np.int32)
            wider[:, :known] = self.table
            self.table = wider

    def result(self) -> Negatives:
        """The negatives so far, of the queries that have any, in row order."""
        queries = np.flatnonzero(self.counts)
        return Negatives(queries, self.table[queries, : self.counts.max(initial=0)])
