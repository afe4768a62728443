"""Approximate indexes whose inverted lists lie on disk, so that neither building nor searching needs the lists in memory.

An IVF index assigns each vector to one of its lists. The vectors are added in parts: each part is added to an index in
memory, whose lists are then written. The lists of all parts are joined list by list, so that a list is read in one piece.
Results equal those of the same index in memory, to the last bit.

``passages.faiss`` holds everything except the lists, and ``lists.bin`` holds the lists. FAISS reads the lists through a
memory map, so the operating system caches as much of them as fits into memory. FAISS could also join the lists
(``faiss.contrib.ondisk``), but it writes through a memory map, and a full disk would kill the process.

Symbols: N vectors, L lists.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.retrieval.shards import compute_in_shards
from condensery.sharing import ProcessGroup
from condensery.system.files import RECOMPUTE, atomic, check_file, load_array
from condensery.system.progress import ProgressTask

FILE, LISTS = "passages.faiss", "lists.bin"
TRAINED, PARTS = "trained.faiss", "parts"  # files of an index that is being built
Filled = Callable[[Any, slice, ProgressTask], Any]  # trained index, rows -> the index with the vectors of these rows
ID = 8  # bytes of a row number in a list


def build_on_disk(
    folder: Path, number: int, trained: Callable[[], Any], filled: Filled, group: ProcessGroup, label: str, memory: int
) -> None:
    """Write the index of ``number`` vectors into ``folder``. An interrupted attempt is continued after its last part.

    Args:
        folder: folder of the index.
        number: number of vectors, N.
        trained: returns the trained index without vectors.
        filled: adds the vectors of some rows to a trained index and returns it. It advances the progress bar.
        group: the processes that share the parts.
        label: label of the progress bar.
        memory: maximum memory of a part in bytes. FAISS reserves twice the size of the part's lists. A copy is written.
    """
    parts = folder / PARTS

    def start() -> Any:
        return faiss.read_index(str(folder / TRAINED))

    def prepared() -> bool:
        if (folder / FILE).exists():
            return True
        if not (folder / TRAINED).exists():
            with atomic(folder / TRAINED) as temporary:
                faiss.write_index(trained(), str(temporary))
        return False

    def work(rows: slice, task: ProgressTask) -> dict[str, NDArray[Any]]:
        index = filled(start(), rows, task)  # must outlive its lists
        lists: Any = faiss.extract_index_ivf(index).invlists
        sizes = np.array([lists.list_size(number) for number in range(lists.nlist)], np.int32)
        codes, ids = np.empty((sizes.sum(), lists.code_size), np.uint8), np.empty(sizes.sum(), np.int64)
        for number, stop in enumerate(np.cumsum(sizes)):
            if size := int(sizes[number]):
                stored = faiss.rev_swig_ptr(lists.get_codes(number), size * lists.code_size)
                codes[stop - size : stop] = stored.reshape(size, -1)
                ids[stop - size : stop] = faiss.rev_swig_ptr(lists.get_ids(number), size)
        return {"codes": codes, "ids": ids + rows.start, "sizes": sizes[None]}

    if not group.from_rank_zero(prepared):
        index = start()  # must outlive its lists
        size = max(1, memory // (4 * (faiss.extract_index_ivf(index).code_size + ID)))
        compute_in_shards(work, number, parts / "codes.npy", label, size=size, group=group, unit="vectors")
        group.leave_unless_rank_zero()
        _join(folder, index)
    group.leave_unless_rank_zero()
    shutil.rmtree(parts, ignore_errors=True)
    (folder / TRAINED).unlink(missing_ok=True)


def _join(folder: Path, index: Any) -> None:
    """Join the lists of all parts into one file, list by list, and write the index that uses this file."""
    codes, ids, sizes = (load_array(folder / PARTS / f"{name}.npy", mapped=True) for name in ("codes", "ids", "sizes"))
    ends = np.cumsum(sizes.ravel()).reshape(sizes.shape)  # (parts, L)
    with atomic(folder / LISTS) as temporary, open(temporary, "wb") as stream:
        for own, stops in zip(sizes.T.tolist(), ends.T.tolist(), strict=True):
            for array in (codes, ids):
                stream.writelines(array[stop - size : stop].data for size, stop in zip(own, stops, strict=True))
    ivf = faiss.extract_index_ivf(index)
    lists: Any = faiss.OnDiskInvertedLists(ivf.nlist, ivf.code_size, LISTS)
    lists.set_all_lists_sizes(faiss.swig_ptr(sizes.sum(axis=0, dtype=np.uint64)))
    lists.totsize = codes.nbytes + ids.nbytes
    ivf.replace_invlists(lists, True)
    lists.this.disown()
    index.ntotal = ivf.ntotal = len(ids)
    with atomic(folder / FILE) as temporary:
        faiss.write_index(index, str(temporary))


def read_index(folder: Path) -> Any:
    """Open the FAISS index of a folder; inverted lists in a separate file stay on disk. Raises ``UserError`` if damaged."""
    file, path = folder / FILE, folder / LISTS
    try:
        if not path.exists():
            return faiss.read_index(str(file))
        index = faiss.read_index(str(file), faiss.IO_FLAG_SKIP_IVF_DATA)
        ivf: Any = faiss.extract_index_ivf(index)
        lists = faiss.downcast_InvertedLists(ivf.invlists)
    except RuntimeError:
        raise UserError(f"{file}: not a FAISS index; remove the folder and run the stage again") from None
    check_file(path)
    if not isinstance(lists, faiss.OnDiskInvertedLists) or lists.totsize != path.stat().st_size:
        raise UserError(f"{path}: does not belong to {FILE} beside it; {RECOMPUTE}")  # a map beyond the end would crash
    lists.filename, lists.read_only = str(path), True
    lists.do_mmap()
    return index
