"""A file that a format reads, before it is known whether it is there."""

from dataclasses import dataclass
from pathlib import Path

from condensery.errors import UserError
from condensery.system.inputs import fault, fault_of_either, opened, resolve


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file that is read: what it is for, where it is expected (with or without ``.gz``), and how to get it.

    ``exact``: under this very name. ``may_be_empty``: no bytes are a content too.
    """

    role: str
    path: Path
    hint: str = ""
    exact: bool = False
    may_be_empty: bool = False

    def existing_path(self) -> Path | None:
        """The file as it is on disk, if it is there; ``UserError`` where its plain and its packed form differ."""
        return (None if fault(self.path) else self.path) if self.exact else resolve(self.path)

    def fault(self) -> str:
        """What is wrong with the place where it is expected; empty where a file is there."""
        if self.existing_path():
            return ""
        return fault(self.path) if self.exact else fault_of_either(self.path)

    def open_path(self) -> Path:
        """The file as it is on disk; ``UserError`` that says what stands there instead."""
        path = self.existing_path()
        if path is None:
            raise UserError(f"{self.path}: {self.fault()}; it is the {self.role}{self.hint}")
        return path

    def look(self) -> Path:
        """The same, after a look at its first bytes; ``UserError`` for none, and for what is no text."""
        path = self.open_path()
        with opened(path) as (stream, _):
            if not self.may_be_empty and not stream.peek(1):
                raise UserError(f"{path}: the file is empty; it is the {self.role}{self.hint}")
        return path
