"""The defaults of a kind of stage, as ``conf/stage`` has them, references to other groups left as they are."""

from pathlib import Path
from typing import Any

import yaml

STAGES = Path(__file__).parents[1] / "conf" / "stage"


def defaults_of(kind: str) -> dict[str, Any]:
    """The keys of ``conf/stage/KIND.yaml`` over those of the shared files that its defaults list names."""
    return _read(STAGES / f"{kind}.yaml")


def _read(path: Path) -> dict[str, Any]:
    own = yaml.safe_load(path.read_text())
    found: dict[str, Any] = {}
    for entry in own.pop("defaults", []):
        if entry != "_self_":
            found |= _read(path.parent / f"{entry.removesuffix('@_here_')}.yaml")
    return found | own
