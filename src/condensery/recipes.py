"""Define the folder of the recipes, the stages and keys that the program treats specially, and the program's name."""

from pathlib import Path

RECIPES = Path(__file__).parent / "conf"
PROGRAM = "CONDENSERY_PROGRAM"  # environment variable: the program's name, unless it is ``python run.py``
INSTALLED = "condensery"
ADDED_FIRST = ("corpus", "tokenizer", "tokens")  # names (and kinds) of stages added if another stage reads them
# kinds of stages that are added between two stages
ADDED_BETWEEN = ("encode", "evaluate", "late_interaction_index", "splade_index", "token_vectors")
RUN_LENGTHS = ("steps", "epochs", "token_budget")  # configuration keys; one of them sets the length of a training stage
