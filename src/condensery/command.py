"""Start the command line, for ``python run.py`` and for the installed command ``condensery``."""

import gc
import os
import signal
from pathlib import Path

from condensery.recipes import INSTALLED, PROGRAM, RECIPES
from condensery.system.memory_growth import restart_flat


def start(home: Path, recipes: Path, called: str = "") -> int:
    """Run the command line and return the exit code.

    Args:
        home: the folder that contains ``outputs``.
        recipes: the folder ``conf``.
        called: name of the command in messages; empty = ``python run.py``.
    """
    os.environ[PROGRAM] = called
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # while libraries are imported, Ctrl-C ends the program silently
    restart_flat()  # may restart the program, so it runs before the large libraries are imported
    gc.disable()  # imports create no garbage; `main` enables the collector again

    import hydra

    from condensery.cli import main, run_program

    return run_program(hydra.main(version_base="1.3", config_path=str(recipes), config_name="config")(main), home)


def installed() -> int:
    """Run the command ``condensery`` and return the exit code. Its outputs are written under the current folder."""
    return start(Path(), RECIPES, INSTALLED)
