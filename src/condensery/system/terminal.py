"""Handles text that a terminal, a pipe or the command line cannot hold: foreign characters, and bytes that are no UTF-8."""

import io
import os
import sys
from collections.abc import Sequence

from condensery.errors import UserError

ENCODING = "PYTHONIOENCODING"
_STRICT = ("strict", "surrogateescape")  # surrogateescape: in Python's C locale, where it helps only file names


def print_anything() -> None:
    """Let this process and its children print ``?`` for a character that their output cannot encode.

    Otherwise a terminal of ASCII, Latin-1 or Windows-1252 would end a run at its first table.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in _STRICT:
            stream.reconfigure(errors="replace")
    os.environ[ENCODING] = f"{os.environ.get(ENCODING, '').partition(':')[0]}:replace"


def check_arguments(arguments: Sequence[str]) -> None:
    """Raise ``UserError`` where an argument holds bytes that are no UTF-8. Python passes them on as lone surrogates.

    In an ASCII locale Python does so with every character beyond ASCII. That case has its own message, for files with such
    names could not be opened either.
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
    """Whether the typed bytes are UTF-8, in whichever encoding Python decoded them."""
    try:
        os.fsencode(argument).decode()
    except UnicodeError:
        return False
    return True
