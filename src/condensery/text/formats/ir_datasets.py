"""Read collections of the library ir_datasets (MacAvaney et al. 2021) by id: MS MARCO, BEIR, DPR's Wikipedia, mMARCO.

The library knows the URL, size and MD5 of each file, and how to fetch and read it. The files are in ``$IR_DATASETS_HOME`` (by
default ``~/.ir_datasets``). Before reading begins, all files are fetched and checked. The identity of a collection is a hash
of the MD5s that the library lists, so it is known before any file is fetched. This module was written for ir_datasets 0.6.3.

A few characters of a text may differ from the published files. The library repairs the broken encoding of MS MARCO's
passages, and reads MS MARCO's documents from the file in TREC's format. Tests serve small files instead of the real ones.
"""

import difflib
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partialmethod
from itertools import groupby
from locale import getpreferredencoding
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from filelock import FileLock
from pydantic import Field
from rich.filesize import decimal as as_bytes
from tqdm import tqdm

from condensery.errors import UserError, of_the_disk, shown
from condensery.keys import Keys
from condensery.system.downloads import check_room, file_digest
from condensery.system.progress import progress, style
from condensery.text.formats import CollectionWriter
from condensery.text.formats.dpr import add_passages
from condensery.text.hashes import content_hashes, id_hash
from condensery.text.records import Document, Passage, Query
from condensery.text.sizes import CHARACTERS, READ, UNPACKED, CollectionSizes
from condensery.text.source import AUTO, DataConfig, WantedFile

CANDIDATES = {  # split -> possible names in ir_datasets, the preferred first; "": the queries of the collection itself
    "train": ("train",),
    "dev": ("dev",),
    "test": ("test", "dev/small", "dev", ""),
    "dl19": ("trec-dl-2019/judged",),
    "dl20": ("trec-dl-2020/judged",),
}
ON_DEV = ("beir/msmarco",)  # BEIR reports MS MARCO on the dev queries; its test queries are from TREC 2019
RELEVANT_FROM = {"msmarco-passage": 2, "msmarco-passage-v2": 2}  # lowest relevant grade, as in TREC's tables
GRADED = {"dl19", "dl20"}
LARGE = 1_000_000  # number of passages above which unpacking takes minutes
EVERY = 1000  # number of rows between two reports of progress
# the library asks for agreement but waits for no answer, so its words are replaced
CONFIRM = "Please confirm you agree", "By fetching the files, you agree"
UNREACHED = re.compile(r"HTTPS?ConnectionPool\(host='([^']*)'.*")  # message of the library requests
DPR = "dpr-w100"
TITLES = ("title", "headline", "document_title", "page_title")  # fields of a document with its title
CALLED = {  # id in ir_datasets -> name in this project's tables
    "msmarco-passage": "msmarco",
    "msmarco-document": "msmarco-documents",
    f"{DPR}/natural-questions": "nq",
    f"{DPR}/trivia-qa": "triviaqa",
    "beir/webis-touche2020/v2": "webis-touche2020",
}
NOT_IN_BEIR = {  # four of BEIR's eighteen data sets, whose texts are not freely available -> how to get them
    "beir/bioasq": "register at http://participants-area.bioasq.org, then data=beir data.root=FOLDER",
    "beir/signal1m": "ask Signal AI (https://research.signal-ai.com), then data=beir data.root=FOLDER",
    "beir/trec-news": "data.name=wapo/v2/trec-news-2019; ask NIST (https://trec.nist.gov/data/wapost/)",
    "beir/robust04": "data.name=disks45/nocr/trec-robust-2004; ask NIST (https://trec.nist.gov/data/cd45/)",
}


class IrSplits(Keys):
    """For each split an id of ir_datasets, with or without the collection's id as prefix; None = the split is not used.

    ``auto`` stands for the first of ``CANDIDATES`` that the library has.
    """

    train: str | None
    dev: str | None
    test: str | None
    dl19: str | None
    dl20: str | None


