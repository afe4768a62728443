"""The description of a file that a format reads, whether or not the file exists."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from condensery.errors import UserError
from condensery.system.inputs import fault, fault_of_either, opened, resolve
from condensery.text.lines import Item, at_least_one


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file that is read.

    Attributes:
        role: the purpose of the file, such as ``corpus`` or ``qrels of train``.
        path: the expected path of the file, with or without ``.gz``.
        hint: the end of error messages: how to get the file, or how to continue without it.
        exact: whether the file must have exactly this name.
        may_be_empty: whether a file of zero bytes is accepted.
    """

    role: str
    path: Path
    hint: str = ""
    exact: bool = False
    may_be_empty: bool = False

    def existing_path(self) -> Path | None:
        """Return the file on disk, None if missing. Raises ``UserError`` if a plain and a gzip file exist and differ."""
        return (None if fault(self.path) else self.path) if self.exact else resolve(self.path)

    def fault(self) -> str:
        """Return the reason why the expected path has no file; empty if the file exists."""
        return "" if self.existing_path() else fault(self.path) if self.exact else fault_of_either(self.path)

    def open_path(self) -> Path:
        """Return the file on disk. Raises ``UserError`` if it is missing; the message says what is there instead."""
        path = self.existing_path()
        if path is None:
            raise UserError(f"{self.path}: {self.fault()}; it should be the {self.role}{self.hint}")
        return path

    def entries(self, read: Callable[[Path], Iterable[Item]], none: str) -> Iterator[Item]:
        """Yield the items of ``read``. Raises ``UserError`` if the file is missing or has no items (message: ``none``)."""
        path = self.open_path()
        return at_least_one(read(path), path, none)

    def look(self) -> Path:
        """Return the file on disk, after a check of its first bytes.

        Raises ``UserError`` if the file is missing, is not text, or is empty although ``may_be_empty`` is False.
        """
        path = self.open_path()
        with opened(path) as (stream, _):
            if not self.may_be_empty and not stream.peek(1):
                raise UserError(f"{path}: the file is empty; it should be the {self.role}{self.hint}")
        return path
