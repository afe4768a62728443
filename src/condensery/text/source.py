"""What every description of an input has in common: it names its files, checks them and knows its identity."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from condensery.errors import UserError
from condensery.system.files import expanded
from condensery.system.inputs import FOLDER, anything, fault, standing
from condensery.text.hashes import content_hashes
from condensery.text.input_file import InputFile
from condensery.text.sizes import PARAGRAPH, CollectionSizes, counted

Item = TypeVar("Item")
AUTO = "auto"  # of a split: its file where there is one


@dataclass(frozen=True, slots=True)
class WantedFile:
    """A file that a recipe reads: where it lies, or will lie; its bytes (0: not known); is it there; digest and address."""

    path: Path
    size: int
    here: bool
    digest: str = ""
    address: str = ""


def missing_files(files: Iterable[InputFile]) -> list[str]:
    """Each file that is not there, by name, with what it is for; and what stands in its place."""
    wrong = [file for file in files if file.fault()]
    return [
        f"{file.path.name} ({file.role}{file.hint}{f'; {file.fault()}' if standing(file.path) else ''})"
        for file in wrong
    ]


def at_least_one(
    items: Iterable[Item], file: InputFile, what: str = "passages", hint: str | None = None
) -> Iterator[Item]:
    """What is read from a file; ``UserError`` that names it where that is nothing at all."""
    number = 0
    for number, item in enumerate(items, start=1):  # noqa: B007  (it counts)
        yield item
    if not number:
        raise UserError(f"{file.open_path()}: holds no {what}{file.hint if hint is None else hint}")


class Splits(BaseModel):
    """For each split the file stem of its judgements in ``qrels/``, or ``None`` when the split is not wanted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    train: str | None
    dev: str | None
    test: str | None

    def named(self) -> dict[str, str]:
        """The splits that have a file: split -> stem."""
        return {split: stem for split, stem in self.model_dump().items() if stem}


class DataConfig(BaseModel):
    """The part that all formats share. What each key means stands in ``conf/data/``."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    # fields that say where the input lies or how it is read: they do not enter the fingerprint
    outside_identity: ClassVar[set[str]] = {"root"}

    format: str
    name: str = Field(min_length=1)
    empty_passages: Literal["error", "drop"]
    dev_queries: int = Field(ge=0)
    unlabelled_queries: Annotated[int, Field(ge=0)] | Literal["unjudged"]

    @property
    def called(self) -> str:
        """What tables call the collection."""
        return self.name

    def input_files(self) -> list[InputFile]:
        """Every file that ``read`` will open, in a fixed order."""
        raise NotImplementedError

    def judged_splits(self) -> set[str] | None:
        """The splits that will have judgements; ``None`` where only reading tells (the embedded collection has all)."""
        splits = getattr(self, "splits", None)
        return None if splits is None else set(splits.named())

    def answered_splits(self) -> set[str]:
        """The splits whose queries will have answers."""
        return set()

    def gives_negatives(self) -> bool:
        """Whether the input names hard negatives of its queries."""
        return False

    def wanted(self) -> list[WantedFile]:
        """Every file that is read, and what is known of it. Raises ``UserError`` as ``check``."""
        self.check()
        paths = [file.open_path() for file in self.input_files()]
        return [WantedFile(path, path.stat().st_size, True) for path in paths]

    def expected(self) -> dict[str, int]:
        """How many ``passages`` there will be, as far as that is known before they are read."""
        return {}

    def fetch(self) -> None:
        """Fetch what is missing, and check it all. Files of a folder of one's own are not fetched: they must be there.

        Raises ``UserError`` as ``check``, and where a file cannot be fetched or is not what it should be.
        """
        self.check()
        for file in self.input_files():
            file.look()

    def sizes(self) -> CollectionSizes:
        """How large it is, as far as that can be told without reading it."""
        sizes, known = counted(self.input_files()), self.expected()
        if sizes.passages is not None or not known.get("passages"):
            return sizes
        documents = known.get("documents") or None
        tokens = PARAGRAPH, documents and 10 * PARAGRAPH  # of a passage, and of a web page
        return replace(
            sizes, passages=known["passages"], passage_tokens=tokens[0], documents=documents, document_tokens=tokens[1]
        )

    def check(self) -> None:
        """Raise one ``UserError`` that names every missing file. Opens nothing, so it is quick enough for the start."""
        missing = [file for file in self.input_files() if file.fault()]
        if len(missing) == 1:
            missing[0].open_path()
        if missing:
            names = ", ".join(missing_files(missing))
            raise UserError(f"{missing[0].path.parent}: {len(missing)} files are missing: {names}")

    def fingerprint(self) -> str:
        """Identity of the input (32 hexadecimal characters): file contents and the keys that change the collection.

        It does not depend on where the files lie. Raises ``UserError`` as ``check``, and for a file that by its first bytes
        cannot be read: a collection that is known by its content must not make up for a wrong name.
        """
        self.check()
        files = self.input_files()
        hashes = content_hashes([file.look() for file in files])
        return self._digest([[file.role, file_hash] for file, file_hash in zip(files, hashes, strict=True)])

    def _digest(self, content: Any) -> str:
        # a key that came later: at 0 the collections of before are still known
        later = set() if self.unlabelled_queries else {"unlabelled_queries"}
        identity = [self.model_dump(mode="json", exclude=self.outside_identity | later), content]
        return hashlib.blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=16).hexdigest()


class FolderSource(DataConfig):
    """An input that is a folder, given by ``data.root``.

    Of ``splits``, where a format has them, ``auto`` means the file of the split's own name where ``qrels/`` holds one.
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
        except (UserError, OSError):  # no such path can be: the folder itself is checked later
            found = set()
        there = {split: (split if split in found else None) if stem == AUTO else stem for split, stem in splits.items()}
        return {**values, "splits": there}

    @property
    def folder(self) -> Path:
        """The root as a path."""
        return expanded(self.root)

    def check(self) -> None:
        """As ``DataConfig.check``; a missing root is reported as such."""
        if why := fault(self.folder, FOLDER):
            raise UserError(f"{self.folder}: {why}; give the folder of the collection {self.name} as data.root")
        super().check()
