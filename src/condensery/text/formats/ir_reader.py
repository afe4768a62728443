"""Reads a collection of ir_datasets (``ir_datasets.py``): its documents, queries and judgements, row by row."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod
from typing import Any

from tqdm import tqdm

from condensery.errors import UserError, of_the_disk
from condensery.system.progress import progress, style
from condensery.text.formats.ir_datasets import IrDatasetsSource, Part
from condensery.text.ids import id_hash
from condensery.text.records import Document, Passage, Query
from condensery.text.writer import CollectionWriter

LARGE = 1_000_000  # passages
EVERY = 1000  # rows between two reports of progress


@contextmanager
def _reading(part: Part) -> Iterator[None]:
    """Turn a failure of the library while it reads into a ``UserError`` of one line.

    The library's own progress bars are shown only where our progress is a bar too.
    """

    shown = tqdm.__init__
    if style() != "bar":
        tqdm.__init__ = partialmethod(shown, disable=True)
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if said := of_the_disk(error):
            raise said from None
        text = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(
            f"{part.id}: ir_datasets cannot read the {part.role} ({type(error).__name__}: {text})"
        ) from error
    finally:
        tqdm.__init__ = shown


def _rows(part: Part, kind: str, total: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield (place, row) of every row of ``kind`` that the library reads: ``docs``, ``queries`` or ``qrels``."""
    with _reading(part), progress(f"reading {part.id}", total, kind) as task:
        for number, row in enumerate(getattr(part.handler, f"{kind}_iter")(), start=1):
            yield f"{part.id} {kind}:{number}", row
            if number % EVERY == 0:
                task.advance(EVERY)


def read(config: IrDatasetsSource, writer: CollectionWriter) -> None:
    """Fetch the files, and read them into ``writer``."""

    config.fetch()
    expected = config.expected()
    splits = [role.removeprefix("qrels of ") for role in config.parts if role.startswith("qrels of ")]
    for split in splits:
        _read_qrels(config, split, writer)
    seen: set[int] = set()
    for split in splits:
        for place, row in _rows(config.parts[f"queries of {split}"], "queries"):
            identifier, text = _name(config, split, row.query_id), _text(row)[1]
            if id_hash(identifier) not in seen:  # a query may be in two splits
                writer.add_query(Query(identifier, text.strip() if config.from_dpr else text, _answers(row)), place)
                if len(splits) > 1:
                    seen.add(id_hash(identifier))
    if expected["passages"] > LARGE and style() == "lines":
        print(f"[{config.name}] is unpacked by ir_datasets, which takes minutes, once", flush=True)
    document, before = "", ""
    for place, row in _rows(config.parts["passages"], "docs", expected["passages"]):
        title, text = _text(row)
        if not config.from_dpr:
            writer.add_passage(Passage(row.doc_id, title, text), place)
            continue
        title, text = unquoted(title), unquoted(text)
        if not document or not title or title != before:
            document, before = row.doc_id, title
        writer.add_passage(Passage(row.doc_id, title, text, document), place)
    if "documents" in config.parts:
        for place, row in _rows(config.parts["documents"], "docs", expected["documents"]):
            title, text = _text(row)
            writer.add_document(Document(row.doc_id, title, [text]), place)


def _name(config: IrDatasetsSource, split: str, identifier: str) -> str:
    """The id of a query. DPR's ids are places in the file of a split; they get the names of ``text/formats/dpr.py``."""
    return f"{split}-{identifier}" if config.from_dpr else identifier


def _read_qrels(config: IrDatasetsSource, split: str, writer: CollectionWriter) -> None:
    """Add the judgements of a split. Judgements of unknown queries, and of queries without a positive, are left out."""

    part = config.parts[f"qrels of {split}"]
    known = {id_hash(row.query_id) for _, row in _rows(config.parts[f"queries of {split}"], "queries")}
    positive = {id_hash(row.query_id) for _, row in _rows(part, "qrels") if row.relevance > 0}
    lost, done = set[int](), set[int]()
    hard: tuple[str, list[str]] = "", []
    for place, row in _rows(part, "qrels"):
        query, name = id_hash(row.query_id), _name(config, split, row.query_id)
        if query not in known:
            writer.dropped["judgements_of_unknown_queries"] += 1
        elif query not in positive:
            lost.add(query)
        elif config.from_dpr and row.relevance <= 0:
            if hard[0] != name:
                writer.add_negatives(*hard, place) if hard[1] else None
                hard = name, []
            hard[1].extend([row.doc_id] * (row.relevance == 0))  # grade -1: negatives drawn at random
        elif not (config.only_first and query in done):
            done.add(query)
            writer.add_judgement(split, name, row.doc_id, row.relevance, place)
    if hard[1]:
        writer.add_negatives(*hard, part.id)
    if lost:
        writer.dropped["questions_without_positive"] += len(lost)
    if (lowest := config.lowest_grade(split)) is not None:
        writer.relevant_from[split] = lowest


def _text(row: Any) -> tuple[str, str]:
    """(title, text) of a document or query. A row with other fields gives its text by ``default_text``."""
    fields = type(row)._fields
    for name in ("text", "body"):
        if name in fields:
            return (row.title or "") if "title" in fields else "", getattr(row, name) or ""
    return "", row.default_text()


def _answers(row: Any) -> tuple[str, ...]:
    return tuple(row.answers) if "answers" in type(row)._fields else ()


def unquoted(field: str) -> str:
    """Remove the quotes of a field, as the library leaves them: fields of a file of columns may be "quoted"."""
    whole = len(field) > 1 and field.startswith('"') and field.endswith('"')
    return field[1:-1].replace('""', '"') if whole else field
