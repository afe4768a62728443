"""The folder of the recipes and the name of the program."""

from pathlib import Path

RECIPES = Path(__file__).parent / "conf"
PROGRAM = "CONDENSERY_PROGRAM"  # environment variable: the program's name, where that is not ``python run.py``
INSTALLED = "condensery"