@dataclass(frozen=True)
class Part:
    """The documents, queries or judgements of a data set of the library.

    Attributes:
        role: the purpose of the part, such as ``passages`` or ``qrels of train``.
        id: the id of the data set in ir_datasets.
        handler: the library's object that reads the part.
    """

    role: str
    id: str
    handler: Any


class Download(NamedTuple):
    """A file that the library reads.

    Attributes:
        path: path of the file.
        fetch: function of the library that fetches the file, if it is missing, and checks its MD5.
        urls: URLs of the file; empty = the file can only be downloaded by hand.
        md5: MD5 of the file, 32 hexadecimal digits; None if no MD5 is published.
        size: published size of the file in bytes; None if unknown.
        by_hand: instructions for a file that a program may not download: the web page, and the steps there.
    """

    path: Path
    fetch: Callable[[], object]
    urls: tuple[str, ...] = ()
    md5: str | None = None
    size: int | None = None
    by_hand: str = ""

    @property
    def bytes_whole(self) -> int:
        """The size of the file in bytes; 0 if it is unknown."""
        return self.path.stat().st_size if self.path.is_file() else self.size or 0


class IrDatasetsSource(DataConfig):
    """A collection of ir_datasets.

    Attributes:
        splits: the id of each split.
        documents: the id of another collection, whose documents are the text for pre-training.
        relevant_from: the lowest grade that counts as relevant in dl19 and dl20.
        positives: ``first`` uses only the first judged positive of a query, as DPR's training does.
    """

    format: Literal["ir_datasets"] = "ir_datasets"
    splits: IrSplits
    documents: str | None
    relevant_from: int | Literal["auto"] = Field(union_mode="left_to_right")
    positives: Literal["first", "all", "auto"]

    outside_identity: ClassVar[set[str]] = {"splits", "documents", "relevant_from", "positives"}

    @property
    def called(self) -> str:
        """The name in tables, the same as for a folder of the same data: ``scifact``, ``cqadupstack/android``, ``nq``."""
        name = CALLED.get(self.name, self.name)
        return name.removeprefix("beir/") if name.startswith("beir/") else name.replace("/", "-")

    @cached_property
    def parts(self) -> dict[str, Part]:
        """Role -> the part with this role: judgements and queries of each split, the passages, the documents.

        Raises ``UserError`` if the library is not installed, or does not know an id.
        """
        base = self._with_docs(self.name, "data.name")
        others = {"data.documents": self._with_docs(self.documents, "data.documents")} if self.documents else {}
        for key, identifier in {"data.name": base, **others}.items():
            if not _has_text(load(identifier).docs_cls()):
                raise UserError(f"{key}: the documents of {identifier} have no text in ir_datasets; take another id")
        parts: dict[str, Part] = {}
        for split, identifier in self._split_ids().items():
            data = load(identifier)
            for role in ("qrels", "queries"):
                if data is None or not data.has(role):
                    raise UserError(f"data.splits.{split}: {identifier} has no {role} in ir_datasets; take another id")
                if role == "queries" and not _has_text(data.queries_cls()):
                    raise UserError(f"data.splits.{split}: the queries of {identifier} are not texts; take another id")
                parts[f"{role} of {split}"] = Part(f"{role} of {split}", identifier, getattr(data, f"{role}_handler")())
        parts["passages"] = Part("passages", base, load(base).docs_handler())
        for other in others.values():
            parts["documents"] = Part("documents", other, load(other).docs_handler())
        return parts

    def of_splits(self, kind: str) -> dict[str, Part]:
        """Return the part ``kind`` (qrels or queries) of each requested split that the library has, by split."""
        begin = f"{kind} of "
        return {role.removeprefix(begin): part for role, part in self.parts.items() if role.startswith(begin)}

    def _with_docs(self, name: str, key: str) -> str:
        """Return the id ``name``, or its longest prefix that names a collection with documents."""
        data = load(name)
        if data is not None and data.has("docs"):
            return name
        below = [one for one in library().registry if one.startswith(f"{name}/")]
        above = name.rpartition("/")[0]
        if below and above and not data:  # dpr-w100/natural-questions itself has no entry
            return self._with_docs(above, key)
        if hint := NOT_IN_BEIR.get(name):
            raise UserError(f"{key}: {name} can only be fetched by hand: {hint}")
        near = difflib.get_close_matches(name, library().registry, 1)
        named = f"did you mean {near[0]!r}?" if near and not below else f"choose one below it: {', '.join(below[:9])}"
        named = named if near or below else "its ids are at https://ir-datasets.com"
        raise UserError(f"{key}: ir_datasets has no documents called {shown(name)!r}; {named}")

    def _split_ids(self) -> dict[str, str]:
        """Return the id of each requested split that the library has, by split."""
        id_of = {}
        for split, given in self.splits:
            if given == AUTO:
                own: dict[str, tuple[str, ...]] = {"dev": (), "test": ("dev",)} if self.name in ON_DEV else {}
                names = own.get(split, CANDIDATES[split])
                ids = ["/".join(filter(None, (self.name, name))) for name in names]
                there = [one for one in ids if _judges(one)]
                # if there is no split test, the dev queries are the test queries, and there is no split dev
                if there and not (split == "dev" and self.splits.test == AUTO and not _judges(f"{self.name}/test")):
                    id_of[split] = there[0]
            elif given:
                ids = [f"{self.name}/{given}", given]
                id_of[split] = next((one for one in ids if load(one) is not None), ids[0])
        return id_of

    @property
    def from_dpr(self) -> bool:
        """Whether the collection is DPR's Wikipedia, with quoted texts, answers, hard negatives and numeric query ids."""
        return self.name.split("/")[0] == DPR

    def lowest_grade(self, split: str) -> int | None:
        """Return the lowest grade of ``split`` that counts as relevant; None if the grades are not TREC's."""
        if split not in GRADED:
            return None
        if isinstance(self.relevant_from, int):
            return self.relevant_from
        return RELEVANT_FROM.get(self.name.split("/")[0], 1)

    @property
    def only_first(self) -> bool:
        """Whether only the first positive of a query is used."""
        return self.positives == "first" or (self.positives == AUTO and self.from_dpr)

    def judged_splits(self) -> set[str]:
        """Return the requested splits that the library has."""
        return set(self.of_splits("qrels"))

    def answered_splits(self) -> set[str]:
        """Return the splits whose queries have answers, as in DPR's collections."""
        parts = self.of_splits("queries")
        return {split for split, part in parts.items() if "answers" in part.handler.queries_cls()._fields}

    def gives_negatives(self) -> bool:
        """Return whether the input names hard negatives, as DPR's collections do."""
        return self.from_dpr and bool(self.judged_splits())

    def check(self) -> None:
        """Raise ``UserError`` for an unknown id, a missing file that only a person can download, or a locale without UTF-8.

        The library opens most files in the encoding of the locale. An encoding other than UTF-8 may turn each byte of a
        character into a letter.
        """
        if wanted := [one for one in self.downloads() if not one.urls and not one.path.exists()]:
            files = "; ".join(f"{one.path}: {one.by_hand}" for one in wanted)
            raise UserError(f"data.name={self.name}: {len(wanted)} of its files can only be fetched by hand: {files}")
        if (encoding := getpreferredencoding(False)).lower() not in ("utf-8", "utf8"):
            fault = f"ir_datasets would read its files as {encoding}, the encoding of the locale"
            raise UserError(f"data.name={self.name}: {fault}; set PYTHONUTF8=1, or LC_ALL=C.UTF-8")

    def fingerprint(self) -> str:
        """Return the identity of the input: a hash of each part's id and file digests, and of config keys that change data.

        No file is fetched.
        """
        self.check()
        content: list[Any] = [[part.role, part.id, _digests(part)] for part in self.parts.values()]
        content += [[split, self.lowest_grade(split)] for split in sorted(self.judged_splits() & GRADED)]
        content += [further for role in ("passages", "documents") if (further := self._further_fields(role))]
        return self._digest([*content, ["first positive"] if self.only_first else []])

    def _further_fields(self, role: str) -> list[str]:
        """Return the fields of a role's documents that earlier versions left out, so that the fingerprint is a new one."""
        fields = self.parts[role].handler.docs_cls()._fields if role in self.parts else ()
        titles = [title for title in TITLES[1:] if title in fields]
        return titles + ["abstract"] * ("abstract" in fields and "body" in fields)

    def downloads(self) -> list[Download]:
        """Return the distinct files that are read."""
        files = [one for part in self.parts.values() for one in downloads_of(part.handler)]
        return list({one.path: one for one in files}.values())

    def wanted(self) -> list[WantedFile]:
        """Return every file that is read, with the size and digest in the library. Raises ``UserError`` as ``check`` does."""
        self.check()
        return [
            WantedFile(one.path, one.bytes_whole, one.path.exists(), one.md5 or "", "".join(one.urls[:1]))
            for one in self.downloads()
        ]

    def fetch(self) -> None:
        """Fetch missing files and check all files. An existing file is hashed, in about two seconds per gigabyte.

        Raises ``UserError`` in the cases of ``DataConfig.fetch``.
        """
        self.check()
        downloads = self.downloads()
        missing = [one for one in downloads if not one.path.exists()]
        check_room(library().util.home_path(), sum(one.size or 0 for one in missing), "data.name")
        for terms in dict.fromkeys(one.dua for part in self.parts.values() for one in files_of(part.handler)):
            if terms and missing:
                print(" ".join(terms.split()).replace(*CONFIRM), flush=True)
        for download in downloads:
            fetch(download)

    def sizes(self) -> CollectionSizes:
        """Estimate the size of the collection: counts from the library, lengths of texts from the sizes of files."""
        counts, tokens = self.expected(), dict[str, float]()
        for role, number in counts.items():
            packed = sum(one.bytes_whole for one in downloads_of(self.parts[role].handler))
            if number and packed:
                tokens[role] = UNPACKED * packed / number / CHARACTERS
        known = {split: load(part.id).metadata() for split, part in self.of_splits("queries").items()}
        # the number of queries and the number of judgements are both upper bounds on the number of judged queries
        queries = {
            split: min(one.get(kind, {}).get("count", 0) for kind in ("queries", "qrels"))
            for split, one in known.items()
        }
        passages, documents = ((counts.get(role) or None, tokens.get(role)) for role in ("passages", "documents"))
        reading = READ * CHARACTERS * sum(tokens[role] * counts[role] for role in tokens) or None
        return CollectionSizes(*passages, *documents, queries, reading=reading, published=True)

    def expected(self) -> dict[str, int]:
        """Return the number of ``passages`` and of ``documents`` as stated in the library; 0 = unknown."""
        parts = [self.parts[role] for role in ("passages", "documents") if role in self.parts]
        return {part.role: load(part.id).metadata().get("docs", {}).get("count", 0) for part in parts}


