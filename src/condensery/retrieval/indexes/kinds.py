"""Registry of further kinds of indexes, which other packages define. It imports neither torch nor NumPy."""

from pkgutil import resolve_name
from typing import Any

_OPENED_BY: dict[str, str] = {}  # method -> the function that opens an index of this kind, as ``module:function``


def register_index(method: str, opener: str) -> None:
    """Register a kind of index, so that ``open_index`` opens it.

    Args:
        method: value of ``method`` in the ``index.json`` of such an index.
        opener: the function as ``module:function``, which is imported when an index is opened. It takes the folder, the
            collection, and the arguments ``threads``, ``memory`` and ``device`` of ``open_index``; it returns a
            ``CollectionRetriever``. If this retriever has a method ``search_texts``, it can search new queries too (``ask``).

    Raises:
        ValueError: another kind has this name.
    """
    if _OPENED_BY.setdefault(method, opener) != opener:
        raise ValueError(f"two kinds of indexes are called {method!r}: {_OPENED_BY[method]} and {opener}")


def opener_of(method: str) -> Any:
    """Return the function that opens a registered kind of index; None if the kind is not registered."""
    return resolve_name(_OPENED_BY[method]) if method in _OPENED_BY else None
