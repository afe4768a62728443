"""Write a collection from a stream of passages, queries, documents and judgements, and check it as a whole at the end."""

import hashlib
import re
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError, number_of, shown
from condensery.randomness import hash64
from condensery.system.files import write_json
from condensery.text.collection import DESCRIPTION, SPLITS
from condensery.text.hashes import id_hash
from condensery.text.ids import SUFFIX, IdIndex, KeptIds, look_alike
from condensery.text.judgements import GivenNegatives, Judgements
from condensery.text.lines import Places, check_whole
from condensery.text.records import Document, Passage, Query
from condensery.text.sizes import HELD_OUT_SHARE
from condensery.text.source import UNJUDGED
from condensery.text.table import TableWriter, TextTable
from condensery.text.words import is_blank

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class IndexedWriter:
    """Writes a table whose first column has ids, with the index of the ids, and keeps the place of each row in the input."""

    def __init__(self, folder: Path, name: str, columns: tuple[str, ...], lists: tuple[str, ...] = ()) -> None:
        self.name, self.path = name, folder / f"{name}.arrow"
        self.table = TableWriter(self.path, columns, lists)
        self.hashes, self.places = array("Q"), Places()
        self.characters = 0

    def add(self, row: tuple[str | list[str], ...], length: int, where: str) -> None:
        """Append a row of about ``length`` characters."""
        self.table.add(row, length)
        self.hashes.append(id_hash(str(row[0])))
        self.places.add(where)
        self.characters += length

    def unlike(self, identifier: str, left_out: Iterable[str] = ()) -> str:
        """Return a hint for an unknown id: an id of the table that looks like it, or advice. The table must be closed.

        ``left_out``: further ids, of rows that were left out of the table.
        """
        ids = TextTable(self.path).column("id")
        such = "".join(f"; {self.name} have ids such as {shown(one)!r}" for one in [*ids[:1], *left_out][:1])
        return (
            look_alike(identifier, chain(ids, left_out)) or f"{such}; correct the id, add its text, or remove the line"
        )

    def close(self) -> IdIndex:
        """Finish the table and index its ids. Raises ``UserError`` for an id that occurs twice."""
        self.table.close()
        index = IdIndex.of(np.frombuffer(self.hashes, np.uint64))
        if duplicate := index.first_duplicate():
            here, before = (self.places[row] for row in duplicate)
            name = repr(shown(TextTable(self.path).ids_at([duplicate[0]])[0]))
            raise UserError(f"{here}: this id is also at {before}: {name}; give each of the {self.name} its own id")
        index.save(self.path.with_suffix(SUFFIX))
        return index


@dataclass
class _LeftOut:
    """Judgements that are not read for one reason: the query id and place of the first judgement, and their number."""

    query_id: str
    where: str
    number: int = 0


