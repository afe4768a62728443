"""The input formats of a collection, one module each: it describes the files of a format and reads them.

Other packages add formats of their own by ``register_format``: a description of the input and its reader.
"""

import sys
from collections.abc import Callable
from typing import Any

from condensery.text.source import DataConfig

Reader = Callable[[Any, Any], None]  # called with a description and a ``CollectionWriter``
Format = tuple[type[DataConfig], Reader]  # the description of an input, and its reader
ADDED: dict[str, Format] = {}


def register_format(source: type[DataConfig], read: Reader) -> None:
    """Add a value to ``data.format``: the default of the field ``format`` of ``source``.

    A module named in ``CONDENSERY_STAGES`` calls this function when it is imported.

    Args:
        source: the description, a pydantic model with ``format: Literal["name"] = "name"``.
        read: adds the passages, queries and judgements of a description to a ``CollectionWriter``.

    Raises:
        ValueError: the name is taken, or recipes were read already.
    """
    name = str(source.model_fields["format"].default)
    if name in ADDED and ADDED[name] != (source, read):
        raise ValueError(f"there are two formats called {name!r}")
    if name not in ADDED and "condensery.text.config" in sys.modules:
        raise ValueError(
            f"format {name!r}: register it before recipes are read, in a module named in CONDENSERY_STAGES"
        )
    ADDED[name] = (source, read)
