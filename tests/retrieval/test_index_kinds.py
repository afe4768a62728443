"""Kinds of indexes that other packages define: registered once, opened as any other."""

from pathlib import Path
from typing import Any

import pytest
from small_runs import some_text, write_beir

from condensery.errors import UserError
from condensery.retrieval.indexes import kinds
from condensery.retrieval.indexes.opening import open_index
from condensery.system.files import write_json
from condensery.text.to_collection import collection_of


class Own:
    """A retriever of another package."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __len__(self) -> int:
        return 12


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kinds, "_OPENED_BY", {})
    write_json(tmp_path / "index" / "index.json", {"method": "own", "passages": 12})
    return tmp_path / "index"


def test_a_registered_kind_is_opened(index: Path, tmp_path: Path) -> None:
    collection = collection_of(write_beir(tmp_path / "beir", some_text(documents=4)))
    with pytest.raises(UserError, match=r"index.json: unknown method 'own', expected bm25"):
        open_index(index, collection)
    kinds.register_index("own", f"{__name__}:Own")
    kinds.register_index("own", f"{__name__}:Own")  # a module that is imported twice
    opened: Any = open_index(index, collection, threads=3, memory=5, device="cpu")
    assert opened.arguments == (index, collection, 3, 5, "cpu")
    assert len(opened) == 12


def test_two_kinds_of_one_name_are_refused(index: Path) -> None:
    kinds.register_index("own", f"{__name__}:Own")
    with pytest.raises(ValueError, match="two kinds of indexes are called 'own'"):
        kinds.register_index("own", "elsewhere:open")