def knows(name: str) -> bool:
    """Return whether the library has a collection of this name, or ``NOT_IN_BEIR`` says how to get it.

    False if the library is not installed.
    """
    with suppress(UserError):
        return load(name) is not None or name in NOT_IN_BEIR or name.startswith(f"{DPR}/")
    return False


def _judges(identifier: str) -> bool:
    data = load(identifier)
    return data is not None and data.has("queries") and data.has("qrels")


def _digests(part: Part) -> list[str]:
    """Return the digest of each file of a part: the published MD5 or, if there is no MD5, a hash of the file's content."""
    own = [one.path for one in downloads_of(part.handler) if one.md5 is None and one.path.is_file()]
    return sorted([one.md5 for one in downloads_of(part.handler) if one.md5] + content_hashes(own))


def library() -> Any:
    """Return the library ir_datasets, set to print only errors. Raises ``UserError`` if it is not installed."""
    try:
        import ir_datasets
    except ModuleNotFoundError as error:
        if error.name != "ir_datasets":
            raise
        raise UserError("data.format=ir_datasets: not installed; run pip install ir_datasets ijson") from None
    # hides "starting", "finished" and the terms of use; IrDatasetsSource.fetch prints the terms
    ir_datasets.log.easy().logger().setLevel("ERROR")
    return ir_datasets


