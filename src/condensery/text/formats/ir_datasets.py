"""Collections by their id in the library ir_datasets (MacAvaney et al. 2021): MS MARCO, BEIR, DPR's Wikipedia, mMARCO.

The library knows where each file lies, its size and its MD5, and how it is read; the files lie in ``$IR_DATASETS_HOME``
(by default ``~/.ir_datasets``). Every file that is read is first fetched whole (``system/downloads.py``) and checked. The
identity of a collection is made of these digests, so that it is known before anything is fetched.

Texts may differ by characters from those of the published files: the library mends the broken encoding of MS MARCO's
passages, and takes MS MARCO's documents from the file in TREC's format.

Tests serve small files in the place of the real ones.
"""

import difflib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from condensery.errors import UserError, shown
from condensery.system.downloads import Download, check_space, fetch
from condensery.text.formats.ir_library import downloads_of, files_of, library, load
from condensery.text.hashes import content_hashes
from condensery.text.input_file import InputFile
from condensery.text.sizes import CHARACTERS, READ, UNPACKED, CollectionSizes
from condensery.text.source import DataConfig, WantedFile

AUTO = "auto"
CANDIDATES = {  # what a split is called in ir_datasets, the best first; "": the collection's own queries
    "train": ("train",),
    "dev": ("dev",),
    "test": ("test", "dev/small", "dev", ""),
    "dl19": ("trec-dl-2019/judged",),
    "dl20": ("trec-dl-2020/judged",),
}
ON_DEV = ("beir/msmarco",)  # BEIR reports MS MARCO on its dev queries; its test queries are TREC's of 2019
RELEVANT_FROM = {"msmarco-passage": 2, "msmarco-passage-v2": 2}  # of TREC's grades, as its tables take them
GRADED = {"dl19", "dl20"}
DPR = "dpr-w100"
CALLED = {  # what the tables of this project call them
    "msmarco-passage": "msmarco",
    "msmarco-document": "msmarco-documents",
    f"{DPR}/natural-questions": "nq",
    f"{DPR}/trivia-qa": "triviaqa",
    "beir/webis-touche2020/v2": "webis-touche2020",
}
NOT_IN_BEIR = {  # the four of BEIR's eighteen whose texts are not free
    "beir/bioasq": "register at http://participants-area.bioasq.org, then data=beir data.root=FOLDER",
    "beir/signal1m": "ask Signal AI (https://research.signal-ai.com), then data=beir data.root=FOLDER",
    "beir/trec-news": "data.name=wapo/v2/trec-news-2019; ask NIST (https://trec.nist.gov/data/wapost/)",
    "beir/robust04": "data.name=disks45/nocr/trec-robust-2004; ask NIST (https://trec.nist.gov/data/cd45/)",
}


