"""Access to the library ir_datasets: its data sets by id, and the files that it reads for each.

The ids, file names, sizes and MD5 digests are those of ir_datasets 0.6.3.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from condensery.errors import UserError
from condensery.system.downloads import Download


def library() -> Any:
    """The library ir_datasets, set to print errors only. Raises ``UserError`` where it is not installed."""
    try:
        import ir_datasets
    except ModuleNotFoundError as error:
        if error.name != "ir_datasets":
            raise
        raise UserError(
            "data.format=ir_datasets: the package ir_datasets is not installed; pip install ir_datasets ijson"
        ) from None
    # hides "starting", "finished" and the terms of use; IrDatasetsSource.fetch prints the terms
    ir_datasets.log.easy().logger().setLevel("ERROR")
    return ir_datasets


def load(identifier: str) -> Any:
    """A data set of the library, or None."""
    try:
        return library().load(identifier)
    except KeyError:
        return None


def files_of(handler: Any) -> Iterator[Any]:
    """Yield the library's ``Download`` objects that a handler reads, and ``LocalDownload`` objects of local data sets.

    The library has no list of them; they are attributes of the handlers and of the objects that unpack files.
    """
    util = library().util
    seen, left = set[int](), [handler]
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, util.Download | util.LocalDownload):
            yield value
        elif isinstance(value, util._DownloadConfig):
            left += [value[key] for key in value.contents()]
        elif isinstance(value, list | tuple):
            left += value
        elif isinstance(value, dict):
            left += value.values()
        elif type(value).__module__.startswith("ir_datasets"):
            left += vars(value).values()


def downloads_of(handler: Any) -> Iterator[Download]:
    """Yield the files that a handler reads.

    The library is set to keep each download in a file, also those that it would otherwise fetch anew each time.
    """
    util = library().util
    for one in files_of(handler):
        if isinstance(one, util.LocalDownload):
            yield Download((), Path(one._path), by_hand=one._message or "a file of your own")
            continue
        if one._cache_path is None and one.expected_md5:
            one._cache_path = str(util.home_path() / "downloads" / one.expected_md5)
            one._stream = False
        if one._cache_path is None:
            continue  # without a digest the library itself fetches the file while it reads
        places = [place for place in one.mirrors if isinstance(place, util.RequestsDownload)]
        local = [place._message for place in one.mirrors if isinstance(place, util.LocalDownload) and not places]
        yield Download(
            tuple(place.url for place in places),
            Path(one._cache_path),
            one.expected_md5,
            one._size_hint,
            " ".join(str(local[0]).split()) if local else "",
            next((place.headers for place in places if place.headers), {}),
        )
