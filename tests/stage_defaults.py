"""The defaults of a kind of stage, as ``conf/stage`` has them, references to other groups left as they are."""

from pathlib import Path
from typing import Any

import yaml

STAGES = Path(__file__).parents[1] / "conf" / "stage"


def defaults_of(kind: str) -> dict[str, Any]:
    """The keys of ``conf/stage/KIND.yaml``."""
    return dict(yaml.safe_load((STAGES / f"{kind}.yaml").read_text()))
