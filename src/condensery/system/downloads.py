"""Helpers for downloads: the digest of a file, a check of the free disk space."""

import shutil
from pathlib import Path
from typing import Any

from rich.filesize import decimal as as_bytes

from condensery.errors import UserError
from condensery.system.files import existing
from condensery.system.inputs import MEGABYTE
from condensery.system.progress import progress


def file_digest(path: Path, digest: Any) -> str:
    """Return the digest of a file in hexadecimal digits. ``digest``: a new hash object of ``hashlib``."""
    with open(path, "rb") as file, progress(f"checking {path.name}", path.stat().st_size // MEGABYTE, "MB") as task:
        while block := file.read(MEGABYTE):
            digest.update(block)
            task.advance()
    return digest.hexdigest()


def check_room(folder: Path, size: int, key: str) -> None:
    """Raise ``UserError`` if the disk of ``folder`` lacks the space for ``size`` bytes."""
    folder = existing(folder)
    if size > (free := shutil.disk_usage(folder).free):
        raise UserError(f"{key}: the download needs {as_bytes(size)}, but {folder} has only {as_bytes(free)} free")
