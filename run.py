"""The command line: `python run.py experiment=quickstart`. `python run.py --help` says the rest."""

import sys
from pathlib import Path

try:
    from condensery.command import start
except ModuleNotFoundError as missing:
    sys.exit(
        f"error: {missing.name} is not installed for {sys.executable}: `make install && source .venv/bin/activate`"
    )

if __name__ == "__main__":
    home = Path(__file__).resolve().parent
    sys.exit(start(home, home / "conf"))