def load(identifier: str) -> Any:
    """Return a data set of the library, or None if the id is unknown."""
    with suppress(KeyError):
        return library().load(identifier)
    return None


def files_of(handler: Any) -> Iterator[Any]:
    """Yield the library's ``Download`` objects that a handler reads, and the ``LocalDownload`` objects of local data sets.

    The library has no list of these objects. They are attributes of the handlers and of the objects that unpack files.
    """
    util = library().util
    seen, left = set[int](), [handler]
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, util.Download | util.LocalDownload):
            yield value
        elif isinstance(value, util._DownloadConfig):
            left += [value[key] for key in value.contents()]
        elif isinstance(value, list | tuple):
            left += value
        elif isinstance(value, dict):
            left += value.values()
        elif type(value).__module__.startswith("ir_datasets"):
            left += vars(value).values()


def downloads_of(handler: Any) -> Iterator[Download]:
    """Yield the files that a handler reads.

    By default the library does not store some files, and downloads them again for each reading. Here it is set to store
    every file that has an MD5.
    """
    util = library().util
    for one in files_of(handler):
        if isinstance(one, util.LocalDownload):
            yield Download(Path(one._path), one.path, by_hand=one._message or "put the file there")
            continue
        if one._cache_path is None and one.expected_md5:
            one._cache_path = str(util.home_path() / "downloads" / one.expected_md5)
            one._stream = False
        one._path = None  # otherwise the library treats a file that was removed as fetched
        if one._cache_path is None:
            continue  # the library fetches a file without a digest during reading
        places = [place for place in one.mirrors if isinstance(place, util.RequestsDownload)]
        local = [place._message for place in one.mirrors if isinstance(place, util.LocalDownload) and not places]
        by_hand = " ".join(str(local[0]).split()) if local else ""
        urls = tuple(place.url for place in places)
        yield Download(Path(one._cache_path), one.path, urls, one.expected_md5, one._size_hint, by_hand)


