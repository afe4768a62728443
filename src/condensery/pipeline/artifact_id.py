"""Computes the id of an artifact from everything that can change its content."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from condensery.stages.base import StageConfig


def artifact_id(kind: str, version: int, config: StageConfig, made_from: Mapping[str, tuple[str, ...]]) -> str:
    """Return the id of a stage's artifact: 16 hexadecimal digits.

    The id is a digest of the kind, its version, the inputs' ids, and the parts of the config that can change the result
    (``StageConfig.identified_by``).

    Args:
        kind: kind of the stage.
        version: version of the kind.
        config: the checked config.
        made_from: field of the config -> references ``kind/id`` of the artifacts that it reads.
    """
    return digest([kind, version, *config.identified_by(made_from)], 8)


def digest(value: Any, size: int) -> str:
    """Return a digest of a JSON value, as ``size`` bytes in hexadecimal digits. The order of keys does not matter."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode(errors="backslashreplace"), digest_size=size).hexdigest()
