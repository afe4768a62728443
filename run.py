"""The door: `python run.py experiment=quickstart`. `python run.py --help` tells the rest."""

import gc
import signal
import sys
from pathlib import Path

from condensery.memory import restart_flat

if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # while libraries are imported, Ctrl-C ends it without a word
    restart_flat()  # before anything else is imported, so that nothing is imported twice
    gc.disable()  # there is no garbage to find while libraries are imported; `main` switches it on

import hydra
from omegaconf import DictConfig

from condensery.cli import door, main


@hydra.main(config_path="conf", config_name="config", version_base="1.3")
def run(cfg: DictConfig) -> None:
    """Run the composed config."""
    main(cfg)


if __name__ == "__main__":
    sys.exit(door(run, home=Path(__file__).resolve().parent))