def fetch(download: Download) -> None:
    """Fetch a file if it is missing. The library resumes after a broken connection, and checks the MD5.

    If several processes need the same file, one process fetches it and the others wait.

    Raises:
        UserError: the file cannot be fetched, or has another MD5.
    """
    path, md5 = download.path, download.md5
    if not path.exists():
        if style() != "bar":
            print(f"fetching {path.name}, {as_bytes(download.size or 0)}", flush=True)
            os.environ["IR_DATASETS_DL_DISABLE_PBAR"] = "true"  # hides the library's own bar
        path.parent.mkdir(parents=True, exist_ok=True)
        fault = (
            f"data.name: {' or '.join(download.urls)} cannot be fetched; run the same command again, or save the file"
        )
        with _library_at_work(f"{fault} as {path}"), FileLock(f"{path}.lock"):
            download.fetch()
    elif md5 and path.is_file() and (actual := file_digest(path, hashlib.md5(usedforsecurity=False))) != md5:
        raise UserError(f"{path}: its MD5 is {actual}, not {md5}; remove it and start again")


@contextmanager
def _library_at_work(fault: str) -> Iterator[None]:
    """Turn an exception of the library into a ``UserError`` of one line, which begins with ``fault``."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        text = UNREACHED.sub(r"\1 cannot be reached", " ".join(str(error).split()))[:300] or type(error).__name__
        raise of_the_disk(error) or UserError(f"{fault} ({type(error).__name__}: {text})") from error


def _rows(part: Part, kind: str, total: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield (place, row) for every row of ``kind`` that the library reads: ``docs``, ``queries`` or ``qrels``.

    The library's progress bars are shown only if this project also shows bars.
    """
    with_bars, fault = tqdm.__init__, f"{part.id}: ir_datasets cannot read the {part.role}"
    if style() != "bar":
        tqdm.__init__ = partialmethod(with_bars, disable=True)
    try:
        with _library_at_work(fault), progress(f"reading {part.id}", total, kind) as task:
            for number, row in enumerate(getattr(part.handler, f"{kind}_iter")(), start=1):
                yield f"{part.id} {kind}:{number}", row
                if number % EVERY == 0:
                    task.advance(EVERY)
    finally:
        tqdm.__init__ = with_bars


