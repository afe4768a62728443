"""Descriptions of inputs: shipped files, unknown keys, identities, and how little is imported for them."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from condensery.retrieval.searchers.base import hash_of_passages
from condensery.text import hashes
from condensery.text.to_collection import collection_of

from .conftest import Make, Write

Files = dict[str, str | bytes]
CHOICES = [
    *("beir", "documents", "msmarco", "msmarco_documents", "nq", "pydocs", "pydocs_stdlib", "squad", "tevatron"),
    *("text", "triviaqa", "msmarco_web"),
]
BY_NAME = ["huggingface", "huggingface_documents", "huggingface_triples", "ir_datasets"]


@pytest.mark.parametrize("choice", [*CHOICES, *BY_NAME])
def test_each_shipped_description_is_complete_and_commented(project: Path, config: Make, choice: str) -> None:
    where = (
        {"name": "beir/scifact"} if choice in BY_NAME else {} if choice.startswith("pydocs") else {"root": "somewhere"}
    )
    config(choice, **where)
    for line in (project / "conf" / "data" / f"{choice}.yaml").read_text().splitlines():
        key = re.match(r"\s*(\w+):", line)
        if key and key[1] != "defaults":
            assert "# " in line, line


def test_every_shipped_description_is_tested(project: Path) -> None:
    assert sorted(path.stem for path in (project / "conf" / "data").glob("*.yaml")) == sorted([*CHOICES, *BY_NAME])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rot": "x"}, "rot"),
        ({"dev_queries": "many"}, "dev_queries"),
        ({"unlabelled_queries": "many"}, "unlabelled_queries"),
        ({"unlabelled_queries": -1}, "unlabelled_queries"),
        ({"splits": {"train": "a"}}, "test"),
        ({"root": ""}, "root"),
    ],
)
def test_unknown_keys_and_wrong_types_are_refused(config: Make, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        config("beir", **({"root": "x"} | changes))


def test_the_identity_is_that_of_the_content_not_of_the_place(
    tmp_path: Path, config: Make, write: Write, beir_files: Files
) -> None:
    here = config("beir", root=write(beir_files))
    first = here.fingerprint()
    (tmp_path / "input").rename(tmp_path / "elsewhere")
    assert config("beir", root=tmp_path / "elsewhere").fingerprint() == first
    assert config("beir", root=tmp_path / "elsewhere", dev_queries=1).fingerprint() != first
    assert config("beir", root=tmp_path / "elsewhere", unlabelled_queries=1).fingerprint() != first
    corpus = tmp_path / "elsewhere" / "corpus.jsonl"
    corpus.write_text(corpus.read_text().replace("Dogs", "Cats"))  # the same size
    assert config("beir", root=tmp_path / "elsewhere").fingerprint() != first


def test_a_beir_folder_without_a_name_is_called_like_its_folder(config: Make) -> None:
    assert config("beir", name=None, root="data/beir/scifact/").name == "scifact"
    assert config("beir", name=None, root="data/beir/cqadupstack/tex").name == "cqadupstack/tex"
    assert config("beir", name="own", root="data/beir/scifact").name == "own"
    with pytest.raises(ValidationError, match="name"):
        config("text", name=None, root="data/beir/scifact")


def test_a_hash_is_remembered_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []
    whole = hashes.content_hash

    def counted(path: Path) -> str:
        calls.append(path)
        return whole(path)

    monkeypatch.setattr(hashes, "content_hash", counted)
    path = tmp_path / "file"
    path.write_text("one")
    old = time.time() - 60
    os.utime(path, (old, old))
    first = hashes.content_hashes([path])
    assert hashes.content_hashes([path]) == first
    assert len(calls) == 1
    path.write_text("two")
    assert hashes.content_hashes([path]) != first
    hashes.content_hashes([path])  # too fresh to be remembered: its time stamp could hide another change
    assert len(calls) == 3


def test_a_copy_that_kept_its_time_stamp_is_another_file(tmp_path: Path) -> None:
    path, old = tmp_path / "file", time.time() - 60
    path.write_text("one")
    os.utime(path, (old, old))
    first = hashes.content_hashes([path])
    path.write_text("two")
    os.utime(path, (old, old))
    assert hashes.content_hashes([path]) != first


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("a file in the way")
    monkeypatch.setenv("CONDENSERY_CACHE", str(tmp_path / "cache"))
    (tmp_path / "file").write_text("one")
    assert hashes.content_hashes([tmp_path / "file"]) == hashes.content_hashes([tmp_path / "file"])


def test_texts_with_nul_are_not_taken_for_other_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDENSERY_CACHE", str(tmp_path / "cache"))
    for texts in (["a\0b", "c"], ["a", "b\0c"]):
        assert collection_of(texts).passages.column("text")[:] == texts
    assert hash_of_passages(["1"], ["a\0b"], ["c"]) != hash_of_passages(["1"], ["a"], ["b\0c"])


def test_descriptions_import_neither_torch_nor_arrow() -> None:
    code = (
        "import sys; from condensery.text import config, read_collection;"
        "print([name for name in ('torch', 'transformers', 'scipy', 'datasketch', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
