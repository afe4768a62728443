"""The input formats of a collection. Each format has a module, which describes the files of the format and reads them.

A format consists of a description of the input and a reader. Other packages add formats with ``register_format``.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args

from condensery.text.source import DataConfig

if TYPE_CHECKING:
    from condensery.text.writer import CollectionWriter
else:
    CollectionWriter = Any  # the module imports Arrow, which a dry run does not need

Reader = Callable[[Any, CollectionWriter], None]  # called with a description and a writer
Format = tuple[type[DataConfig], Reader]  # the description of an input, and the reader of the input
ADDED: dict[str, Format] = {}


def register_format(source: type[DataConfig], read: Reader) -> None:
    """Add a format. The default of ``source.format`` is its name, and becomes a value of ``data.format``.

    A module named in ``CONDENSERY_STAGES`` calls this function when it is imported.

    Args:
        source: the description of the input, a pydantic model with ``format: Literal["name"] = "name"``.
        read: function that adds the passages, queries and judgements of the described input to a ``CollectionWriter``.

    Raises:
        ValueError: the name is taken, ``source`` declares the name in another way, or recipes have already been read.
    """
    name = str(source.model_fields["format"].default)
    if get_args(source.model_fields["format"].annotation) != (name,):
        raise ValueError(f'{source.__name__}: its field format must be as in format: Literal["name"] = "name"')
    if name in ADDED and ADDED[name] != (source, read):
        raise ValueError(f"two formats are called {name!r}; rename one of them")
    if name not in ADDED and "condensery.text.config" in sys.modules:
        raise ValueError(f"format {name!r}: register it before recipes are read, in a module of CONDENSERY_STAGES")
    ADDED[name] = (source, read)
