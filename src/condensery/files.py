"""Files: written whole or not at all, read with the line number at hand, known by their content."""

import gzip
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from condensery.errors import UserError


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path``; what is written there becomes ``path`` when the block ends without error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        else:
            temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON, atomically. Raises ``ValueError`` on NaN: a table must never hold one."""
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read JSON; a missing or broken file is a ``UserError`` that names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid JSON ({error})") from None


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Open a UTF-8 text file, plain or gzip (by its ending). A missing file is a ``UserError``."""
    try:
        stream: TextIO = (
            gzip.open(path, "rt", encoding="utf-8", newline="\n")  # noqa: SIM115  (closed by the caller's block)
            if path.suffix == ".gz"
            else open(path, encoding="utf-8", newline="\n")  # noqa: SIM115
        )
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    with stream:
        yield stream


def content_hash(path: Path) -> str:
    """Hex digest (32 characters) of a file's bytes."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