class CollectionWriter:
    """Writes a collection folder from a stream. At most a few thousand texts are in memory at a time.

    Args:
        folder: folder to write to; the remains of an earlier, interrupted writer are replaced.
        name: the collection's name in tables.
        source: the name of the whole input in error messages, such as its root or its packages.
        empty_passages: what to do with a passage that has neither text nor title: ``error`` raises, ``drop`` leaves out
            the passage and its judgements.
        dev_queries: the number of train queries that become dev queries when there are train judgements and no dev split. At
            most a tenth of the train queries is taken, chosen by the hash of the id.
        unlabelled_queries: the number of remaining train queries whose judgements are removed. The queries stay in the
            collection. At most half of the train queries is taken, chosen by hash. The value ``unjudged`` instead
            keeps the queries that have no judgement in any split.

    Attributes:
        warnings: the warnings in the description of the collection.
        regex_answers: whether answers are regular expressions.
        broken_answers: (place, answer) of the answers that are invalid regular expressions.
        relevant_from: split -> the lowest grade that counts as relevant, if it is not 1.

    If a passage has a title and no text, its title becomes its text. Judgements must be added before queries, because
    ``add_query`` decides at once whether a query without judgements is kept. Every fault of the input raises a
    ``UserError`` that names the place. ``close`` reports the faults that need the whole input: repeated ids, unknown ids,
    documents whose passages are not consecutive, and queries without positives.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        source: str = "",
        empty_passages: str = "error",
        dev_queries: int = 0,
        unlabelled_queries: int | str = 0,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        of_splits = (f"{what}-{split}.npy" for what in ("qrels", "questions") for split in SPLITS)
        for stale in [DESCRIPTION, "documents.arrow", "negatives.npy", *of_splits]:
            (folder / stale).unlink(missing_ok=True)
        self.folder, self.name, self.source = folder, name, source or name
        self.empty_passages, self.dev_queries = empty_passages, dev_queries
        self.unlabelled_queries = unlabelled_queries
        self.dropped: Counter[str] = Counter()
        self.warnings: list[str] = []
        self.regex_answers = False
        self.broken_answers: list[tuple[str, str]] = []
        self.relevant_from: dict[str, int] = {}
        self._answers = TableWriter(folder / "answers.arrow", ("answers",), lists=("answers",))  # a row for each query
        self._answered = False  # whether any query has answers
        self._questions: dict[str, array[int]] = {}
        self._negatives = GivenNegatives()
        self._passages = IndexedWriter(folder, "passages", ("id", "title", "text", "document"))
        self._queries = IndexedWriter(folder, "queries", ("id", "text"))
        self._documents: IndexedWriter | None = None
        self._document: str | None = None
        self._document_hashes, self._document_places = array("Q"), Places()
        self._judgements: dict[str, Judgements] = {}
        self._judged: set[int] = set()
        self._left_out: dict[tuple[str, bool], _LeftOut] = {}  # split, and whether the query is known -> judgements
        self._unjudged = KeptIds()  # ids of the queries that were left out for lack of judgements
        self._dropped_passages: set[int] = set()
        self._hash = hashlib.blake2b(digest_size=16)

    def __enter__(self) -> "CollectionWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()

    def add_passage(self, passage: Passage, where: str = "") -> None:
        """Append a passage. Raises ``UserError`` for an empty text and for an invalid id of the passage or its document."""
        title, text = passage.title, passage.text
        if is_blank(text):
            if is_blank(title):
                self._drop_passage(passage.id, where)
                return
            title, text = "", title
            self.dropped["titles_used_as_text"] += 1
        document = passage.id if passage.document is None else passage.document
        _check_id(passage.id, "passage id", where)
        self._follow_document(passage.document, where)
        self._digest("passage", where, passage.id, title, text, document)
        self._passages.add((passage.id, title, text, document), len(title) + len(text), where)

    def _drop_passage(self, identifier: str, where: str) -> None:
        if self.empty_passages == "error":
            raise UserError(f"{where}: the text is empty; fill it, or leave such lines out: data.empty_passages=drop")
        self._dropped_passages.add(id_hash(identifier))
        self.dropped["empty_passages"] += 1

    def _follow_document(self, document: str | None, where: str) -> None:
        if document is not None and document != self._document:
            _check_id(document, "document id", where)
            self._document_hashes.append(id_hash(document))
            self._document_places.add(where)
        self._document = document

    def add_query(self, query: Query, where: str = "", split: str | None = None) -> None:
        """Append a query, or leave it out and count it in ``unjudged_queries``.

        A judged query is kept. Another query is kept only if ``split`` is given, ``unlabelled_queries`` is ``unjudged``, or
        the whole input has no judgements.

        Args:
            query: the query.
            where: the query's place in the input, for error messages.
            split: the split of a query that has answers and no judgements.

        Raises:
            UserError: the text is empty or the id is not valid.
        """
        kept = split is not None or not self._judged or self.unlabelled_queries == UNJUDGED
        if not kept and id_hash(query.id) not in self._judged:
            self.dropped["unjudged_queries"] += 1
            self._unjudged.add(query.id)
            return
        _check_id(query.id, "query id", where)
        if is_blank(query.text):
            raise UserError(f"{where}: the text of the query is empty; fill it, or remove the query")
        answers = [answer for answer in query.answers if not is_blank(answer)]
        self.dropped["empty_answers"] += len(query.answers) - len(answers)
        self._digest("query", where, query.id, query.text, *answers)
        if split is not None:
            self._questions.setdefault(split, array("q")).append(self._queries.table.count)
        self._answers.add((answers,), sum(map(len, answers)))
        self._answered |= bool(answers)
        self._queries.add((query.id, query.text), len(query.text), where)

    def add_document(self, document: Document, where: str = "") -> None:
        """Append a document for pre-training. Empty passages, and documents without passages, are left out."""
        passages = [passage for passage in document.passages if not is_blank(passage)]
        if not passages:
            self.dropped["empty_documents"] += 1
            return
        _check_id(document.id, "document id", where)
        self._digest("document", where, document.id, document.title, *passages)
        if self._documents is None:
            self._documents = IndexedWriter(self.folder, "documents", ("id", "title", "passages"), lists=("passages",))
        self._documents.add((document.id, document.title, passages), sum(map(len, passages)), where)

    def add_judgement(self, split: str, query_id: str, passage_id: str, grade: int, where: str = "") -> None:
        """Append a judgement to ``split`` (one of ``SPLITS``). ``close`` checks the ids."""
        if split not in SPLITS:
            raise ValueError(f"split {split!r} is none of {SPLITS}")
        if split not in self._judgements:
            self._judgements[split] = Judgements(split)
        self._judgements[split].add(query_id, passage_id, grade, where)
        self._judged.add(id_hash(query_id))

    def leave_out_judgement(self, split: str, query_id: str, where: str, known: bool = False) -> None:
        """Count a judgement that is not read: the query is not in the input or, if ``known``, has no positive."""
        self.dropped["judgements_without_positive" if known else "judgements_of_unknown_queries"] += 1
        self._left_out.setdefault((split, known), _LeftOut(query_id, where)).number += 1

    def add_negatives(self, query_id: str, passage_ids: list[str], where: str = "") -> None:
        """Append the hard negatives that the input gives for a query, best first. ``close`` checks the ids."""
        self._negatives.add(query_id, passage_ids, where)

    def _digest(self, kind: str, where: str, *texts: str) -> None:
        encoded = [check_whole(text, kind, where) for text in (kind, *texts)]
        self._hash.update(b"".join([part for one in encoded for part in (len(one).to_bytes(8, "little"), one)]))

    def close(self) -> None:
        """Check the whole input and write the remaining files, ``collection.json`` last. Raises ``UserError`` for a fault."""
        passages, queries = self._passages.close(), self._queries.close()
        if self._documents is not None:
            self._documents.close()
        self._answers.close()
        if not self._answered:
            (self.folder / "answers.arrow").unlink()
        if not len(passages.rows):
            empty = self.dropped["empty_passages"] + self.dropped["empty_documents"]
            why = f": all texts here are empty ({empty:,})" if empty else ""
            raise UserError(f"{self.source}: no passages; the collection would be empty{why}")
        if duplicate := IdIndex.of(np.frombuffer(self._document_hashes, np.uint64)).first_duplicate():
            here, before = (self._document_places[row] for row in duplicate)
            raise UserError(f"{here}: the passages of a document must be consecutive; this one began at {before}")
        if self._judgements and not len(queries.rows) and not self.dropped["unjudged_queries"]:
            raise UserError(f"{self.source}: there are judgements, but the file of queries is empty; add the queries")
        qrels = self._resolve(queries, passages)
        self._hold_out(qrels)
        self._set_aside(qrels)
        for split in SPLITS:
            if split in qrels:
                self._save(f"qrels-{split}", qrels[split], split)
        for split, row_numbers in sorted(self._questions.items()):
            if split in qrels:
                raise ValueError(f"the split {split} has judged queries and queries with answers alone")
            self._save(f"questions-{split}", np.array(row_numbers, np.int64), split)
        for split, grade in sorted(self.relevant_from.items()):
            self._hash.update(f"{split} is relevant from {grade}".encode())
        negatives = self._negatives.resolve(queries, passages, self._dropped_passages, self._passages.unlike)
        if len(negatives):
            self._save("negatives", negatives, "negatives")
        self._describe(qrels, len(negatives))

    def _resolve(self, queries: IdIndex, passages: IdIndex) -> dict[str, NDArray[np.int32]]:
        # an unknown id may mean a query that was left out
        qrels, like_query = {}, partial(self._queries.unlike, left_out=self._unjudged)
        for (split, known), first in self._left_out.items():
            alike = look_alike(first.query_id, chain(TextTable(self._queries.path).column("id"), self._unjudged))
            fault = "has no positive passage (grade above 0)" if known else f"is not among the queries{alike}"
            told = f"{first.where}: the query {shown(first.query_id)!r} {fault}"
            if split not in self._judgements:
                out = f"or leave the split out: data.splits.{split}=null"
                raise UserError(f"{told}; no judgement of the split {split} can be used; correct its file, {out}")
            if not known:
                number = number_of(first.number, f"judgements of the split {split} are")
                self.warnings.append(f"{told}; {number} left out")
        for split in SPLITS:
            if split in self._judgements:
                qrels[split], left_out = self._judgements[split].resolve(
                    queries, passages, self._dropped_passages, like_query, self._passages.unlike
                )
                self.dropped["judgements"] += left_out
        seen: NDArray[np.int32] = np.zeros(0, np.int32)
        for split, rows in qrels.items():
            if shared := len(np.intersect1d(seen, rows[:, 0])):
                self.warnings.append(number_of(shared, f"queries of the split {split} are also in an earlier split"))
            seen = np.union1d(seen, rows[:, 0])
        return qrels

    def _hold_out(self, qrels: dict[str, NDArray[np.int32]]) -> None:
        """Move ``dev_queries`` train queries to dev if the source has no dev split, and print how many."""
        if not self.dev_queries or "dev" in qrels or "dev" in self._questions or "train" not in qrels:
            return
        held_out = self._drawn(qrels["train"], "dev", self.dev_queries, HELD_OUT_SHARE)
        if held_out.any():
            qrels["train"], qrels["dev"] = qrels["train"][~held_out], qrels["train"][held_out]
            number = number_of(len(np.unique(qrels["dev"][:, 0])), "train queries are")
            print(f"[{self.name}] {number} held out as dev, because there is no dev split (dev_queries)", flush=True)

    def _set_aside(self, qrels: dict[str, NDArray[np.int32]]) -> None:
        """Remove the judgements of ``unlabelled_queries`` train queries."""
        if isinstance(self.unlabelled_queries, int) and self.unlabelled_queries and "train" in qrels:
            aside = self._drawn(qrels["train"], "unlabelled", self.unlabelled_queries, 2)
            for rows in (rows for split, rows in qrels.items() if split != "train"):
                aside &= ~np.isin(qrels["train"][:, 0], rows[:, 0])  # not queries that are also in another split
            self.dropped["labels_set_aside"] += int(aside.sum())
            qrels["train"] = qrels["train"][~aside]

    def _drawn(self, train: NDArray[np.int32], what: str, number: int, share: int) -> NDArray[np.bool_]:
        """Draw ``number`` queries by the hash of their id, but at most one query in ``share``.

        Returns:
            bool (n,), True for each judgement of a drawn query.
        """
        queries = np.unique(train[:, 0])
        hashes = np.frombuffer(self._queries.hashes, np.uint64)[queries]
        order = sorted(range(len(queries)), key=lambda at: hash64(what, int(hashes[at])))
        return np.isin(train[:, 0], queries[order[: min(number, len(queries) // share)]])

    def _save(self, name: str, rows: NDArray[np.signedinteger], label: str) -> None:
        """Write an array of rows, and add ``label`` and the array's numbers to the content hash."""
        np.save(self.folder / f"{name}.npy", rows)
        self._hash.update(label.encode() + rows.astype(rows.dtype.newbyteorder("<")).tobytes())

    def _describe(self, qrels: dict[str, NDArray[np.int32]], negatives: int) -> None:
        if self.broken_answers:
            place, answer = self.broken_answers[0]
            more = f" (and {len(self.broken_answers) - 1:,} more answers)" if len(self.broken_answers) > 1 else ""
            self.warnings.append(
                f"{place}: the answer {shown(answer)!r} is not a valid regular expression, so no passage has it{more}"
            )
        description: dict[str, Any] = {
            "name": self.name,
            "content_hash": self._hash.hexdigest(),
            "passages": self._passages.table.count,
            "passage_characters": self._passages.characters,
            "queries": self._queries.table.count,
            "documents": self._documents.table.count if self._documents else 0,
            "splits": {split: self._counts(split, qrels) for split in SPLITS if split in {*qrels, *self._questions}},
            "dropped": dict(sorted((key, count) for key, count in self.dropped.items() if count)),
            "warnings": self.warnings,
        }
        if self._answered:
            description["answers"] = "regex" if self.regex_answers else "string"
        if negatives:
            description["negatives"] = negatives
        write_json(self.folder / DESCRIPTION, description)

    def _counts(self, split: str, qrels: dict[str, NDArray[np.int32]]) -> dict[str, int]:
        if split not in qrels:
            return {"queries": len(self._questions[split]), "judgements": 0}
        counts = {"queries": len(np.unique(qrels[split][:, 0])), "judgements": len(qrels[split])}
        return counts | ({"relevant_from": self.relevant_from[split]} if split in self.relevant_from else {})


def _check_id(identifier: str, kind: str, where: str) -> None:
    """Raise ``UserError`` if an id is empty or contains white space or a control character.

    Run files separate their columns by white space, so an id cannot contain it.
    """
    if not identifier:
        raise UserError(f"{where}: the {kind} is empty; give every one an id of its own")
    if identifier.split(maxsplit=1) != [identifier]:
        remedy = "which run files cannot keep; write another character, such as _, in every file"
        raise UserError(f'{where}: the {kind} "{shown(identifier)}" holds white space, {remedy}')
    if CONTROL.search(identifier):
        raise UserError(f"{where}: the {kind} {shown(identifier)!r} holds a control character; remove it in every file")
