"""Read a file that is one JSON array of objects, of any size, entry by entry. Only the current entry is in memory."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from condensery.errors import UserError
from condensery.system.inputs import MEGABYTE, opened
from condensery.text.lines import LONGEST, in_megabytes, json_fault

BLOCK = MEGABYTE  # characters read at a time
NEAR = 16  # maximum number of characters of a literal or an escape, which the end of a block can split
BLANK = " \t\r\n"


def read_array(path: Path, show: bool = True) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, object) for every entry of a JSON array.

    The place is ``path:line`` of the entry's first character. If several entries share a line, as in an array that is
    one line, the place is ``path:line:column``. ``show``: whether to show the progress of a large file.

    Raises:
        UserError: the file is not an array of objects (the message names the line), or ``read_lines`` cannot read it.
    """
    with opened(path) as (raw, file):
        entries = _Entries(path, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="\n"))
        yield from in_megabytes(iter(entries), path, file, each=1) if show else entries


class _Entries:
    """An iterator over the entries of an array in a text stream."""

    def __init__(self, path: Path, stream: io.TextIOWrapper) -> None:
        self.path, self.stream = path, stream
        self.text, self.at = "", 0  # the text in memory, and the current place in it
        self.line, self.column = 1, 1  # line and column of the current place in the file
        self.shared = 0  # line of the last "[", "," or "]" that was read; a place on this line includes the column
        self.decoder = json.JSONDecoder()

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any]]]:
        if self._next() != "[":
            raise UserError(f"{self._place()}: a JSON array of objects is expected: [{{...}}, ...]")
        self._pass_mark()
        if self._next() == "]":
            self._advance(self.at + 1)
            return self._end()
        while True:
            if self._next() != "{":
                raise UserError(f"{self._place()}: a JSON object is expected here, as an entry of the array")
            place = self._place()
            yield place, self._entry(place)
            mark = self._next()
            if mark not in (",", "]"):
                raise UserError(f'{self._place()}: not valid JSON ("," or "]" is expected here)')
            self._pass_mark()
            if mark == "]":
                return self._end()

    def _end(self) -> None:
        if self._next():
            raise UserError(f"{self._place()}: not valid JSON (there is text after the end of the array)")

    def _entry(self, place: str) -> dict[str, Any]:
        while True:
            try:
                value, end = self.decoder.raw_decode(self.text, self.at)
            except RecursionError:
                raise UserError(f"{place}: not valid JSON (nested too deeply)") from None
            except json.JSONDecodeError as error:
                behind = error.pos - self.at  # relative, because ``_more`` drops text before ``at`` from memory
                torn = error.pos > len(self.text) - NEAR or error.msg.startswith("Unterminated string")
                if torn and len(self.text) - self.at < LONGEST and self._more():
                    continue
                self._advance(self.at + behind)
                raise UserError(f"{self._place()}: not valid JSON ({error.msg})") from None
            except ValueError as error:  # a number of thousands of digits
                raise UserError(f"{place}: not valid JSON ({json_fault(error)})") from None
            self._advance(end)
            return value

    def _next(self) -> str:
        """Advance to the next character that is not white space and return it; empty at the end of the file."""
        while True:
            at = self.at
            while at < len(self.text) and self.text[at] in BLANK:
                at += 1
            self._advance(at)
            if at < len(self.text):
                return self.text[at]
            if not self._more():
                return ""

    def _more(self) -> bool:
        """Read another block and drop the text before the current place. Returns whether there was more text.

        After each block, an incomplete entry is parsed again from its start. The block grows with the text in memory, so
        that the number of such re-parses stays small.
        """
        try:
            read = self.stream.read(max(BLOCK, len(self.text) - self.at))
        except UnicodeDecodeError as error:
            raise UserError(f"{self._place()}: not valid UTF-8 after this line ({error.reason})") from None
        self.text, self.at = self.text[self.at :] + read, 0
        return bool(read)

    def _pass_mark(self) -> None:
        self.shared = self.line
        self._advance(self.at + 1)

    def _advance(self, at: int) -> None:
        ends = self.text.count("\n", self.at, at)
        self.line += ends
        self.column = at - self.text.rindex("\n", self.at, at) if ends else self.column + at - self.at
        self.at = at

    def _place(self) -> str:
        return f"{self.path}:{self.line}" + (f":{self.column}" if self.line == self.shared else "")
