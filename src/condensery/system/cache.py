"""A cache for users' own programs: folders that are made once from texts, and found again by the content of the texts.

The folders lie in ``$CONDENSERY_CACHE`` or ``~/.cache/condensery`` and may be deleted at any time. Recipes do not use this
cache; they have an artifact store.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from condensery.system.files import atomic


def cache_folder() -> Path:
    """The folder of everything that is remembered across runs: ``CONDENSERY_CACHE``, or ``~/.cache/condensery``."""
    return Path(os.environ.get("CONDENSERY_CACHE") or Path.home() / ".cache" / "condensery")


def cached(kind: str, content: str, make: Callable[[Path], object]) -> Path:
    """The cached folder of this ``kind`` for this ``content``.

    Where the folder is missing, ``make`` fills it; it appears whole or not at all.
    """
    folder = cache_folder() / kind / hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
    if not folder.is_dir():
        try:
            with atomic(folder) as temporary:
                temporary.mkdir(parents=True)
                make(temporary)
        except OSError:
            if not folder.is_dir():  # another program may have been first, with the same result
                raise
    return folder
