"""Checks, before anything is computed, that the hub has the checkpoints that stages load by name."""

from collections.abc import Mapping

from omegaconf import DictConfig, OmegaConf

from condensery.errors import UserError
from condensery.models.checkpoints.hub import check_on_hub
from condensery.pipeline.artifact_store import State
from condensery.pipeline.graph import Graph
from condensery.system.files import expanded, is_hub_name

LOADS = {"retriever": "folder", "cross_encoder": "folder", "tokenizer": "name"}  # kind of stage -> key of a checkpoint


def check(graph: Graph, states: Mapping[str, State], config: DictConfig) -> None:
    """Check the checkpoints of the stages that will be computed.

    Raises:
        UserError: the hub lacks a name, or the hub cannot be reached and its cache lacks the name.
    """
    for node in graph.nodes.values():
        name = str(getattr(node.config, LOADS.get(node.kind, ""), None) or "")
        if states[node.name] == "hit" or not is_hub_name(name) or expanded(name).is_dir():
            continue
        keys = (key for key in ("backbone.name", "backbone.tokenizer") if OmegaConf.select(config, key) == name)
        try:
            check_on_hub(name, getattr(node.config, "revision", None))
        except UserError as error:
            raise UserError(f"{next(keys, f'stages.{node.name}.{LOADS[node.kind]}')}: {error}") from None
