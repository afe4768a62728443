"""Hashes of ids and of the content of input files. Content hashes are cached, so gigabytes are hashed only once."""

import hashlib
import os
import sqlite3
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path

from condensery.system.cache import cache_folder
from condensery.system.files import content_hash
from condensery.system.inputs import look

SETTLED = 2.0  # seconds; a younger file is not cached, because it may change again within the same time stamp


def id_hash(identifier: str) -> int:
    """Return the 64-bit hash of an id (BLAKE2b, read as a little-endian number)."""
    return int.from_bytes(hashlib.blake2b(identifier.encode(errors="surrogatepass"), digest_size=8).digest(), "little")


def texts_hash(texts: Iterable[str]) -> str:
    """Return the hash of an ordered list of texts.

    The hashed bytes of each text end with NUL. A NUL within a text is replaced by byte 255, which UTF-8 never contains.
    """
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        digest.update(text.encode().replace(b"\0", b"\xff") + b"\0")
    return digest.hexdigest()


def content_hashes(paths: list[Path]) -> list[str]:
    """Return the content hash of each file, cached by absolute path, size, mtime and ctime.

    The mtime alone is not enough, because a copied file may keep the mtime of its original. No program can set the ctime.

    If the cache cannot be written (a read-only home, a corrupt cache file), the hashes are computed each time.
    """
    keys = [_key(path) for path in paths]
    known = _recall(keys)
    fresh = {key: content_hash(path) for key, path in zip(keys, paths, strict=True) if key not in known}
    settled = time.time_ns() - SETTLED * 1e9
    _remember([(key, digest) for key, digest in fresh.items() if int(key.rpartition("|")[2]) < settled])
    hashes = known | fresh
    return [hashes[key] for key in keys]


def input_hashes(paths: list[Path]) -> list[str]:
    """Return the content hash of each input file. Raises ``UserError`` if a file is missing or is not text."""
    look(paths)
    return content_hashes(paths)


def _key(path: Path) -> str:
    status = path.stat()
    name = os.fsencode(path.resolve()).decode(errors="backslashreplace")  # SQLite rejects lone surrogates
    return f"{name}|{status.st_size}|{status.st_ctime_ns}|{status.st_mtime_ns}"


def _open() -> sqlite3.Connection:
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(folder / "content_hashes.sqlite", timeout=10)
    connection.execute("CREATE TABLE IF NOT EXISTS hashes (file TEXT PRIMARY KEY, hash TEXT NOT NULL) WITHOUT ROWID")
    return connection


def _recall(keys: list[str]) -> dict[str, str]:
    with suppress(sqlite3.Error, OSError), closing(_open()) as connection:
        rows = (connection.execute("SELECT * FROM hashes WHERE file = ?", (key,)).fetchone() for key in keys)
        return dict(row for row in rows if row)
    return {}


def _remember(entries: list[tuple[str, str]]) -> None:
    if entries:
        with suppress(sqlite3.Error, OSError), closing(_open()) as connection, connection:
            connection.executemany("INSERT OR REPLACE INTO hashes VALUES (?, ?)", entries)
