"""FAISS's descriptions of an index, such as ``IVF1024,PQ32``: which can be made, and what they rank by.

FAISS raises an exception on most that cannot be made; on some it crashes, or never ends.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import faiss

from condensery.errors import UserError, shown

LARGEST = 4_194_304  # number in a description: for so many lists of an IVF room is made at once
BITS = 16  # of a part of a code, at most: room for its 2**BITS centroids is made at once
NEIGHBOURS = {"HNSW": (2, 1024), "NSG": (8, 1024)}  # in a graph: with fewer FAISS crashes, or never ends
DIM = 960  # a multiple of most numbers of parts
BY_DIMENSION = re.compile(r"'[^']*\bd\w* % |ZnSphereSearch")  # in what FAISS says where other dimensions may do
OTHER_MEASURES = {  # FAISS's transforms that change the order of inner products
    "NormalizationTransform": "divides vectors by their lengths, so it ranks by cosine",
    "ITQTransform": "takes the mean off vectors and divides them by their lengths, so it ranks by a cosine",
    "PCAMatrix": "takes the mean off vectors, so it ranks by the inner products of what is left",
    "CenteringTransform": "takes the mean off vectors, so it ranks by the inner products of what is left",
}


def check_factory(factory: str) -> None:
    """Raise ``UserError`` where FAISS cannot make it, whatever the vectors, or not so that it ranks by inner product."""
    check_numbers(factory)
    try:
        index = faiss.index_factory(DIM, factory, faiss.METRIC_INNER_PRODUCT)
    except (RuntimeError, MemoryError) as error:
        if BY_DIMENSION.search(str(error)):
            return
        known = "is none that FAISS's index_factory knows, such as 'IVF1024,Flat'"
        why = known if "could not parse" in str(error) else f"cannot be made for inner products ({_said(error)})"
        raise UserError(f"factory: {shown(factory)!r} {why}") from None
    measure(factory, index)


def check_numbers(factory: str) -> None:
    """Raise ``UserError`` where FAISS would crash on a number, never end, or take all memory."""
    ranges = [(r"(?:[A-Z][A-Za-z]*|[x_])(\d+)", 1, LARGEST), (r"(?:PQ|RQ|LSQ)[\dx]*x(\d+)", 1, BITS)]
    ranges += [(rf"{graph}(\d+)", *bounds) for graph, bounds in NEIGHBOURS.items()]
    for pattern, least, most in ranges:
        for found in re.finditer(pattern, factory):
            digits = found[1].lstrip("0") or "0"
            if len(digits) > len(str(LARGEST)) or not least <= int(digits) <= most:
                fault = f"{shown(found[1])} of {shown(found[0])!r} must be from {least:,} to {most:,}"
                raise UserError(f"factory: {shown(factory)!r} cannot be made: {fault}")


def measure(factory: str, index: Any, unit_length: bool = False) -> str | None:
    """What an index does to vectors that changes the order of their inner products; None where nothing.

    ``unit_length``: all vectors have length 1, so that dividing by it does nothing. Raises ``UserError`` where the index
    ranks by something else than inner products, or wants ids.
    """
    does = None
    for part in _parts(index):
        if isinstance(part, faiss.IndexIDMap):
            raise UserError(f"factory: {factory!r} wants ids for vectors, which have none here; leave IDMap out")
        if part.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise UserError(f"factory: {factory!r} ranks by distance, exact search by inner product; take another")
        chain: Any = getattr(part, "chain", None)  # of an IndexPreTransform
        steps = 0 if chain is None else chain.size()
        for number in range(steps):
            kind = type(faiss.downcast_VectorTransform(chain.at(number))).__name__
            if not (kind == "NormalizationTransform" and unit_length):
                does = does or OTHER_MEASURES.get(kind)
    return does


def _parts(index: Any) -> Iterator[Any]:
    """The index, and those inside of it that have a say in the order. Their owner must outlive them."""
    index = faiss.downcast_index(index)
    yield index
    for name in ("index", "base_index", "refine_index"):
        inner = getattr(index, name, None)
        if isinstance(inner, faiss.Index):
            yield from _parts(inner)


@contextmanager
def said_by_faiss(factory: str) -> Iterator[None]:
    """Raise ``UserError`` with what FAISS says against what it is to do within."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        raise UserError(f"factory: FAISS cannot make {factory!r} of these vectors ({_said(error)})") from None


def _said(error: Exception) -> str:
    """FAISS's own words, on one line, without the place in its source."""
    if isinstance(error, MemoryError):
        return "too little memory"
    said = re.split(r"\.cpp:\d+: ", str(error))[-1].rpartition("Error: ")[2]
    return " ".join((said.rpartition("failed: ")[2] or said or str(error)).split())
