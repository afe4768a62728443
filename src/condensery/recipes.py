"""Define the folder of the recipes, and the name of the program in messages."""

from pathlib import Path

RECIPES = Path(__file__).parent / "conf"
PROGRAM = "CONDENSERY_PROGRAM"  # environment variable: the program's name, unless it is ``python run.py``
INSTALLED = "condensery"
