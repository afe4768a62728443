"""The door: `python run.py experiment=quickstart`. `python run.py --help` tells the rest."""

import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig

from condensery.cli import door, main
from condensery.memory import restart_flat


@hydra.main(config_path="conf", config_name="config", version_base="1.3")
def run(cfg: DictConfig) -> None:
    """Run the composed config."""
    main(cfg)


if __name__ == "__main__":
    restart_flat()
    sys.exit(door(run, home=Path(__file__).resolve().parent))
