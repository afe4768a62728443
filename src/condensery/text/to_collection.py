"""Make a collection of what a user's program passes: a folder, a list of texts, or an existing collection."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from condensery.errors import UserError
from condensery.system.cache import cached
from condensery.system.files import expanded
from condensery.system.inputs import FOLDER, fault, resolve
from condensery.text import read_collection
from condensery.text.collection import Collection
from condensery.text.formats.beir import BeirSource
from condensery.text.formats.documents import DocumentsSource
from condensery.text.formats.plain_text import TextSource
from condensery.text.hashes import texts_hash
from condensery.text.lines import whole_texts
from condensery.text.records import Passage
from condensery.text.writer import CollectionWriter

Given = str | Path | Sequence[str] | Collection


def collection_of(data: Given, splits: dict[str, str | None] | None = None) -> Collection:
    """Turn ``data`` into a collection.

    The collection of a folder or a list of texts is cached. Later calls with the same content open the cached collection.

    Args:
        data: a folder, a list of texts, or a ``Collection``. The folder has the BEIR layout (``corpus.jsonl``,
            ``queries.jsonl``, ``qrels/``), documents (``documents.jsonl``) or plain text (``*.txt``, ``*.md``). Each text
            of a list is a document.
        splits: for train, dev and test the name of the file in ``qrels/``, without ``.tsv``; None = all files that
            exist.

    Raises:
        UserError: the folder has none of these layouts, or cannot be read.
    """
    if isinstance(data, Collection):
        return data
    if isinstance(data, str | Path):
        source = _source(expanded(data), splits)
        return Collection(cached("collection", source.fingerprint(), lambda folder: read_collection(source, folder)))
    texts = whole_texts(data, "texts: text")
    content = f"texts {len(texts)} {texts_hash(texts)}"
    return Collection(cached("collection", content, lambda folder: _write(texts, folder)))


def _write(texts: Sequence[str], folder: Path) -> None:
    with CollectionWriter(folder, "texts", "texts", "drop") as writer:
        for number, text in enumerate(texts):
            writer.add_passage(Passage(str(number), "", text), f"texts[{number}]")


def _source(folder: Path, splits: dict[str, str | None] | None) -> Any:
    """Return the description of a folder. The files in the folder determine its format."""
    if why := fault(folder, FOLDER):
        raise UserError(f"{folder}: {why}; a folder of texts is expected")
    judged = {name: name if resolve(folder / "qrels" / f"{name}.tsv") else None for name in ("train", "dev", "test")}
    shared: dict[str, Any] = {
        "name": folder.absolute().name,
        "root": str(folder),
        "splits": judged if splits is None else {"train": None, "dev": None, "test": None} | splits,
        "empty_passages": "drop",
        "dev_queries": 500 if splits is None else 0,
        "unlabelled_queries": 0,
    }
    if resolve(folder / "corpus.jsonl"):
        return BeirSource.model_validate(shared | {"name": None, "documents": "auto"})
    if resolve(folder / "documents.jsonl"):
        own = {"documents": "documents.jsonl", "extra": [], "searched": "passages"}
        return DocumentsSource.model_validate(shared | own)
    return TextSource.model_validate(shared | {"minimum_words": 5})
