"""The command line: `python run.py experiment=quickstart`. `python run.py --help` says the rest."""

import sys
from pathlib import Path

from condensery.command import start

if __name__ == "__main__":
    home = Path(__file__).resolve().parent
    sys.exit(start(home, home / "conf"))
