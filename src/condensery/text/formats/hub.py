"""List, fetch and check the files of data sets on the Hugging Face hub, and read them row by row.

``huggingface_hub`` fetches files into its cache (``$HF_HOME``, by default ``~/.cache/huggingface``) and resumes interrupted
downloads. The cache also stores the list of a commit's files, with their sizes and digests. A commit in the cache is used
even if the hub has a newer one. This project's own readers read JSON, CSV and text, as in the other formats. The library
``datasets`` streams all other files, such as parquet, from the cache, without a copy in Arrow's format.

This module follows the documented behaviour of huggingface_hub 2.4 and datasets 5.2. Tests serve a small hub on the local
machine. The layouts of the data sets named in ``conf/data/`` could not be checked, because there was no internet access.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from condensery.errors import UserError, check_known, close_to, of_the_disk
from condensery.system.downloads import check_room, file_digest
from condensery.system.files import expanded, read_json
from condensery.system.inputs import FOLDER, HEAD, fault, opened
from condensery.system.progress import progress, style
from condensery.text.arrays import BLANK, read_array
from condensery.text.hashes import content_hashes
from condensery.text.lines import BOM, TAB, read_lines, read_objects, read_records
from condensery.text.source import WantedFile

CARD = "README.md"
PAGE = "https://huggingface.co/datasets"
DATA = re.compile(r"\.(parquet|jsonl?|csv|tsv|txt|arrow)(\.(gz|bz2|xz|zst))?$")
HIDDEN = re.compile(r"(^|/)(\.|__[^/]*/)")  # .ipynb_checkpoints, ._corpus.jsonl, __MACOSX/
# extension -> reader of ``datasets``, if their names differ
READERS = {"jsonl": "json", "tsv": "csv", "txt": "text"}
# Files that this project reads itself: ``datasets`` would read the id 007 as a number, a date as a time, and NA as null.
AS_TEXT = re.compile(r"\.(jsonl?|csv|tsv)(\.(gz|bz2|xz))?$")
LINES = re.compile(r"\.txt(\.(gz|bz2|xz))?$")  # each line is a row; ``datasets`` would keep a byte-order mark
SPLIT_WORDS = {"dev": ("dev", "validation", "valid", "val"), "validation": ("validation", "valid", "val", "dev")}
ROWS = 1000  # number of rows read at a time


@dataclass(frozen=True)
class HubFile:
    """A file of a repository.

    Attributes:
        size: the size in bytes.
        digest: the SHA-256 (64 hexadecimal digits), or for a small file the SHA-1 of its git blob.
    """

    size: int
    digest: str

    def check(self, path: Path) -> None:
        """Raise ``UserError`` if the file at ``path`` has a different size or digest."""
        size = path.stat().st_size
        git = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
        digest = file_digest(path, (hashlib.sha256() if len(self.digest) == 64 else git))
        if size != self.size or digest != self.digest:
            raise UserError(
                f"{path}: {size:,} bytes with the digest {digest}, not {self.size:,} with {self.digest};"
                f" remove {path.resolve()} and start again"
            )


class Repository:
    """A data set on the hub, or a local folder with the same layout (``./...``, ``/...`` or ``~...``).

    Args:
        name: ``owner/name``, or a folder.
        revision: commit, tag or branch; None = the main branch.
        key: the config key that names the data set, for error messages.
    """

    def __init__(self, name: str, revision: str | None, key: str) -> None:
        self.name, self.revision, self.key = name, revision, key
        self.local = name.startswith(("/", ".", "~"))

    @cached_property
    def folder(self) -> Path:
        """The folder of the commit in the cache. The hub is queried if the cache has no commit."""
        if self.local:
            folder = expanded(self.name)
            if why := fault(folder, FOLDER):
                raise UserError(f"{self.key}: {self.name}: {why}")
            return folder
        with self._talking():
            try:
                return self._fetched([CARD], offline=True)
            except library().errors.LocalEntryNotFoundError:
                return self._fetched([CARD])

    @cached_property
    def files(self) -> dict[str, HubFile | None]:
        """Path of every file of the commit -> its size and digest; None for the files of a local folder."""
        if self.local:
            paths = (path for path in sorted(self.folder.rglob("*")) if path.is_file())
            return {path.relative_to(self.folder).as_posix(): None for path in paths}
        listing = self.folder.parents[1] / "trees" / f"{self.folder.name}.json"
        if not listing.is_file():  # an earlier version of the library, which stored no list, made the cache
            with self._talking():
                self._fetched([CARD])
        if not listing.is_file():
            raise UserError(f"{self.key}: {self.name}: the cache lacks the list of its files; go online once")
        stored = read_json(listing)["files"].items()
        return {path: HubFile(one["size"], one.get("lfs_sha256") or one["blob_id"]) for path, one in stored}

    @cached_property
    def card(self) -> dict[str, Any]:
        """The metadata at the head of the README: ``configs`` and ``dataset_info``, if they exist."""
        path = self.folder / CARD
        if not path.is_file():
            return {}
        with self._talking():
            return dict(library().DatasetCard.load(path, ignore_metadata_errors=True).data.to_dict())

    @cached_property
    def configs(self) -> dict[str, dict[str, Any]]:
        """The configurations that the README lists, by name."""
        return {str(one.get("config_name", "default")): one for one in self.card.get("configs") or []}

    @cached_property
    def data(self) -> list[str]:
        """The paths of all files whose format can be read. Hidden files and folders are left out, as in ``datasets``."""
        return [path for path in self.files if DATA.search(path) and not HIDDEN.search(path)]

    def has(self, config: str) -> bool:
        """Return whether the data set has a configuration ``config``.

        The README decides. If it lists no configurations, the names of the files decide.
        """
        return config in self.configs if self.configs else any(_names(config, path) for path in self.data)

    def select(self, config: str | None, split: str | None) -> list[str]:
        """Return the sorted files of a configuration (None = the default) and a split (None = all).

        If the README lists no configurations, the names of files and folders decide, as in the library ``datasets``.

        Raises:
            UserError: the configuration or the split does not exist, or has no readable file.
        """
        without = f"; to leave it out, set the data.splits.* whose value is {split} to null" if split else ""
        named = split  # the split whose name the paths must contain; None = any path
        if not self.configs:
            paths = [path for path in self.data if config is None or _names(config, path)]
        else:
            patterns = _patterns(self._entry(config))
            if split in patterns:
                named, wanted = None, patterns[split]
            elif split is None or "" in patterns:
                wanted = list(chain.from_iterable(patterns.values()))
            else:
                raise UserError(f"{self.key}: {self.name} has no split {split!r}{close_to(split, patterns)}{without}")
            from fsspec.utils import glob_translate  # as in ``datasets``

            with self._talking():  # a pattern such as a**b is refused
                fitting = re.compile("|".join(glob_translate(one.removeprefix("./")) for one in wanted))
            paths = [path for path in self.data if fitting.match(path)]
        paths = _of_split(paths, named)
        if not paths:
            what = " of ".join(filter(None, (split and f"split {split!r}", config and f"configuration {config!r}")))
            more = without or f"; its readable files: {', '.join(self.data[:4]) or 'none'}"
            raise UserError(f"{self.key}: {self.name} has no readable files{f' for the {what}' if what else ''}{more}")
        return sorted(paths)

    def _entry(self, config: str | None) -> dict[str, Any]:
        """Return the README's entry of a configuration; None = the default configuration, or else the first one."""
        if config is None:
            marked = [name for name, one in self.configs.items() if one.get("default")]
            config = next(name for name in (*marked, "default", *self.configs) if name in self.configs)
        check_known(config, self.configs, f"{self.key}: {self.name} has no configuration {config!r}")
        return self.configs[config]

    def digests(self, paths: Sequence[str]) -> list[str]:
        """Return the digest of each file: the hub's digest, or for a file of a local folder a hash of its bytes."""
        known = [(path, self.files[path]) for path in paths]
        own = iter(content_hashes([self.folder / path for path, one in known if one is None]))
        # In earlier versions, ``datasets`` read JSON and CSV and changed some ids and texts. So the new digests must differ.
        return [one.digest if one else next(own) for _, one in known] + ["as text"] * any(map(AS_TEXT.search, paths))

    def wanted(self, paths: Iterable[str]) -> list[WantedFile]:
        """Return the path, size, digest and URL of each file, as far as known."""
        files = []
        for path in paths:
            known, place = self.files[path], self.folder / path
            size = known.size if known else place.stat().st_size
            address = f"{PAGE}/{self.name}/resolve/{self.folder.name}/{path}" if known else ""
            files.append(WantedFile(place, size, place.exists(), known.digest if known else "", address))
        return files

    def fetch(self, paths: Sequence[str]) -> None:
        """Fetch the missing files and check all files. Raises ``UserError`` on failure."""
        if not self.local:
            check_room(self.folder, sum(one.size for one in self.wanted(paths) if not one.here), self.key)
            # escape the special characters of patterns that file names may contain
            with self._talking():
                self._fetched([CARD, *(re.sub(r"([\[*?])", r"[\1]", path) for path in paths)])
        for path in paths:
            if known := self.files[path]:
                known.check(self.folder / path)

    def rows(self, paths: Iterable[str], total: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (place, row) for every row of these files, which must exist. A few thousand rows are in memory at a time."""
        with progress(f"reading {self.name}", total, "rows") as task:
            for path in paths:
                for number, (place, row) in enumerate(self._rows(path), start=1):
                    yield place or f"{self.name}/{path}:{number}", row
                    if number % ROWS == 0:
                        task.advance(ROWS)

    def _rows(self, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (place, row) for every row of a file; the place is empty if the file has no lines."""
        file, text = self.folder / path, AS_TEXT.search(path)
        if text and text[1].startswith("json"):
            with opened(file) as (stream, _):
                array = stream.peek(HEAD).lstrip(BOM + BLANK.encode()).startswith(b"[")
            yield from (read_array if array else read_objects)(file, show=False)
        elif text:
            yield from read_records(file, "CSV or TSV with a header", (), TAB if text[1] == "tsv" else ",", False)
        elif LINES.search(path):
            yield from ((place, {"text": line}) for place, line in read_lines(file, show=False))
        else:
            with self._talking(file=f"/{path}"):
                for batch in _opened(file).iter(batch_size=ROWS):
                    yield from (("", dict(zip(batch, row, strict=True))) for row in zip(*batch.values(), strict=True))

    def count(self, config: str | None) -> int:
        """Return the number of rows of a configuration as stated in the README; 0 if the README lacks it."""
        infos = self.card.get("dataset_info") or []
        for one in [infos] if isinstance(infos, dict) else infos:
            if config is None or one.get("config_name", "default") == config:
                return sum(int(split.get("num_examples") or 0) for split in one.get("splits") or [])
        return 0

    def _fetched(self, patterns: list[str], offline: bool = False) -> Path:
        """Fetch the files that match ``patterns``, and return the folder of the commit.

        Once a commit is in use, all further files are fetched from the same commit.
        """
        revision = self.__dict__["folder"].name if "folder" in self.__dict__ else self.revision
        what = {"repo_type": "dataset", "revision": revision, "allow_patterns": patterns}
        return Path(library().snapshot_download(self.name, local_files_only=offline, **what))

    @contextmanager
    def _talking(self, file: str = "") -> Iterator[None]:
        """Turn exceptions of the libraries into a ``UserError`` of one line.

        ``file``: the file that is being read, for the error message.
        """
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            raise of_the_disk(error) or self._user_error(error, file) from error

    def _user_error(self, error: Exception, file: str) -> UserError:
        """Return a ``UserError`` that explains the error in one line."""
        errors, name = library().errors, f"{self.key}: {self.name}{file}"
        if isinstance(error, errors.GatedRepoError):
            return UserError(
                f"{name} is only for users who agree to its terms; agree at {PAGE}/{self.name}, and set HF_TOKEN to the"
                " token of your account"
            )
        if isinstance(error, errors.RevisionNotFoundError):
            return UserError(f"data.revision: {self.name} has no revision {self.revision!r}")
        if isinstance(error, errors.RepositoryNotFoundError):
            return UserError(f"{self.key}: no data set {self.name!r} at {PAGE}; if it is private, set HF_TOKEN")
        if isinstance(error, errors.HFValidationError):
            return UserError(f"{self.key}: {self.name!r} is neither a hub name (owner/name) nor a folder (./...)")
        if isinstance(error, errors.LocalEntryNotFoundError) or type(error).__module__.startswith("httpx"):
            return UserError(
                f"{name} is not complete in the cache, and the hub cannot be reached"
                f" ({_first(error.__cause__ or error)}); run the same command again to resume the download"
            )
        return UserError(f"{name}: {type(error).__name__}: {_first(error)}")


def library() -> Any:
    """Return the library huggingface_hub, set to print only errors and progress.

    Raises ``UserError`` if the package ``datasets`` is not installed.
    """
    import importlib.util

    import huggingface_hub.errors
    from huggingface_hub.utils import disable_progress_bars, logging

    if importlib.util.find_spec("datasets") is None:
        raise UserError("data.format=huggingface: the package datasets is not installed; pip install datasets")
    logging.set_verbosity_error()
    if style() == "off":
        disable_progress_bars()
    return huggingface_hub


def _first(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _names(word: str, path: str) -> bool:
    """Return whether the path contains ``word`` between separators (``/._-``): ``corpus/0.parquet``, ``corpus.jsonl.gz``."""
    return re.search(rf"(^|[/._-]){re.escape(word)}([/._-]|$)", path) is not None


def _of_split(paths: list[str], split: str | None) -> list[str]:
    """Return the paths that contain the name of the split; for ``train`` all paths if no path contains a split's name."""
    if split is None:
        return paths
    words = SPLIT_WORDS.get(split, (split,))
    matching = [path for path in paths if any(_names(word, path) for word in words)]
    known = ("train", "test", *SPLIT_WORDS["dev"])
    unnamed = split == "train" and not any(_names(word, path) for path in paths for word in known)
    return matching or (paths if unnamed else [])


def _patterns(entry: dict[str, Any]) -> dict[str, list[str]]:
    """Return the file patterns of a configuration in a README by split; the key "" holds patterns that belong to no split."""
    folder = str(entry.get("data_dir") or "").strip("/")
    given = entry.get("data_files") or f"{folder}/**".lstrip("/")
    patterns: dict[str, list[str]] = {}
    for one in [given] if isinstance(given, str | dict) else given:
        of_splits = one if isinstance(one, dict) else {"": str(one)}
        if "path" in of_splits:
            of_splits = {of_splits.get("split", "train"): of_splits["path"]}
        for split, paths in of_splits.items():
            patterns.setdefault(str(split), []).extend([paths] if isinstance(paths, str) else paths)
    return patterns


def _opened(path: Path) -> Any:
    """Return the rows of a file as a stream of the library ``datasets``."""
    import datasets

    datasets.utils.logging.set_verbosity(datasets.utils.logging.CRITICAL)  # it would print each error before raising it
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # otherwise the library reports the use of JSON to a server
    kind = DATA.findall(path.name)[0][0]
    # by default the batch size is the size of the first group of rows, and an empty file has no such group
    options: dict[str, dict[str, Any]] = {"tsv": {"sep": "\t"}, "parquet": {"batch_size": ROWS}}
    how = {"data_files": [str(path)], "split": "train", "streaming": True, **options.get(kind, {})}
    return datasets.load_dataset(READERS.get(kind, kind), **how)
