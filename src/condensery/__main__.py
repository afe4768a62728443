"""``python -m condensery``: the command ``condensery``."""

import sys

from condensery.command import installed

if __name__ == "__main__":
    sys.exit(installed())
