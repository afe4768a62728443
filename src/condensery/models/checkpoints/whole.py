"""Checks for dry runs that the files of a checkpoint are complete. No tensor is read, and torch is not imported."""

import zipfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from condensery.errors import UserError
from condensery.system.files import read_json

_DESCRIBE = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
_INDEX = ".index.json"  # suffix of the file that lists the shards of the weights
_AGAIN = "copy or download it again"


def check_whole(files: Iterable[Path]) -> None:
    """Check that files of a checkpoint are not cut off, as after an interrupted copy.

    Raises:
        UserError: a file of weights is cut off, a shard is missing, or a file that describes the model is invalid.
    """
    for file in files:
        if file.suffix in (".safetensors", ".bin") or file.name in _DESCRIBE or file.name.endswith(_INDEX):
            _check_whole(file, file.stat().st_mtime_ns)


@cache  # a sweep checks the same files in each job
def _check_whole(file: Path, changed: int) -> None:
    if file.suffix == ".json":
        about = read_json(file)
        if missing := _missing_shards(file, about) if file.name.endswith(_INDEX) else []:
            raise UserError(f"{file.parent / missing[0]}: no such file, but {file.name} names it; {_AGAIN}")
    elif file.suffix == ".safetensors":
        try:
            with safe_open(file, "np"):  # checks the header and the size of the file
                return
        except SafetensorError as error:
            raise UserError(f"{file}: cut off, or not in safetensors format ({error}); {_AGAIN}") from None
    elif not zipfile.is_zipfile(file):
        with open(file, "rb") as stream:
            if stream.read(2) in (b"", b"PK"):  # older releases of torch wrote files that are not in ZIP format
                raise UserError(f"{file}: cut off after {file.stat().st_size:,} bytes; {_AGAIN}")


def _missing_shards(index: Path, about: Any) -> list[str]:
    """Return the missing files of weights that an index names. The list is empty if other files hold the weights."""
    whole = index.with_name(index.name.removesuffix(_INDEX))
    if whole.exists() or (whole.suffix == ".bin" and any(index.parent.glob("model*.safetensors"))):
        return []
    shards = about.get("weight_map") if isinstance(about, dict) else None
    named = sorted(set(map(str, shards.values()))) if isinstance(shards, dict) else []
    return [name for name in named if not (index.parent / name).is_file()]
