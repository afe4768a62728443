"""A full disk, met by any library that writes for us: one line, and no process ended by a page that found no space."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from condensery.errors import DiskError, of_the_disk
from condensery.system.files import new_array, write_json

SIZE = "64k"


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A disk of 64 KiB; the test is skipped where none can be mounted."""
    folder = tmp_path_factory.mktemp("disk")
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no disk can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def checkpoint(folder: Path) -> None:
    import torch

    from condensery.training.callbacks import AtomicCheckpointIO

    AtomicCheckpointIO().save_checkpoint({"a": torch.zeros(100_000)}, folder / "step=1.ckpt")


def weights(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(100_000)}, folder / "model.safetensors")


def tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({f"w{number}": number for number in range(20_000)}, "w0")).save(str(folder / "t.json"))


def graph_of_neighbours(folder: Path) -> None:
    import faiss

    index = faiss.IndexFlatIP(64)
    index.add(np.zeros((10_000, 64), np.float32))
    faiss.write_index(index, str(folder / "index.faiss"))


def table(folder: Path) -> None:
    from condensery.text.table import TableWriter

    with TableWriter(folder / "a.arrow", ["id"]) as writer:
        for number in range(100_000):
            writer.add((f"{number}",), 10)


WRITERS: dict[str, Callable[[Path], None]] = {
    "checkpoint": checkpoint,
    "weights": weights,
    "tokenizer": tokenizer,
    "graph of neighbours": graph_of_neighbours,
    "table": table,
    "array": lambda folder: np.save(folder / "a.npy", np.zeros(100_000)),
    "mapped array": lambda folder: new_array(folder / "a.npy", np.float32, (100_000,)).__setitem__(slice(None), 1),
    "json": lambda folder: write_json(folder / "results.json", ["a" * 100_000]),
}


@pytest.mark.parametrize("what", WRITERS)
def test_whatever_finds_no_space_is_known_for_it(what: str, small_disk: Path) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011  (each library has its own)
        WRITERS[what](small_disk)
    for path in small_disk.iterdir():
        path.unlink()
    fault = of_the_disk(raised.value)
    assert isinstance(fault, DiskError)
    assert str(fault).endswith(": no space is left on the disk")


def test_an_array_is_whole_on_the_disk_before_it_is_written(tmp_path: Path) -> None:
    array = new_array(tmp_path / "a.npy", np.float32, (300, 1000))
    status = (tmp_path / "a.npy").stat()
    assert status.st_blocks * 512 >= status.st_size
    array[:] = 2
    array.flush()
    assert (np.load(tmp_path / "a.npy") == 2).all()


def test_other_faults_are_not_taken_for_the_disk() -> None:
    for error in (ValueError("3 requested"), OSError("cannot read"), RuntimeError("write error")):
        assert of_the_disk(error) is None
