"""The defaults of a kind of stage from ``conf/stage``, with unresolved references to other groups."""

from pathlib import Path
from typing import Any

import yaml

STAGES = Path(__file__).parents[1] / "conf" / "stage"


def defaults_of(kind: str) -> dict[str, Any]:
    """Return the keys of ``conf/stage/KIND.yaml`` with their values."""
    return dict(yaml.safe_load((STAGES / f"{kind}.yaml").read_text()))
