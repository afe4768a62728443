"""What a program of one's own makes of its texts once, and finds again: folders known by their content.

They lie in ``$CONDENSERY_CACHE`` or ``~/.cache/condensery`` and may be deleted at any time. Recipes do not use them; they
have an artifact store.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from condensery.system.files import atomic


def cache_folder() -> Path:
    """Where things are remembered across runs: ``CONDENSERY_CACHE``, or ``~/.cache/condensery``."""
    return Path(os.environ.get("CONDENSERY_CACHE") or Path.home() / ".cache" / "condensery")


def cached(kind: str, content: str, make: Callable[[Path], object]) -> Path:
    """The folder of this ``kind`` for this ``content``; where it is not there, ``make`` fills it, whole or not at all."""
    folder = cache_folder() / kind / hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
    if not folder.is_dir():
        try:
            with atomic(folder) as temporary:
                temporary.mkdir(parents=True)
                make(temporary)
        except OSError:
            if not folder.is_dir():  # another program may have been first; what it made is the same
                raise
    return folder
