"""The embedded collection: no query in the text, no module in two splits, the same whatever the workers."""

import sys
from pathlib import Path

import pytest

from condensery.errors import UserError
from condensery.text import read_collection
from condensery.text.collection import Collection
from condensery.text.duplicates import contained, first_of_each, sketches, words
from condensery.text.formats import pydocs
from condensery.text.formats.pydocs import source_files, split_of

from .conftest import Make

BODY = "{0} explains {0} at some {0} length, in many more than fifteen {0} words, and {0} says no more than {0} needs."


def docstring(name: str, sentence: str = "") -> str:
    sentence = sentence or f"Do what {name} does."
    return f'def f_{name}():\n    """{sentence}\n\n    {BODY.format(name)}\n    """\n'


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package ``toy`` with what the reader must treat with care."""
    root = tmp_path / "site" / "toy"
    (root / "tests").mkdir(parents=True)
    (root / "__init__.py").write_text(docstring("alpha"))
    (root / "copies.py").write_text(docstring("alpha") + docstring("beta"))
    (root / "same.py").write_text(
        docstring("gamma", "The same sentence here.") + docstring("delta", "The same sentence here!")
    )
    quoting = docstring("zeta").replace('\n    """\n', '\n\n    Not: do what eta does.\n    """\n')
    (root / "quoting.py").write_text(docstring("eta") + quoting)
    (root / "tests" / "test_it.py").write_text(docstring("theta"))
    (root / "modular_it.py").write_text(docstring("iota"))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return root


@pytest.fixture(scope="module")
def stdlib(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Collection:
    from condensery.text.formats.pydocs import PydocsSource

    made = PydocsSource(
        name="s",
        packages=["stdlib"],
        minimum_words=15,
        near_duplicate=0.7,
        workers=2,
        empty_passages="error",
        dev_queries=0,
        unlabelled_queries=0,
    )
    return read_collection(made, tmp_path_factory.mktemp("stdlib"))


def test_copies_repeated_sentences_and_quoted_sentences_are_dealt_with(
    tmp_path: Path, config: Make, package: Path
) -> None:
    collection = read_collection(config("pydocs", packages=["toy"], workers=1), tmp_path / "out")
    assert collection.passages.ids == [
        "toy:2",
        "toy.copies:7",
        "toy.quoting:2",
        "toy.quoting:7",
        "toy.same:2",
        "toy.same:7",
    ]
    assert collection.queries.column("text")[:] == ["Do what alpha does.", "Do what beta does.", "Do what zeta does."]
    assert collection.description["dropped"] == {
        "near_duplicates": 1,
        "queries_inside_passages": 1,
        "repeated_queries": 2,
    }


def test_the_collection_does_not_depend_on_the_number_of_workers(
    tmp_path: Path, config: Make, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("condensery.text.formats.pydocs.FILES", 1)
    hashes = {
        workers: read_collection(
            config("pydocs", packages=["toy"], workers=workers), tmp_path / str(workers)
        ).content_hash
        for workers in (1, 3)
    }
    assert len(set(hashes.values())) == 1


def test_boilerplate_paragraphs_are_taken_away(
    tmp_path: Path, config: Make, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("condensery.text.formats.pydocs.BOILERPLATE", 2)
    for name in ("m1", "m2", "m3"):
        text = docstring(name * 3).replace('\n    """\n', '\n\n    Inherits from the base.\n    """\n')
        (package / f"{name}.py").write_text(text)
    texts = list(
        read_collection(config("pydocs", packages=["toy"], workers=1), tmp_path / "out").passages.column("text")
    )
    assert sum("m1m1m1 explains" in text for text in texts) == 1
    assert not any("Inherits" in text for text in texts)


def test_the_identity_follows_versions_and_sizes_but_not_workers(config: Make, package: Path) -> None:
    first = config("pydocs", packages=["toy"], workers=1).fingerprint()
    assert config("pydocs", packages=["toy"], workers=4).fingerprint() == first
    assert config("pydocs", packages=["toy"], minimum_words=20).fingerprint() != first
    (package / "new.py").write_text(docstring("kappa"))
    pydocs._files_below.cache_clear()  # as in the next process
    assert config("pydocs", packages=["toy"], workers=1).fingerprint() != first


def test_nothing_is_fetched_for_it(config: Make, package: Path) -> None:
    source = config("pydocs", packages=["toy"])
    assert source.wanted() == []
    source.fetch()


def test_tests_and_generated_copies_are_not_read(package: Path) -> None:
    assert [file.module for file in source_files("toy")] == ["toy", "toy.copies", "toy.quoting", "toy.same"]


@pytest.mark.parametrize("name", ["no_such_package", "not a name", "os.path", "this"])
def test_a_package_that_is_not_installed_is_a_clear_error(config: Make, name: str) -> None:
    with pytest.raises(UserError, match=f'data.packages: no package "{name}"'):
        config("pydocs", packages=["stdlib", name]).check()


def test_checking_imports_no_package(config: Make, package: Path) -> None:
    config("pydocs", packages=["toy"]).check()
    assert "toy" not in sys.modules


def test_no_query_of_the_standard_library_is_in_its_passages(stdlib: Collection) -> None:
    queries, passages = list(stdlib.queries.column("text")), list(stdlib.passages.column("text"))
    assert not any(contained(queries, passages))
    assert len({" ".join(words(query)) for query in queries}) == len(queries)
    assert all(3 <= len(query.split()) <= 32 for query in queries)
    assert all(len(passage.split()) >= 15 and ">>>" not in passage for passage in passages)


def test_the_standard_library_is_large_enough_and_split_by_module(stdlib: Collection) -> None:
    assert len(stdlib.passages) > 2_000
    queries = {split: len(stdlib.qrels(split).query_set) for split in stdlib.splits}
    total = sum(queries.values())
    assert 0.7 < queries["train"] / total < 0.9
    assert queries["test"] > 200
    assert queries["dev"] > 50
    document = stdlib.passages.column("document")
    modules = {split: set(document.take(stdlib.qrels(split).passage_rows)) for split in stdlib.splits}
    assert not modules["train"] & modules["test"]
    assert all(split_of(module) == "dev" for module in modules["dev"])


def test_no_two_passages_of_the_standard_library_are_near_duplicates(stdlib: Collection) -> None:
    # boilerplate is taken away after the comparison, so a handful may have come closer to each other
    keep = first_of_each(sketches(stdlib.passages.column("text")[:]), 0.7)
    assert len(keep) - sum(keep) <= 5
