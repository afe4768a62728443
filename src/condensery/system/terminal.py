"""Handle characters that a terminal or a pipe cannot encode, and command-line arguments that are not UTF-8."""

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from condensery.errors import UserError

ENCODING = "PYTHONIOENCODING"
_STRICT = ("strict", "surrogateescape")  # surrogateescape: in Python's C locale, useful only for file names


def print_anything() -> None:
    """Make this process and its children print ``?`` for a character that their output cannot encode.

    Without this, the first table would end a run with an error on a terminal that uses ASCII, Latin-1 or Windows-1252. Closed
    standard streams (``2>&-``) are opened on the null device. If they stayed closed, a file of an artifact could get the file
    descriptor of standard error. A library's messages would then be written into this file.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
            os.set_inheritable(getattr(sys, name).fileno(), True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in _STRICT:
            stream.reconfigure(errors="replace")
    os.environ[ENCODING] = f"{os.environ.get(ENCODING, '').partition(':')[0]}:replace"


def print_last(message: str) -> None:
    """Print ``message`` on standard error. If a pipe or the terminal is closed, all remaining output is dropped."""
    for stream, text in ((sys.stdout, ""), (sys.stderr, f"{message}\n")):
        try:
            print(text, end="", file=stream, flush=True)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # otherwise Python would write it again at exit


def check_arguments(arguments: Sequence[str]) -> None:
    """Raise ``UserError`` if an argument contains bytes that are not UTF-8. Python decodes them as lone surrogates.

    In an ASCII locale, Python decodes every non-ASCII character as lone surrogates, even if the bytes are valid UTF-8.
    This case has a separate message, because Python could not open files with non-ASCII names either.
    """
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            key, value = argument.lstrip("+").partition("=")[::2]
            if _is_utf8(argument):
                raise UserError(
                    f"{key}: not readable, because Python decodes the command line as {sys.getfilesystemencoding()}; set"
                    " PYTHONUTF8=1, or LC_ALL=C.UTF-8"
                ) from None
            byte = ord(argument[error.start])
            what = f"byte 0x{byte - 0xDC00:02x}" if 0xDC80 <= byte <= 0xDCFF else "half a character"
            message = f"{key}: not valid UTF-8 ({what} in {value!r})" if value else f"{key!r}: not valid UTF-8 ({what})"
            raise UserError(
                f"{message}; set your terminal to UTF-8 and type it again (a file with such a name must be renamed)"
            ) from None


def _is_utf8(argument: str) -> bool:
    """Return whether the bytes that the user typed are UTF-8. Python may have decoded them in another encoding."""
    with suppress(UnicodeError):
        return bool(os.fsencode(argument).decode())
    return False
