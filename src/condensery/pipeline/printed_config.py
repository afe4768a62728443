"""The part of the composed config that ``--cfg`` prints: from ``stage`` only the kinds that the recipe uses."""

import re

from omegaconf import DictConfig, OmegaConf, open_dict

from condensery.pipeline.training_length import items

BY_THEMSELVES = ("corpus", "tokenizer", "tokens")  # names (and kinds) of stages that are added if another reads them
BETWEEN = ("encode", "evaluate", "token_vectors")  # kinds that are added between two stages
KIND = re.compile(r"\$\{stage\.(\w+)")


def leave_used_kinds(config: DictConfig) -> None:
    """Remove each kind that no stage has, that is not added automatically, and that no reference names.

    Without a recipe all kinds stay.
    """
    stages = items(config.get("stages"))
    used = {str(dict(items(settings)).get("stage")) for _, settings in stages} | {*BY_THEMSELVES, *BETWEEN}
    looked_at: set[str] = set()
    while new := used - looked_at:
        looked_at |= new
        read = [config.stages, *(config.stage[kind] for kind in new if kind in config.stage)]
        used.update(kind for node in read for kind in KIND.findall(OmegaConf.to_yaml(node)))
    with open_dict(config):
        for kind in set(config.stage) - used if stages else ():
            del config.stage[kind]