def read(config: IrDatasetsSource, writer: CollectionWriter) -> None:
    """Fetch the files, and read them into ``writer``."""
    config.fetch()
    expected, queries = config.expected(), config.of_splits("queries")
    for split in queries:
        _read_qrels(config, split, writer)
    seen: set[int] = set()
    for split, part in queries.items():
        for place, row in _rows(part, "queries"):
            identifier, text = _name(config, split, row.query_id), _text(row)[1]
            if id_hash(identifier) not in seen:  # a query may be in two splits
                answers = tuple(getattr(row, "answers", ()))
                writer.add_query(Query(identifier, text.strip() if config.from_dpr else text, answers), place)
                if len(queries) > 1:
                    seen.add(id_hash(identifier))
    if expected["passages"] > LARGE and style() == "lines":
        print(f"[{config.name}] ir_datasets unpacks the files, once; this takes minutes", flush=True)
    rows = _rows(config.parts["passages"], "docs", expected["passages"])
    passages = ((place, row.doc_id, *_text(row)) for place, row in rows)
    if config.from_dpr:
        add_passages(
            ((place, (name, unquoted(text), unquoted(title))) for place, name, title, text in passages), writer
        )
    else:
        for place, name, title, text in passages:
            writer.add_passage(Passage(name, title, text), place)
    if "documents" in config.parts:
        for place, row in _rows(config.parts["documents"], "docs", expected["documents"]):
            title, text = _text(row)
            writer.add_document(Document(row.doc_id, title, [text]), place)


def _name(config: IrDatasetsSource, split: str, identifier: str) -> str:
    """Return the id of a query. A query of DPR has its position in the file as id; here it gets the id of ``dpr.py``."""
    return f"{split}-{identifier}" if config.from_dpr else identifier


def _read_qrels(config: IrDatasetsSource, split: str, writer: CollectionWriter) -> None:
    """Add the judgements of a split. Judgements of unknown queries, and of queries without a positive, are left out."""
    part = config.parts[f"qrels of {split}"]
    known = {id_hash(row.query_id) for _, row in _rows(config.parts[f"queries of {split}"], "queries")}
    positive = {id_hash(row.query_id) for _, row in _rows(part, "qrels") if row.relevance > 0}
    lost, done = set[int](), set[int]()
    for identifier, of_query in groupby(_rows(part, "qrels"), lambda one: one[1].query_id):
        query, name, hard = id_hash(identifier), _name(config, split, identifier), list[str]()
        for place, row in of_query:
            if query not in known:
                writer.leave_out_judgement(split, name, place)
            elif query not in positive:
                lost.add(query)
            elif config.from_dpr and row.relevance <= 0:
                hard.extend([row.doc_id] * (row.relevance == 0))  # grade -1: negatives drawn at random
            elif not (config.only_first and query in done):
                done.add(query)
                writer.add_judgement(split, name, row.doc_id, row.relevance, place)
        if hard:
            writer.add_negatives(name, hard, place)
    if lost:
        writer.dropped["questions_without_positive"] += len(lost)
    if (lowest := config.lowest_grade(split)) is not None:
        writer.relevant_from[split] = lowest


def _text(row: Any) -> tuple[str, str]:
    """Return (title, text) of a document or query.

    ``default_text`` is used for a row without a field ``text`` or ``body``, for a web page as bytes, and for an article of
    abstract and body.
    """
    fields = type(row)._fields
    for name in ("text", "body"):
        if name in fields and isinstance(getattr(row, name), str | None) and "abstract" not in fields:
            titles = [getattr(row, title) for title in TITLES if title in fields]
            return (titles[0] or "") if titles else "", getattr(row, name) or ""
    return "", row.default_text()


def _has_text(rows: Any) -> bool:
    """Return whether ``_text`` can read rows of a class."""
    return hasattr(rows, "default_text") or bool({"text", "body"} & {*rows._fields})


def unquoted(field: str) -> str:
    """Remove the quotes around a field of a tab-separated file, which the library leaves in the text."""
    whole = len(field) > 1 and field.startswith('"') and field.endswith('"')
    return field[1:-1].replace('""', '"') if whole else field
