"""Where the recipes lie, and what the program is called."""

from pathlib import Path

RECIPES = Path(__file__).parent / "conf"
PROGRAM = "CONDENSERY_PROGRAM"  # environment variable: what the program is called, where that is not ``python run.py``
INSTALLED = "condensery"
