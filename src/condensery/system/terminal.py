"""What a terminal, a pipe or the command line cannot hold: characters beyond its encoding, bytes that are no UTF-8."""

import io
import os
import sys
from collections.abc import Sequence

from condensery.errors import UserError

ENCODING = "PYTHONIOENCODING"
_STRICT = ("strict", "surrogateescape")  # the latter in Python's C locale, where it helps file names alone


def print_anything() -> None:
    """Let this process, and those that it starts, print ``?`` for a character that their output does not know.

    A terminal of ASCII, Latin-1 or Windows-1252 otherwise ends a run at its first table.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in _STRICT:
            stream.reconfigure(errors="replace")
    os.environ[ENCODING] = f"{os.environ.get(ENCODING, '').partition(':')[0]}:replace"


def check_arguments(arguments: Sequence[str]) -> None:
    """Raise ``UserError`` where an argument holds bytes that are no UTF-8: Python hands them on as half characters.

    In a locale of ASCII it does so with all that is not English, which is another line: file names would not open, either.
    """
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            key, value = argument.lstrip("+").partition("=")[::2]
            if _is_utf8(argument):
                raise UserError(
                    f"{key}: not readable, for Python takes the command line for {sys.getfilesystemencoding()} here; set"
                    " PYTHONUTF8=1, or LC_ALL=C.UTF-8"
                ) from None
            byte = ord(argument[error.start])
            what = f"byte 0x{byte - 0xDC00:02x}" if 0xDC80 <= byte <= 0xDCFF else "half a character"
            said = f"{key}: not valid UTF-8 ({what} in {value!r})" if value else f"{key!r}: not valid UTF-8 ({what})"
            raise UserError(
                f"{said}; type it in UTF-8: is that what your terminal sends? (a file with such a name must be renamed)"
            ) from None


def _is_utf8(argument: str) -> bool:
    """Whether the bytes that were typed are UTF-8, whatever Python took them for."""
    try:
        os.fsencode(argument).decode()
    except UnicodeError:
        return False
    return True
