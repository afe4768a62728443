"""Download files. An interrupted download is resumed, and each file is checked by size and digest."""

import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from filelock import FileLock

from condensery.errors import UserError
from condensery.system.files import existing
from condensery.system.inputs import MEGABYTE
from condensery.system.progress import progress

if TYPE_CHECKING:
    from requests import Response

SILENCE = 30.0  # seconds without data after which a connection counts as broken
TRIES = 5  # number of consecutive attempts without a new byte after which the next URL is tried
PART = ".part"  # extension of an incomplete file


@dataclass(frozen=True)
class Download:
    """A file to be downloaded.

    Args:
        urls: URLs of the file, preferred first; empty = the file can only be downloaded by hand.
        path: path of the downloaded file.
        md5: MD5 of the file, 32 hexadecimal digits; None if none is published.
        size: size of the file in bytes; None if unknown in advance.
        by_hand: instructions for a file that a program may not download: the web page, and the steps there.
        headers: HTTP headers of the request.
    """

    urls: tuple[str, ...]
    path: Path
    md5: str | None = None
    size: int | None = None
    by_hand: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def part(self) -> Path:
        """The path of the incomplete file."""
        return self.path.with_name(self.path.name + PART)

    @property
    def bytes_whole(self) -> int:
        """The size of the complete file in bytes; 0 where it is unknown."""
        return self.path.stat().st_size if self.path.is_file() else self.size or 0

    @property
    def missing(self) -> int:
        """The number of bytes that are still to be fetched; 0 where the size is unknown."""
        return 0 if self.path.exists() else max(0, (self.size or 0) - _size(self.part))


def fetch(download: Download, key: str) -> Path:
    """Fetch the missing bytes of a file, check the file, and return its path.

    If several processes need the same file, one process fetches it and the others wait.

    Args:
        download: the file.
        key: the config key that named the file, for error messages.

    Raises:
        UserError: no URL can be reached, the file has a different digest, or it can only be downloaded by hand.
    """
    if download.path.exists():
        if download.md5 and download.path.is_file():
            check_digest(download.path, download.md5)
        return download.path
    if not download.urls:
        raise UserError(f"{key}: {download.path} can only be fetched by hand: {download.by_hand}")
    download.path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{download.path}.lock"):
        if not download.path.exists():
            _fetch(download, key)
    return download.path


def check_digest(path: Path, md5: str) -> None:
    """Raise ``UserError`` where the file at ``path`` has a different MD5."""
    if (actual := file_md5(path)) != md5:
        raise UserError(
            f"{path}: its MD5 is {actual}, not {md5}: another file, or a broken one; remove it and start again"
        )


def file_md5(path: Path) -> str:
    """Return the MD5 of a file, 32 hexadecimal digits."""
    return file_digest(path, hashlib.md5(usedforsecurity=False))


def file_digest(path: Path, digest: Any) -> str:
    """Return the digest of a file in hexadecimal digits. ``digest``: a new hash object of ``hashlib``."""
    with open(path, "rb") as file, progress(f"checking {path.name}", _size(path) // MEGABYTE, "MB") as task:
        while block := file.read(MEGABYTE):
            digest.update(block)
            task.advance()
    return digest.hexdigest()


def check_space(downloads: Iterable[Download], key: str) -> None:
    """Raise ``UserError`` where a disk lacks the space for the bytes that are still to be fetched."""
    wanted: dict[Path, int] = {}
    for download in downloads:
        folder = existing(download.path.parent)
        wanted[folder] = wanted.get(folder, 0) + download.missing
    for folder, size in wanted.items():
        check_room(folder, size, key)


def check_room(folder: Path, size: int, key: str) -> None:
    """Raise ``UserError`` where the disk of ``folder`` lacks the space for ``size`` bytes."""
    folder = existing(folder)
    if size > (free := shutil.disk_usage(folder).free):
        raise UserError(f"{key}: {as_bytes(size)} are to be fetched, and {folder} has room for {as_bytes(free)}")


def as_bytes(size: float) -> str:
    """Return a number of bytes in a readable unit: ``1.1 GB`` is 1.1 x 10^9."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:,.1f} {unit}"
    return f"{size:.0f} bytes"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _fetch(download: Download, key: str) -> None:
    """Fetch the file from the first of its URLs that works."""
    problems = []
    for url in download.urls:
        problem = _fetch_from(url, download)
        if not problem and download.md5 and file_md5(download.part) != download.md5:
            problem = f"what came has not the MD5 {download.md5}, and was removed"
            download.part.unlink()
        if not problem:
            os.replace(download.part, download.path)
            return
        problems.append(f"{url}: {problem}")
    raise UserError(
        f"{key}: {'; '.join(problems)}. The same command goes on where it stopped; fetched elsewhere, the file goes to"
        f" {download.path}"
    )


def _fetch_from(url: str, download: Download) -> str:
    """Fetch the missing bytes into ``download.part``. Returns a description of the fault; empty on success."""
    import requests
    import urllib3

    failed, problem = 0, ""
    while failed < TRIES:
        before = _size(download.part)
        # "identity" forbids compression during transfer, so the number and digest of the bytes are those of the file
        headers = {**download.headers, "Accept-Encoding": "identity"} | (
            {"Range": f"bytes={before}-"} if before else {}
        )
        try:
            with requests.get(url, headers=headers, stream=True, timeout=SILENCE) as response:
                if before and response.status_code == requests.codes.requested_range_not_satisfiable:
                    return ""  # no byte is missing; the digest shows whether the file is right
                response.raise_for_status()
                _write(response, download)
            return ""
        except requests.exceptions.HTTPError as error:
            return str(error).partition(" for url")[0]
        except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError) as error:
            problem = _reason(error)
            if not _size(download.part):
                return problem  # the server sent nothing at all
            failed = 0 if _size(download.part) > before else failed + 1
    return problem


def _write(response: "Response", download: Download) -> None:
    """Append the response to the incomplete file. If the server sends the whole file, the file is overwritten."""
    import requests

    before = _size(download.part) if response.status_code == requests.codes.partial_content else 0
    length = response.headers.get("content-length", "")
    total = before + int(length) if length.isdecimal() else download.size or 0
    file: IO[bytes]
    with (
        open(download.part, "ab" if before else "wb") as file,
        progress(f"fetching {download.path.name}", total // MEGABYTE, "MB", before // MEGABYTE) as task,
    ):
        shown = before // MEGABYTE
        for block in response.raw.stream(MEGABYTE, decode_content=False):
            file.write(block)
            if (at := file.tell() // MEGABYTE) > shown:
                task.advance(at - shown)
                shown = at
        if length.isdecimal() and file.tell() < total:
            raise requests.exceptions.ConnectionError(f"{file.tell():,} of {total:,} bytes came")


def _reason(error: Exception) -> str:
    """Return the reason why a connection failed, without the wrappers of requests and urllib3."""
    text = " ".join(str(error).split())
    if any(sign in text for sign in ("NameResolution", "name resolution", "Name or service", "getaddrinfo")):
        return "this name is not known here (is there a network?)"
    if "timed out" in text or "Timeout" in text:
        return "no answer in time"
    return text.rsplit("Caused by ", 1)[-1].strip("()'\"")[-200:]
