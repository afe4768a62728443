"""Descriptions of FAISS's indexes: one that it cannot make, crashes on or makes for another measure is one line."""

import faiss
import pytest

from condensery.errors import UserError
from condensery.retrieval.indexes.faiss_descriptions import check_factory, measure


@pytest.mark.parametrize(
    "factory",
    [
        *("Flat", "IVF1024,Flat", "IVF4096,PQ64", "HNSW32", "HNSW16,SQ8", "IVF64,PQ32,RFlat", "IVF64_HNSW32,Flat"),
        *("PQ7", "PRQ2x20x8", "OPQ16_64,IVF64,PQ16x4fsr", "RR64,Flat", "L2norm,IVF64,Flat", "PCA64,Flat", "NSG16"),
    ],
)
def test_what_may_be_made_of_some_vectors_is_known(factory: str) -> None:
    check_factory(factory)


@pytest.mark.parametrize("factory", ["", ",", "nonsense", "Flat,", "IVF1q00,Flat", "IVF-1,Flat", "BIVF16", "IVF16"])
def test_what_is_no_description_is_one_line(factory: str) -> None:
    with pytest.raises(
        UserError, match=rf"^factory: '{factory}' is unknown to FAISS's index_factory; give one such as"
    ):
        check_factory(factory)


@pytest.mark.parametrize(
    ("factory", "fault"),
    [
        ("PQ4x0", "0 of 'x0' must be from 1 "),  # FAISS divides by zero
        ("HNSW0", "0 of 'HNSW0' must be"),  # an assertion ends the process
        ("HNSW1", "1 of 'HNSW1' must be from 2 to 1,024"),  # it reads what is not there
        ("IVF20_HNSW1,Flat", "1 of 'HNSW1' must be"),
        ("NSG4", "4 of 'NSG4' must be from 8 to 1,024"),  # it never ends
        ("IVF0,Flat", "0 of 'IVF0' must be"),
        ("PCA0,Flat", "0 of 'PCA0' must be"),
        ("PQ4x24", "24 of 'PQ4x24' must be from 1 to 16"),  # 64 GB of centroids
        ("IVF99999999999,Flat", "99999999999 of 'IVF99999999999' must be from 1 to 4,194,304"),
        (f"IVF{'9' * 5_000},Flat", "must be from 1 to 4,194,304"),
    ],
)
def test_numbers_that_faiss_crashes_on_are_one_line(factory: str, fault: str) -> None:
    with pytest.raises(UserError, match=r"^factory: .* cannot be made: ") as caught:
        check_factory(factory)
    assert fault in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("factory", ["HNSW16_PQ4x4", "HNSW16,PQ4", "HNSW16_2+PQ4"])
def test_an_index_of_distances_is_refused(factory: str) -> None:
    with pytest.raises(UserError, match="ranks by distance, exact search by inner product"):
        check_factory(factory)


@pytest.mark.parametrize("factory", ["LSH", "IMI2x8,Flat", "Residual4x4"])
def test_what_knows_distances_alone_is_refused(factory: str) -> None:
    with pytest.raises(UserError, match="cannot be made for inner products"):
        check_factory(factory)


@pytest.mark.parametrize("factory", ["IDMap,Flat", "IDMap2,IVF64,Flat"])
def test_an_index_with_ids_is_refused(factory: str) -> None:
    with pytest.raises(UserError, match="leave IDMap out"):
        check_factory(factory)


@pytest.mark.parametrize(
    ("factory", "does"),
    [
        ("Flat", None),
        ("RR8,Flat", None),
        ("OPQ4_8,IVF4,PQ4", None),
        ("L2norm,Flat", "cosine"),
        ("RR8,L2norm,IVF4,Flat", "cosine"),
        ("PQ4,Refine(L2norm,Flat)", "cosine"),
        ("L2norm,Flat,RFlat", "cosine"),
        ("PCA8,Flat", "subtracts the mean"),
        ("PCAR8,IVF4,Flat", "subtracts the mean"),
        ("ITQ8,Flat", "subtracts the mean"),
    ],
)
def test_what_changes_the_order_of_inner_products_is_told(factory: str, does: str | None) -> None:
    index = faiss.index_factory(16, factory, faiss.METRIC_INNER_PRODUCT)
    said = measure(factory, index)
    assert (said is None) if does is None else (does in str(said))
    of_unit_length = measure(factory, index, unit_length=True)
    assert of_unit_length == (said if "L2norm" not in factory else None)
