"""The base class of the descriptions of an input. A description lists, checks and identifies the files of its input."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from condensery.errors import UserError
from condensery.keys import Keys
from condensery.system.files import expanded
from condensery.system.inputs import FOLDER, anything, fault, standing
from condensery.text.hashes import content_hashes
from condensery.text.input_file import InputFile
from condensery.text.sizes import PARAGRAPH, CollectionSizes, counted

AUTO = "auto"  # value of a split: the split's file if it exists


@dataclass(frozen=True, slots=True)
class WantedFile:
    """A file that a recipe reads.

    Attributes:
        path: path of the file, which need not exist yet.
        size: size in bytes; 0 = unknown.
        here: whether the file exists.
        digest: digest of the content; empty = unknown.
        address: URL that the file is fetched from; empty = it cannot be fetched.
    """

    path: Path
    size: int
    here: bool
    digest: str = ""
    address: str = ""


def missing_files(files: Iterable[InputFile]) -> list[str]:
    """Describe each missing file: its name, its role, and what is at its path if the path exists but is not a file."""
    return [
        f"{file.path.name} ({file.role}{file.hint}{f'; {why}' if standing(file.path) else ''})"
        for file in files
        if (why := file.fault())
    ]


class Splits(Keys):
    """For each split, the stem of the name of its file in ``qrels/``; ``None`` = the split is not used."""

    train: str | None
    dev: str | None
    test: str | None

    def named(self) -> dict[str, str]:
        """Return the splits that have a file: split -> stem."""
        return {split: stem for split, stem in self.model_dump().items() if stem}


UNJUDGED = "unjudged"  # the setting that keeps queries that have no judgement in any split


class DataConfig(Keys):
    """The keys that all formats share. The files of ``conf/data/`` explain each key."""

    # keys that are left out of the fingerprint, because they say only where the input lies or how it is read
    outside_identity: ClassVar[set[str]] = {"root"}

    format: str
    name: str = Field(min_length=1)
    empty_passages: Literal["error", "drop"]
    dev_queries: int = Field(ge=0)
    unlabelled_queries: Annotated[int, Field(ge=0)] | Literal["unjudged"]

    @property
    def called(self) -> str:
        """The name of the collection in tables."""
        return self.name

    def input_files(self) -> list[InputFile]:
        """Return every file that ``read`` will open, in a fixed order; no file for an input that is identified by name."""
        return []

    def judged_splits(self) -> set[str] | None:
        """Return the splits that will have judgements; ``None`` if they are known only after reading the input."""
        splits = getattr(self, "splits", None)
        return None if splits is None else set(splits.named())

    def answered_splits(self) -> set[str]:
        """Return the splits whose queries will have answers."""
        return set()

    def gives_negatives(self) -> bool:
        """Return whether the input names hard negatives of its queries."""
        return False

    def wanted(self) -> list[WantedFile]:
        """Return every file that is read, with size and digest as far as known. Raises ``UserError`` as ``check`` does."""
        self.check()
        paths = [file.open_path() for file in self.input_files()]
        return [WantedFile(path, path.stat().st_size, True) for path in paths]

    def expected(self) -> dict[str, int]:
        """Return {"passages": number of passages} if the number is known before reading, else {}."""
        return {}

    def fetch(self) -> None:
        """Fetch missing files and check all files. Files of a user's folder are never fetched: they must exist.

        Raises:
            UserError: in the cases of ``check``, or if a file cannot be fetched or has the wrong content.
        """
        self.check()
        for file in self.input_files():
            file.look()

    def sizes(self) -> CollectionSizes:
        """Estimate the size of the collection without reading all of it."""
        sizes, passages = counted(self.input_files()), self.expected().get("passages")
        if sizes.passages is None and passages:
            return replace(sizes, passages=passages, passage_tokens=PARAGRAPH)
        return sizes

    def check(self) -> None:
        """Raise one ``UserError`` that names every missing file.

        No file is opened, so the check is fast enough for the start of a run.
        """
        missing = [file for file in self.input_files() if file.fault()]
        if len(missing) == 1:
            missing[0].open_path()
        if missing:
            names = ", ".join(missing_files(missing))
            raise UserError(f"{missing[0].path.parent}: {len(missing)} files are missing: {names}")

    def fingerprint(self) -> str:
        """Return the identity of the input: 32 hexadecimal characters, a hash of file contents and config keys.

        Only keys that change the collection are hashed. The identity does not depend on where the files lie.

        Raises:
            UserError: in the cases of ``check``, or if the first bytes of a file show that it cannot be read. A wrongly named
                file, such as plain text named ``.gz``, is therefore refused even if an earlier run hashed its content.
        """
        self.check()
        files = self.input_files()
        hashes = content_hashes([file.look() for file in files])
        return self._digest([[file.role, file_hash] for file, file_hash in zip(files, hashes, strict=True)])

    def _digest(self, content: Any) -> str:
        # ``unlabelled_queries`` is newer than the fingerprint; the value 0 is left out to keep earlier fingerprints valid
        later = set() if self.unlabelled_queries else {"unlabelled_queries"}
        identity = [self.model_dump(mode="json", exclude=self.outside_identity | later), content]
        return hashlib.blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=16).hexdigest()


class FolderSource(DataConfig):
    """An input that is a folder, given by ``data.root``.

    The value ``auto`` of a split stands for the file of the same name in ``qrels/``. Without such a file the split is not
    used.
    """

    root: str = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _splits_that_are_there(cls, values: Any) -> Any:
        splits = values.get("splits") if isinstance(values, dict) else None
        if not isinstance(splits, dict) or not isinstance(values.get("root"), str):
            return values
        qrels = expanded(values["root"]) / "qrels"
        try:
            found = {split for split, stem in splits.items() if stem == AUTO and anything(qrels / f"{split}.tsv")}
        except (UserError, OSError):  # no file can have such a path; ``check`` reports it later
            found = set()
        there = {split: (split if split in found else None) if stem == AUTO else stem for split, stem in splits.items()}
        return {**values, "splits": there}

    def input_files(self) -> list[InputFile]:
        """Return every file of the folder that ``read`` will open, in a fixed order."""
        raise NotImplementedError

    @property
    def folder(self) -> Path:
        """The root as a path."""
        return expanded(self.root)

    def check(self) -> None:
        """Raise ``UserError`` for a missing root and, as ``DataConfig.check`` does, for missing files."""
        if why := fault(self.folder, FOLDER):
            raise UserError(f"{self.folder}: {why}; give the folder of the collection {self.name} as data.root")
        super().check()
