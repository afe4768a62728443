"""Checks that the files of a checkpoint are whole, as a dry run does: no tensor is read, and torch is not imported."""

import json
import zipfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from condensery.errors import UserError
from condensery.system.files import read_json

_CHECKED = (".safetensors", ".bin")
_DESCRIBE = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
_INDEX = ".index.json"  # ends the name of the file that names the shards of the weights
_HEADER = 100 << 20  # bytes; safetensors allows no longer header


def check_whole(files: Iterable[Path]) -> None:
    """Check that files of a checkpoint are not cut off, as after an interrupted copy. No tensor is read.

    Raises:
        UserError: a file of tensors is shorter than it says, a shard is missing, or a file that describes the model is
            invalid.
    """
    for file in files:
        status = file.stat()
        if file.suffix in _CHECKED or file.name in _DESCRIBE or file.name.endswith(_INDEX):
            _check_whole(file, status.st_size, status.st_mtime_ns)


@cache  # a sweep checks the same files in each job
def _check_whole(file: Path, size: int, changed: int) -> None:
    if file.name.endswith(_INDEX):
        missing = _missing_shards(file)
        if missing:
            raise UserError(f"{file.parent / missing[0]}: no such file, but {file.name} names it; copy or download it")
    elif file.name in _DESCRIBE:
        read_json(file)
    elif file.suffix == ".safetensors" and size < (whole := _whole_size(file)):
        raise UserError(f"{file}: cut off after {size:,} of {whole:,} bytes; copy or download it again")
    elif file.suffix == ".bin" and not zipfile.is_zipfile(file):
        with open(file, "rb") as stream:
            if stream.read(2) in (b"", b"PK"):  # older releases of torch wrote no zip file
                raise UserError(f"{file}: cut off after {size:,} bytes; copy or download it again")


def _missing_shards(index: Path) -> list[str]:
    """Return the files of weights that an index names and that are missing; none if the weights are read elsewhere."""
    whole = index.with_name(index.name.removesuffix(_INDEX))
    if whole.exists() or (whole.suffix == ".bin" and any(index.parent.glob("model*.safetensors"))):
        return []
    about = read_json(index)
    shards = about.get("weight_map") if isinstance(about, dict) else None
    named = sorted(set(map(str, shards.values()))) if isinstance(shards, dict) else []
    return [name for name in named if not (index.parent / name).is_file()]


def _whole_size(file: Path) -> int:
    """Return the size in bytes of a file in safetensors format, from its header."""
    with open(file, "rb") as stream:
        length = int.from_bytes(stream.read(8).ljust(8, b"\1"), "little")
        header = stream.read(min(length, _HEADER))
    if len(header) < length:
        return 8 + length
    try:
        ends = [one["data_offsets"][1] for name, one in json.loads(header).items() if name != "__metadata__"]
        return 8 + length + max(ends, default=0)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        raise UserError(f"{file}: not in safetensors format; copy or download it again") from None
