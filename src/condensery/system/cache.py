"""A cache for users' own programs: folders that are computed once from texts and looked up by the content of the texts.

The folders lie in ``$CONDENSERY_CACHE`` or ``~/.cache/condensery`` and may be deleted at any time. Recipes do not use this
cache, because they have an artifact store.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from condensery.errors import DiskError, of_the_disk
from condensery.system.files import atomic


def cache_folder() -> Path:
    """Return the folder of all data that is cached across runs: ``CONDENSERY_CACHE``, or ``~/.cache/condensery``."""
    return Path(os.environ.get("CONDENSERY_CACHE") or os.path.expanduser("~/.cache/condensery").removeprefix("~/"))


def cached(kind: str, content: str, make: Callable[[Path], object]) -> Path:
    """Return the cached folder of this ``kind`` for this ``content``.

    If the folder is missing, ``make`` fills it. The folder appears only once it is complete.
    """
    folder = cache_folder() / kind / hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
    if not folder.is_dir():
        try:
            with atomic(folder) as temporary:
                temporary.mkdir(parents=True)
                make(temporary)
        except OSError as error:
            if folder.is_dir():  # another program has created the same folder first
                return folder
            if disk := of_the_disk(error):
                raise DiskError(f"{disk}; CONDENSERY_CACHE names the folder of what is cached") from None
            raise
    return folder
