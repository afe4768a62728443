"""Check and open the files that a user names, plain or gzip.

All readers use this module, so each fault gives the same one-line message everywhere. Examples of faults are a folder or
a pipe instead of a file, an empty file, and a gzip file whose name does not end in .gz. The message is also the same
if the content is already cached from an earlier run.
"""

import errno
import gzip
import hashlib
import importlib
import io
import lzma
import os
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from condensery.errors import UserError

MEGABYTE = 1 << 20
GZIP = b"\x1f\x8b"
PACKED = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma"}  # end of a name -> module that unpacks the file
HEAD = 1024  # number of bytes at the beginning of a file that are checked for being text
FILE, FOLDER = "a file", "a folder"
KINDS = {stat.S_IFREG: FILE, stat.S_IFDIR: FOLDER, stat.S_IFIFO: "a pipe (FIFO)", stat.S_IFSOCK: "a socket"}
KINDS |= dict.fromkeys((stat.S_IFCHR, stat.S_IFBLK), "a device")


def standing(path: Path) -> str:
    """Describe what exists at ``path``: ``a file``, ``a folder``, ...; empty if nothing exists.

    The path is not opened.
    """
    try:
        return KINDS.get(stat.S_IFMT(path.stat().st_mode), "something unknown")
    except (FileNotFoundError, NotADirectoryError):
        return f"a link to {os.readlink(path)}, which does not exist" if path.is_symlink() else ""
    except ValueError:  # a NUL in the name
        return ""
    except OSError as error:
        if error.errno == errno.ELOOP:
            return "one of several links that form a circle"
        raise  # no permission, or a name that is too long: the caller reports both


def fault(path: Path, wanted: str = FILE) -> str:
    """Return why ``path`` is not of the kind ``wanted`` (``FILE`` or ``FOLDER``); an empty string if it is of this kind."""
    actual = standing(path)
    if actual == wanted:
        return ""
    return f"{actual}, not {wanted}" if actual else f"no such {wanted.removeprefix('a ')}"


def twin(path: Path) -> Path:
    """Return the path with ``.gz`` added or removed."""
    return path.with_suffix("") if path.suffix == ".gz" else path.parent / f"{path.name}.gz"


def resolve(path: Path) -> Path | None:
    """Return ``path`` itself, or its twin with ``.gz`` added or removed; ``None`` when neither exists.

    Raises ``UserError`` if both exist and differ in content, because the choice is then ambiguous.
    """
    existing = [one for one in (path, twin(path)) if not fault(one)]
    if len(existing) == 2 and not _hold_the_same(*map(_state, sorted(existing, key=lambda one: one.suffix == ".gz"))):
        raise UserError(f"{path} and {twin(path).name} beside it differ; remove the one that should not be read")
    return existing[0] if existing else None


def fault_of_either(path: Path) -> str:
    """Return why neither ``path`` nor its twin (see ``twin``) is a file."""
    if not standing(path) and standing(twin(path)):
        return f"no such file, and {twin(path).name} is {fault(twin(path))}"
    return fault(path) + ("" if standing(path) else f" (nor {twin(path).name})")


def anything(path: Path) -> bool:
    """Return whether anything exists at ``path`` or its twin, usable or not."""
    return bool(standing(path) or standing(twin(path)))


State = tuple[Path, int, int]  # path, size, time of change


def _state(path: Path) -> State:
    status = path.stat()
    return path, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=64)  # the two files are compared whenever one of them is opened
def _hold_the_same(plain: State, packed: State) -> bool:
    with open(packed[0], "rb") as file:
        file.seek(max(0, packed[1] - 4))
        if int.from_bytes(file.read(), "little") != plain[1] % (1 << 32):  # the unpacked size of the last gzip member
            return False
    with suppress(OSError, EOFError, zlib.error), open(plain[0], "rb") as one, gzip.open(packed[0], "rb") as other:
        return hashlib.file_digest(one, "blake2b").digest() == hashlib.file_digest(other, "blake2b").digest()
    return False


@contextmanager
def opened(path: Path) -> Iterator["tuple[io.BufferedReader[Any], IO[bytes]]"]:
    """Open a text file, plain or packed.

    Yields:
        The bytes as a stream, decompressed if the name ends in .gz, .bz2 or .xz; and the file on disk, whose position is
        the number of bytes read.

    Raises:
        UserError: there is no file, its first bytes are not text, or the name ends in .gz although the file is not gzip
            (or the reverse). It is also raised during reading, if a packed file is corrupt.
    """
    with readable(path):
        if why := fault(path):
            raise UserError(f"{path}: {why}")
        with open(path, "rb") as file:
            # GzipFile searches line ends in Python code; a buffered reader around it searches them in C
            unpack = PACKED.get(path.suffix)
            stream = io.BufferedReader(importlib.import_module(unpack).open(file), MEGABYTE) if unpack else file
            _check_head(stream.peek(HEAD), path)
            yield stream, file


def _check_head(head: bytes, path: Path) -> None:
    """Raise ``UserError`` if the first bytes are gzip's signature, or contain a NUL.

    A NUL suggests that the file is UTF-16. The check is needed because a decoder of UTF-8 accepts NUL bytes.
    """
    if head.startswith(GZIP):
        twice = path.suffix == ".gz"
        what = "a gzip file within a gzip file; unpack it once" if twice else "this is a gzip file; name it .gz"
        raise UserError(f"{path}: {what}")
    if b"\0" in head:
        raise UserError(f"{path}: holds NUL bytes, so it is UTF-16 or no text at all; save the file as UTF-8")


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn a fault while ``path`` is read into a one-line ``UserError``: a missing, corrupt or unreadable file."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path}: no such file") from None
    except gzip.BadGzipFile as error:
        plain = "Not a gzipped file" in str(error)
        advice = "if it is plain text, remove .gz from its name" if plain else "download it again"
        raise UserError(f"{path}: not a whole gzip file ({error}); {advice}") from None
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        kind = PACKED.get(path.suffix, "gzip")
        raise UserError(f"{path}: not a whole {kind} file ({error}); download it again") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def look(paths: Iterable[Path]) -> None:
    """Open each file and check its first bytes, as reading does. Raises ``UserError`` as ``opened`` does.

    Call it before a cached result is looked up by the hash of the content. Otherwise a file whose name does not fit its
    content would be accepted if the content is cached.
    """
    for path in paths:
        with opened(path):
            pass
