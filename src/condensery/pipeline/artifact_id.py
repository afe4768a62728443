"""Computes the id of an artifact from everything that can change its content."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any


def artifact_id(kind: str, version: int, identified_by: Sequence[Any]) -> str:
    """Return the id of a stage's artifact: 16 hexadecimal digits.

    Args:
        kind: kind of the stage.
        version: version of the kind.
        identified_by: the inputs' ids, and the parts of the config that can change the result
            (``StageConfig.identified_by``).
    """
    return digest([kind, version, *identified_by], 8)


def digest(value: Any, size: int) -> str:
    """Return a digest of a JSON value, as ``size`` bytes in hexadecimal digits. The order of keys does not matter."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode(errors="backslashreplace"), digest_size=size).hexdigest()
