"""Count what a sweep saves by sharing stages: the stages that its jobs need, and those to compute. Nothing is run.

    python experiments/benchmarks/sweep_reuse.py [experiment=ablation/low_data] [more=]

``more``: further overrides, separated by spaces. The program composes every job of the recipe's own sweep, counts, and prints
one JSON line:

    jobs, stages, artifacts    jobs; stages of all jobs; different artifacts of these stages
    ratio                      stages / artifacts: the work without reuse divided by the work with it
    training_ratio             this ratio for the stages that train
"""

import json
from itertools import product
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from sizes import given

from condensery.pipeline import recipe_guard
from condensery.pipeline.graph import build

CONF = Path(__file__).resolve().parents[2] / "conf"
TRAINING = ("pretrain", "finetune", "train")  # beginnings of the names of stages that train


def jobs(overrides: list[str]) -> list[list[str]]:
    """Return the overrides of each job of a recipe's sweep."""
    cfg = compose("config", overrides, return_hydra_config=True)
    swept = OmegaConf.select(cfg, "hydra.sweeper.params") or {}
    choices = [chosen(f"{key}={values}") for key, values in swept.items()]
    return [[*overrides, *one] for one in product(*choices)]


def chosen(swept: str) -> list[str]:
    """Return the overrides that an override of a sweep, such as ``seed=1,2``, stands for."""
    override = OverridesParser.create().parse_override(swept)
    key = swept.partition("=")[0]
    return [f"{key}={value}" for value in override.sweep_string_iterator()] if override.is_sweep_override() else [swept]


def main(experiment: str, more: str) -> None:
    """Compose, count and print the line."""
    recipe_guard.install(home=CONF.parent)  # so that recipes are composed as by run.py
    with initialize_config_dir(str(CONF), version_base="1.3"):
        every = jobs([f"experiment={experiment}", *more.split()])
        graphs = [build(compose("config", overrides)) for overrides in every]
    stages = [(node.kind, node.id) for graph in graphs for node in graph.nodes.values()]
    trained = [stage for stage in stages if stage[0].startswith(TRAINING)]
    result = {
        "experiment": experiment,
        "jobs": len(graphs),
        "stages": len(stages),
        "artifacts": len(set(stages)),
        "ratio": round(len(stages) / len(set(stages)), 2),
        "training_ratio": round(len(trained) / len(set(trained)), 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(**given(__doc__, experiment="ablation/low_data", more=""))
