"""Read the queries and the judgements (qrels) of a collection, which several formats have in common.

The queries are in ``queries.jsonl`` and the judgements in ``qrels/*.tsv``, as in a BEIR folder. A file of judgements may be
in TREC's format. Each file is plain or gzip.
"""

from pathlib import Path
from typing import Literal
from unicodedata import normalize

from condensery.errors import UserError, shown
from condensery.text.formats import CollectionWriter
from condensery.text.input_file import InputFile
from condensery.text.lines import at_least_one, field, integer, read_columns, read_lines, read_objects
from condensery.text.records import Query
from condensery.text.source import Splits

HEADER = ["query-id", "corpus-id", "score"]
TREC = ["query id", "0", "passage id", "grade"]
HEADED = f"a header, if there is one, must be {', '.join(HEADER)}"
Form = Literal["NFC"] | None  # Unicode form to which the ids of passages are normalised; None = they stay unchanged


def question_files(folder: Path, splits: Splits) -> list[InputFile]:
    """Return the files of queries and judgements of a BEIR folder for ``splits``; no files when no split is used."""
    named = splits.named()
    if not named:
        return []
    files = [InputFile("queries", folder / "queries.jsonl", "; if you have no queries, set all data.splits.* to null")]
    for split, stem in named.items():
        hint = f"; to leave this split out, set data.splits.{split}=null"
        files.append(InputFile(f"qrels of {split}", folder / "qrels" / f"{stem}.tsv", hint))
    return files


def read_questions(files: list[InputFile], writer: CollectionWriter, form: Form = None) -> None:
    """Read first the judgements and then the queries, from the files of ``question_files``.

    ``form``: the Unicode form to which the ids of passages are normalised; None = the ids stay unchanged.
    """
    for file in files:
        if file.role.startswith("qrels of "):
            read_qrels(file.open_path(), file.role.removeprefix("qrels of "), writer, form)
    for file in files:
        if file.role == "queries":
            for place, record in file.entries(read_objects, f"holds no queries{file.hint}"):
                writer.add_query(Query(field(record, "_id", place, str), field(record, "text", place, str)), place)


def read_qrels(path: Path, split: str, writer: CollectionWriter, form: Form = None, trec: bool = False) -> None:
    """Read a file of judgements: query id, passage id and grade, separated by tabs, with or without the header line.

    A file whose first line has four columns is read in TREC's format: query id, 0, passage id and grade, separated by tabs
    or spaces. With ``trec``, every file is read in this format.

    ``form``: the Unicode form to which the ids of passages are normalised; None = the ids stay unchanged. Raises
    ``UserError`` for a malformed line and for a file without judgements.
    """
    first = next((line.split() for _, line in read_lines(path, show=False) if line), [])
    names, separator = (TREC, None) if trec or len(first) == len(TREC) else (HEADER, "\t")
    rows = (row for number, row in enumerate(read_columns(path, names, separator)) if number or row[1] != HEADER)
    none = f"no judgements; to leave this split out, set data.splits.{split}=null"
    for place, (query, *_, passage, grade) in at_least_one(rows, path, none):
        if grade.isalpha():  # a header with other names
            raise UserError(f'{place}: the {names[-1]} must be a whole number, not "{shown(grade)}"; {HEADED}')
        passage = normalize(form, passage) if form else passage
        writer.add_judgement(split, query, passage, integer(grade, names[-1], place), place)
