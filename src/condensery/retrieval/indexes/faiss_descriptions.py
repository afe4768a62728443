"""Check a FAISS index description, such as ``IVF1024,PQ32``: can the index be built, and does it rank by inner product?

FAISS raises an exception for most descriptions that it cannot build. For some descriptions it crashes or never ends.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import faiss

from condensery.errors import UserError, shown

LARGEST = 4_194_304  # largest number in a description, because FAISS allocates that many IVF lists at once
BITS = 16  # maximum bits per sub-quantiser, because FAISS allocates its 2**BITS centroids at once
NEIGHBOURS = {"HNSW": (2, 1024), "NSG": (8, 1024)}  # minimum, maximum neighbours; with fewer, FAISS crashes or hangs
DIM = 960  # dimension for checks; divisible by most numbers of sub-quantisers
BY_DIMENSION = re.compile(r"'[^']*\bd\w* % |ZnSphereSearch")  # in FAISS's message if another dimension may work
OTHER_MEASURES = {  # FAISS's transforms that change the order of inner products
    "NormalizationTransform": "divides vectors by their lengths, so it ranks by cosine",
    "ITQTransform": "subtracts the mean from vectors and divides them by their lengths, so it ranks by a cosine",
    "PCAMatrix": "subtracts the mean from vectors, so it ranks by the inner products of the differences",
    "CenteringTransform": "subtracts the mean from vectors, so it ranks by the inner products of the differences",
}


def check_factory(factory: str, on_disk: bool = False) -> None:
    """Raise ``UserError`` if there is no dimension of vectors for which FAISS can build the described index.

    The error is also raised if the index does not rank by inner product, or if ``on_disk`` is set and the index has no
    inverted lists that can lie on disk.
    """
    check_values(factory)
    try:
        index = faiss.index_factory(DIM, factory, faiss.METRIC_INNER_PRODUCT)
    except (RuntimeError, MemoryError) as error:
        if BY_DIMENSION.search(str(error)):
            return
        known = "is unknown to FAISS's index_factory; give one such as 'IVF1024,Flat'"
        why = known if "could not parse" in str(error) else f"cannot be made for inner products ({_message(error)})"
        raise UserError(f"factory: {shown(factory)!r} {why}") from None
    measure(factory, index)
    if on_disk:
        check_on_disk(factory, index)


def check_on_disk(factory: str, index: Any) -> None:
    """Raise ``UserError`` unless all data that grow with the collection are in inverted lists that can lie on disk."""
    inner = faiss.downcast_index(index)  # the outer index must outlive it
    if isinstance(inner, faiss.IndexPreTransform):
        inner = faiss.downcast_index(inner.index)
    held: Any = inner.invlists if isinstance(inner, faiss.IndexIVF) else None
    lists = held and faiss.downcast_InvertedLists(held)
    if not isinstance(lists, faiss.ArrayInvertedLists) or isinstance(inner, faiss.IndexIVFPQR):
        known = "take one such as IVF65536,Flat or OPQ64,IVF65536,PQ64, or leave out on_disk"
        raise UserError(f"factory: {shown(factory)!r} keeps vectors outside of lists that can lie on disk; {known}")


def check_values(factory: str) -> None:
    """Raise ``UserError`` if a number in a description would make FAISS crash, run forever, or exhaust the memory."""
    ranges = [(r"(?:[A-Z][A-Za-z]*|[x_])(\d+)", 1, LARGEST), (r"(?:PQ|RQ|LSQ)[\dx]*x(\d+)", 1, BITS)]
    ranges += [(rf"{graph}(\d+)", *bounds) for graph, bounds in NEIGHBOURS.items()]
    for pattern, least, most in ranges:
        for found in re.finditer(pattern, factory):
            digits = found[1].lstrip("0") or "0"
            if len(digits) > len(str(LARGEST)) or not least <= int(digits) <= most:
                fault = f"{shown(found[1])} of {shown(found[0])!r} must be from {least:,} to {most:,}"
                raise UserError(f"factory: {shown(factory)!r} cannot be made: {fault}")


def measure(factory: str, index: Any, unit_length: bool = False) -> str | None:
    """Describe the transform within an index that changes the order of inner products; None if there is no such transform.

    Args:
        factory: the description, for error messages.
        index: the index that FAISS built from the description.
        unit_length: whether all vectors have norm 1. Then normalisation does not change the order.

    Raises:
        UserError: the index ranks by another measure than the inner product, or requires ids.
    """
    does = None
    for part in _parts(index):
        if isinstance(part, faiss.IndexIDMap):
            raise UserError(f"factory: {factory!r} needs ids of vectors, but vectors have no ids here; leave IDMap out")
        if part.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise UserError(f"factory: {factory!r} ranks by distance, exact search by inner product; take another")
        chain: Any = getattr(part, "chain", None)  # only an IndexPreTransform has one
        steps = 0 if chain is None else chain.size()
        for number in range(steps):
            kind = type(faiss.downcast_VectorTransform(chain.at(number))).__name__
            if not (kind == "NormalizationTransform" and unit_length):
                does = does or OTHER_MEASURES.get(kind)
    return does


def _parts(index: Any) -> Iterator[Any]:
    """Yield the index, and the indexes nested in it that influence the order. The outer index must outlive them."""
    index = faiss.downcast_index(index)
    yield index
    for name in ("index", "base_index", "refine_index"):
        inner = getattr(index, name, None)
        if isinstance(inner, faiss.Index):
            yield from _parts(inner)


@contextmanager
def said_by_faiss(factory: str) -> Iterator[None]:
    """Convert a FAISS exception raised in the ``with`` block into a ``UserError`` with FAISS's message."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        raise UserError(f"factory: FAISS cannot make {factory!r} of these vectors ({_message(error)})") from None


def _message(error: Exception) -> str:
    """Return FAISS's message on one line, without the location in its source code."""
    if isinstance(error, MemoryError):
        return "too little memory"
    message = re.split(r"\.cpp:\d+: ", str(error))[-1].rpartition("Error: ")[2]
    return " ".join((message.rpartition("failed: ")[2] or message or str(error)).split())
