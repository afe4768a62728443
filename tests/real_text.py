"""Real text that every machine has: docstrings of some modules of the standard library, as ids of a vocabulary."""

import importlib
import inspect
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from condensery.system.files import write_json
from condensery.tokens.store import TokenStore

MODULES = (
    *("argparse", "collections", "csv", "datetime", "decimal", "email.message", "fractions", "json", "logging"),
    *("mailbox", "os", "pathlib", "random", "shutil", "socket", "statistics", "subprocess", "tarfile", "threading"),
    *("turtle", "unittest", "urllib.request", "xml.dom.minidom", "zipfile"),
)
SPECIAL = 5  # number of special tokens, as in ``textbook.vocabulary``; UNKNOWN is the last of them
UNKNOWN = 4


@dataclass(frozen=True)
class Prose:
    """Documents, each a list of texts, each a list of token ids.

    ``size``: number of ids in the vocabulary. The first are special tokens, and some ids occur in no text.
    """

    documents: list[list[list[int]]]
    size: int

    @property
    def texts(self) -> list[list[int]]:
        """The texts of all documents in one list."""
        return [text for document in self.documents for text in document]


def prose(size: int = 600, without: int = 0) -> Prose:
    """Return one document per module, with one text per docstring. Words that are not frequent enough become UNKNOWN.

    ``without``: number of ids at the end of the vocabulary that occur in no text.
    """
    words = [[re.findall(r"\w+|[^\w\s]", text.lower()) for text in _docstrings(module)] for module in MODULES]
    counted = Counter(word for document in words for text in document for word in text)
    kept = [word for word, _ in counted.most_common(size - SPECIAL - without)]
    ids = {word: SPECIAL + number for number, word in enumerate(kept)}
    return Prose([[[ids.get(word, UNKNOWN) for word in text] for text in document] for document in words], size)


def _docstrings(module: str) -> list[str]:
    """Return the distinct docstrings of a module's classes, functions and methods."""
    loaded = importlib.import_module(module)
    members = [loaded, *vars(loaded).values()]
    owned = [one for one in members[1:] if inspect.isclass(one) and one.__module__ == module]
    members += [method for one in owned for method in vars(one).values()]
    found = (inspect.getdoc(one) for one in members if inspect.isroutine(one) or inspect.isclass(one))
    return list(dict.fromkeys(text for text in found if text))


def write_store(folder: Path, documents: list[list[list[int]]]) -> TokenStore:
    """Write a token store with these ids, and open it."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = [text for document in documents for text in document]
    ids = np.asarray([number for text in texts for number in text], np.uint16)
    ids.tofile(folder / "tokens.bin")
    _save_edges(folder / "starts.npy", [len(text) for text in texts])
    _save_edges(folder / "documents.npy", [len(document) for document in documents])
    about = {"texts": len(texts), "tokens": len(ids), "sentences": -1, "documents": len(documents)}
    write_json(folder / "store.json", {"dtype": "uint16", **about})
    return TokenStore(folder)


def _save_edges(path: Path, lengths: list[int]) -> NDArray[np.int64]:
    edges = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    np.save(path, edges)
    return edges
