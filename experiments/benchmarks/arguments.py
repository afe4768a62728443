"""Read the arguments of a program. This module imports nothing that takes long."""

import sys


def given(document: str | None, **defaults: str) -> dict[str, str]:
    """Return ``defaults``, updated by the arguments ``key=value``. Any other argument ends the program with the usage."""
    usage = next(line.strip() for line in (document or "").splitlines() if line.startswith("    python"))
    pairs = [argument.partition("=") for argument in sys.argv[1:]]
    if any(not value or key not in defaults for key, _, value in pairs):
        sys.exit(f"usage: {usage}")
    return defaults | {key: value for key, _, value in pairs}