class IrSplits(BaseModel):
    """For each split an id of ir_datasets, with or without that of the collection before it; None: no such split.

    ``auto`` is the first of ``CANDIDATES`` that the library has.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    train: str | None
    dev: str | None
    test: str | None
    dl19: str | None
    dl20: str | None


@dataclass(frozen=True)
class Part:
    """Documents, queries or judgements: what for (``passages``, ``qrels of train``), the id, and what reads them."""

    role: str
    id: str
    handler: Any


class IrDatasetsSource(DataConfig):
    """A collection of ir_datasets. ``documents``: the id of another one whose documents are the text for pre-training.

    ``relevant_from``: the lowest grade of dl19 and dl20 that counts as relevant. ``positives``: ``first`` takes the first
    judged positive of a query alone, as DPR trains.
    """

    format: Literal["ir_datasets"] = "ir_datasets"
    splits: IrSplits
    documents: str | None
    relevant_from: int | Literal["auto"] = Field(union_mode="left_to_right")
    positives: Literal["first", "all", "auto"]

    outside_identity: ClassVar[set[str]] = {"splits", "documents", "relevant_from", "positives"}

    @property
    def called(self) -> str:
        """As the same data are called that come from a folder: ``scifact``, ``cqadupstack/android``, ``nq``."""
        name = CALLED.get(self.name, self.name)
        return name.removeprefix("beir/") if name.startswith("beir/") else name.replace("/", "-")

    @cached_property
    def parts(self) -> dict[str, Part]:
        """What is read, by role: judgements and queries of each split, the passages, the documents.

        Raises ``UserError`` where the library is not installed, or does not know an id.
        """
        base = self._with_docs(self.name, "data.name")
        parts: dict[str, Part] = {}
        for split, identifier in self._split_ids().items():
            data = load(identifier)
            for role in ("qrels", "queries"):
                if data is None or not data.has(role):
                    raise UserError(
                        f"data.splits.{split}: {identifier} has no {role} in ir_datasets; choose another id"
                    )
                parts[f"{role} of {split}"] = Part(f"{role} of {split}", identifier, getattr(data, f"{role}_handler")())
        parts["passages"] = Part("passages", base, load(base).docs_handler())
        if self.documents:
            other = self._with_docs(self.documents, "data.documents")
            parts["documents"] = Part("documents", other, load(other).docs_handler())
        return parts

    def _with_docs(self, name: str, key: str) -> str:
        """The id itself, or the first part of it whose collection has documents."""
        data = load(name)
        if data is not None and data.has("docs"):
            return name
        below = [one for one in library().registry if one.startswith(f"{name}/")]
        if (
            below and (above := name.rpartition("/")[0]) and not data
        ):  # dpr-w100/natural-questions has no entry of its own
            return self._with_docs(above, key)
        if hint := NOT_IN_BEIR.get(name):
            raise UserError(f"{key}: {name} can only be fetched by hand: {hint}")
        near = difflib.get_close_matches(name, library().registry, 1)
        named = f"did you mean {near[0]!r}?" if near and not below else f"choose one below it: {', '.join(below[:9])}"
        named = named if near or below else "its ids: https://ir-datasets.com"
        raise UserError(f"{key}: ir_datasets has no documents called {shown(name)!r}; {named}")

    def _split_ids(self) -> dict[str, str]:
        """Split -> id, of the splits that are wanted and there."""
        id_of = {}
        for split, given in self.splits:
            if given == AUTO:
                names = CANDIDATES[split]
                if self.name in ON_DEV:
                    names = {"dev": (), "test": ("dev",)}.get(split, names)
                ids = ["/".join(filter(None, (self.name, name))) for name in names]
                there = [one for one in ids if _judges(one)]
                if there and not (split == "dev" and self._test_is_dev()):
                    id_of[split] = there[0]
            elif given:
                ids = [f"{self.name}/{given}", given]
                id_of[split] = next((one for one in ids if load(one) is not None), ids[0])
        return id_of

    def _test_is_dev(self) -> bool:
        """Whether the dev queries are what is tested on."""
        return self.splits.test == AUTO and not _judges(f"{self.name}/test")

    @property
    def from_dpr(self) -> bool:
        """Whether it is DPR's Wikipedia: quoted texts, answers, hard negatives, queries that are numbers."""
        return self.name.split("/")[0] == DPR

    def lowest_grade(self, split: str) -> int | None:
        """The lowest grade that counts as relevant, of a split whose grades are TREC's."""
        if split not in GRADED:
            return None
        if isinstance(self.relevant_from, int):
            return self.relevant_from
        return RELEVANT_FROM.get(self.name.split("/")[0], 1)

    @property
    def only_first(self) -> bool:
        """Whether the first positive of a query alone is taken."""
        return self.positives == "first" or (self.positives == AUTO and self.from_dpr)

    def judged_splits(self) -> set[str]:
        """Those that the library has."""
        return {role.removeprefix("qrels of ") for role in self.parts if role.startswith("qrels of ")}

    def answered_splits(self) -> set[str]:
        """Those whose queries have answers (DPR's)."""
        parts = [part for role, part in self.parts.items() if role.startswith("queries of ")]
        return {
            part.role.removeprefix("queries of ") for part in parts if "answers" in part.handler.queries_cls()._fields
        }

    def gives_negatives(self) -> bool:
        """Whether it is DPR's."""
        return self.from_dpr and bool(self.judged_splits())

    def check(self) -> None:
        """Raise ``UserError`` for an unknown id, and for every file that can only be fetched by hand and is not there."""
        wanted = [one for one in self.downloads() if not one.urls and not one.path.exists()]
        if wanted:
            files = "; ".join(f"{one.path}: {one.by_hand}" for one in wanted)
            raise UserError(f"data.name={self.name}: {len(wanted)} of its files can only be fetched by hand: {files}")

    def fingerprint(self) -> str:
        """Of each part the id and the digests of its files, and the keys that matter; nothing is fetched."""
        self.check()
        content: list[Any] = [[part.role, part.id, _digests(part)] for part in self.parts.values()]
        content += [[split, self.lowest_grade(split)] for split in sorted(self.judged_splits() & GRADED)]
        return self._digest([*content, ["first positive"] if self.only_first else []])

    def input_files(self) -> list[InputFile]:
        """None: what is read is known by its id; see ``downloads``."""
        return []

    def downloads(self) -> list[Download]:
        """Every file that is read, each once."""
        files = [one for part in self.parts.values() for one in downloads_of(part.handler)]
        return list({one.path: one for one in files}.values())

    def wanted(self) -> list[WantedFile]:
        """See ``DataConfig``; sizes are those that the library knows."""
        self.check()
        return [
            WantedFile(one.path, one.bytes_whole, one.path.exists(), one.md5 or "", "".join(one.urls[:1]))
            for one in self.downloads()
        ]

    def fetch(self) -> None:
        """See ``DataConfig``. What is there already is read for its digest, a gigabyte in some two seconds."""
        self.check()
        downloads = self.downloads()
        check_space(downloads, "data.name")
        for terms in dict.fromkeys(one.dua for part in self.parts.values() for one in files_of(part.handler)):
            if terms and any(one.missing for one in downloads):
                print(" ".join(terms.split()), flush=True)
        for download in downloads:
            fetch(download, "data.name")

    def sizes(self) -> CollectionSizes:
        """See ``DataConfig``: counts as the library has them; lengths of texts by the bytes of their files."""
        counts, tokens = self.expected(), dict[str, float]()
        for role, number in counts.items():
            packed = sum(one.bytes_whole for one in downloads_of(self.parts[role].handler))
            if number and packed:
                tokens[role] = UNPACKED * packed / number / CHARACTERS
        query_parts = {
            role[len("queries of ") :]: part for role, part in self.parts.items() if role.startswith("queries of ")
        }
        known = {split: load(part.id).metadata() for split, part in query_parts.items()}
        # a split may have queries that nobody judged: there are no more judged ones than judgements
        queries = {
            split: min(one.get(kind, {}).get("count", 0) for kind in ("queries", "qrels"))
            for split, one in known.items()
        }
        return CollectionSizes(
            counts.get("passages") or None,
            tokens.get("passages"),
            counts.get("documents") or None,
            tokens.get("documents"),
            queries,
            reading=READ * CHARACTERS * sum(tokens[role] * counts[role] for role in tokens) or None,
            published=True,
        )

    def expected(self) -> dict[str, int]:
        """See ``DataConfig``; ``documents`` too."""
        parts = [self.parts[role] for role in ("passages", "documents") if role in self.parts]
        return {part.role: load(part.id).metadata().get("docs", {}).get("count", 0) for part in parts}


def knows(name: str) -> bool:
    """Whether the library is installed and has a collection of this name, or says how to get it by hand."""
    try:
        return load(name) is not None or name in NOT_IN_BEIR or name.startswith(f"{DPR}/")
    except UserError:
        return False


def _judges(identifier: str) -> bool:
    data = load(identifier)
    return data is not None and data.has("queries") and data.has("qrels")


def _digests(part: Part) -> list[str]:
    """What tells the files of a part: their MD5, or the hash of their content where they are one's own."""
    own = [one.path for one in downloads_of(part.handler) if one.md5 is None and one.path.is_file()]
    return sorted([one.md5 for one in downloads_of(part.handler) if one.md5] + content_hashes(own))
