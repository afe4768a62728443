"""Files: atomic writing, reading with plain error messages, and content hashes."""

import gzip
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TextIO

from condensery.errors import UserError
from condensery.system.inputs import fault

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike, NDArray

RECOMPUTE = "delete the folder that it lies in, and the next run computes it anew"  # for files in an artifact


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``. The file or folder there becomes ``path`` when the block ends without error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        if temporary.is_dir() and not temporary.is_symlink():
            shutil.rmtree(temporary)
        else:
            temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON, atomically. Raises ``ValueError`` on NaN: a table must never hold one."""
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def check_file(path: Path) -> None:
    """Raise ``UserError`` where ``path`` is no file. Opening a pipe would wait, and a device has no end."""
    if why := fault(path):
        raise UserError(f"{path}: {why}")


def read_json(path: Path) -> Any:
    """Read JSON. Raises ``UserError`` that names ``path`` where it is missing, broken or no file."""
    check_file(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a plain ValueError
        raise UserError(f"{path}: not valid JSON ({error})") from None


def load_array(path: Path, mapped: bool = False) -> "NDArray[Any]":
    """Read an .npy file, or map it into memory. Pickled objects in it are never read.

    Raises ``UserError`` where the file is missing or is not a single array.
    """
    import numpy as np

    with _readable(path, "not a readable array"):
        array: NDArray[Any] = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise UserError(f"{path}: not one array, but an archive; {RECOMPUTE}")
    return array


def load_arrays(path: Path) -> "dict[str, NDArray[Any]]":
    """Read the arrays of an .npz file by name. Raises ``UserError`` where the file is missing or not readable."""
    import numpy as np

    with _readable(path, "not readable arrays"), np.load(path, allow_pickle=False) as stored:
        return dict(stored)


@contextmanager
def _readable(path: Path, complaint: str) -> Iterator[None]:
    """Turn whatever goes wrong while arrays are read into a ``UserError`` with this complaint."""
    check_file(path)
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # a broken header is evaluated as Python, which may raise anything
        reason = [*str(error).splitlines(), type(error).__name__][0]
        raise UserError(f"{path}: {complaint} ({reason}); {RECOMPUTE}") from None


def new_array(path: Path, dtype: "DTypeLike", shape: tuple[int, ...]) -> "np.memmap[Any, Any]":
    """Make a new .npy file and map it into memory for writing.

    All its space is taken on the disk from the start. So a full disk is an ``OSError`` here; later, a page of the map
    without space would end the process.
    """
    from numpy.lib.format import open_memmap

    array = open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with open(path, "r+b") as stream:
            os.posix_fallocate(stream.fileno(), 0, path.stat().st_size)
    return array


def expanded(path: str | Path) -> Path:
    """The path with ``~`` replaced by the home folder; unchanged where there is no such user."""
    return Path(os.path.expanduser(path))


def existing(folder: Path) -> Path:
    """The folder, or the nearest folder above it that exists."""
    return next(one for one in (folder, *folder.parents) if one.exists())


def is_hub_name(text: str) -> bool:
    """Whether a text can be a name on the Hugging Face hub (`name` or `owner/name`); otherwise it can only be a path."""
    return bool(text) and not text.startswith(("/", ".", "~")) and text.count("/") <= 1 and "\\" not in text


def inside(folder: Path, name: Any, where: str | Path) -> Path:
    """``folder / name`` for a name that was read from a file.

    Args:
        folder: the folder.
        name: the name as it was read.
        where: the file that holds the name, for the message.

    Raises:
        UserError: the name is no text, or leads out of the folder.
    """
    if not isinstance(name, str) or not name or "\0" in name or {"..", "/"} & {*PurePosixPath(name).parts}:
        raise UserError(f"{where}: {name!r} is no name of something in {folder}; was the file edited by hand?")
    return folder / name


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Open a UTF-8 text file, plain or gzip (by its ending). Raises ``UserError`` for a missing file."""
    check_file(path)
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", newline="\n") as stream:
        yield stream


def content_hash(path: Path) -> str:
    """Hex digest (32 characters) of a file's bytes."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
