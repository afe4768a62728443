"""Write files atomically, read files with clear error messages, and hash their content."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from condensery.errors import DISK, UserError, shown
from condensery.system.inputs import fault

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike, NDArray

Value = TypeVar("Value")
NAME, PATH = 255, 4095  # maximum bytes of the name of a file, and of a whole path
RECOMPUTE = "delete the folder of this file, and the next run computes it again"  # advice for files in an artifact


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``. If the block ends without error, the temporary path is renamed to ``path``.

    The temporary name is random, because two threads may write the same path at once, and so may two processes of different
    containers that have the same process id.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        remove(temporary)


def remove(path: Path) -> None:
    """Remove a file, a link or a whole folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file as UTF-8, atomically."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON, atomically. Raises ``ValueError`` on NaN, which no table may contain."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def check_file(path: Path) -> None:
    """Raise ``UserError`` if ``path`` is not a regular file: opening a pipe would block, and a device has no end."""
    if why := fault(path):
        raise UserError(f"{path}: {why}")


def read_json(path: Path) -> Any:
    """Read JSON. Raises ``UserError``, which names ``path``, if the file is missing or is not valid JSON."""
    check_file(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits raises a plain ValueError
        raise UserError(f"{path}: not valid JSON ({error})") from None


def read_as(path: Path, kind: type[Value], advice: str = RECOMPUTE) -> Value:
    """Read JSON of the type ``kind``, such as a dataclass, by pydantic.

    Raises:
        UserError: the file is missing or is not JSON, or a value is missing or of another type. The message is one line,
            which names the place of the value and ends with ``advice``.
    """
    from pydantic import TypeAdapter, ValidationError

    text = json.dumps(read_json(path))
    try:
        return TypeAdapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{': '.join(map(str, (path, *first['loc'])))}: {first['msg']}; {advice}") from None


def save_array(path: Path, array: "NDArray[Any]") -> None:
    """Write an .npy file, atomically."""
    import numpy as np

    with atomic(path) as temporary, open(temporary, "wb") as stream:
        np.save(stream, array)


def load_array(path: Path, mapped: bool = False) -> "NDArray[Any]":
    """Read an .npy file, or memory-map it if ``mapped``. Pickled objects are never loaded.

    Raises ``UserError`` if the file is missing or is not a single array.
    """
    import numpy as np

    with _readable(path, "not a readable array"):
        array: NDArray[Any] = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise UserError(f"{path}: not one array, but an archive; {RECOMPUTE}")
    return array


def load_arrays(path: Path) -> "dict[str, NDArray[Any]]":
    """Read the arrays of an .npz file by name. Raises ``UserError`` if the file is missing or not readable."""
    import numpy as np

    with _readable(path, "not readable arrays"), np.load(path, allow_pickle=False) as stored:
        return dict(stored)


@contextmanager
def _readable(path: Path, complaint: str) -> Iterator[None]:
    """Turn an exception of reading arrays, except ``MemoryError``, into a ``UserError`` with ``complaint``."""
    check_file(path)
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # a broken header is evaluated as Python, which may raise anything
        reason = [*str(error).splitlines(), type(error).__name__][0]
        raise UserError(f"{path}: {complaint} ({reason}); {RECOMPUTE}") from None


def new_array(path: Path, dtype: "DTypeLike", shape: tuple[int, ...]) -> "np.memmap[Any, Any]":
    """Create a new .npy file and memory-map it for writing.

    All disk space of the file is allocated at once. So a full disk raises an ``OSError`` here. Otherwise, writing to a
    page of the map without disk space would later kill the process.
    """
    from numpy.lib.format import open_memmap

    array = open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with open(path, "r+b") as stream:
            os.posix_fallocate(stream.fileno(), 0, path.stat().st_size)
    return array


def expanded(path: str | Path) -> Path:
    """Return the path with ``~`` replaced by the home folder; unchanged if there is no such user.

    Raises ``UserError`` for anything that is not a path, for a name that no disk takes, and for bytes that are not UTF-8.
    """
    if not isinstance(path, str | Path):
        raise UserError(f"a path or a name is expected, not an object of the class {type(path).__name__}")
    text = str(path).encode(errors="replace").decode()  # half a character (a lone surrogate) becomes `?`
    if text != str(path):
        raise UserError(f"{shown(str(path))}: the name holds half a character, or bytes that are not UTF-8")
    if len(text.encode()) > PATH or any(len(part.encode()) > NAME for part in text.split("/")):
        raise UserError(f"{text}: {DISK[errno.ENAMETOOLONG]}")
    return Path(os.path.expanduser(path))


def no_artifact(folder: str | Path) -> Path:
    """Return the path of a folder to save into.

    Raises ``UserError`` for an empty name, which would be the working directory, for a path at or below a file, and for an
    artifact, which later runs read.
    """
    path = expanded(folder)
    if not str(folder).strip() or "\0" in str(folder) or existing(path).is_file():
        raise UserError(f"save_pretrained: {shown(repr(folder))} names no folder; give '.' for the working directory")
    if (path / "manifest.json").exists():
        raise UserError(f"{folder}: is a stage's artifact, which is never changed; save into another folder")
    return path


def existing(folder: Path) -> Path:
    """Return the folder, or the nearest existing folder above it."""
    return next(one for one in (folder, *folder.parents) if one.exists())


def is_hub_name(text: str) -> bool:
    """Return whether a string can be a name on the Hugging Face hub (`name` or `owner/name`) rather than only a path."""
    return bool(text) and not text.startswith(("/", ".", "~")) and text.count("/") <= 1 and "\\" not in text


def inside(folder: Path, name: Any, where: str | Path) -> Path:
    """Return ``folder / name`` for a name that was read from a file.

    Args:
        folder: the folder.
        name: the name as it was read.
        where: the file that contains the name, for the error message.

    Raises:
        UserError: the name is not a string, or leads out of the folder.
    """
    if not isinstance(name, str) or not name or "\0" in name or {"..", "/"} & {*PurePosixPath(name).parts}:
        raise UserError(f"{where}: {name!r} does not name a file or folder in {folder}; was it edited by hand?")
    return folder / name


def content_hash(path: Path) -> str:
    """Return the hash of a file's bytes, 32 hexadecimal characters."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
