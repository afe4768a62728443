"""The task of processes that compute a stage together, and the names of the files that they exchange in a folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from condensery.stages.base import Context, StageConfig
from condensery.stages.registry import registry
from condensery.system.children import Parent
from condensery.system.files import read_json, write_json

CALL, DONE, FAILED, OUTPUT, STOP = "task.json", "done.json", "failed-{}.json", "output-{}.txt", "stop"
# the metrics that a stage returns, and a description of its machine
Computed = tuple[Mapping[str, Any], dict[str, str]]
PATIENCE = 4.0  # seconds between the request to end and killing the processes


@dataclass(frozen=True)
class StageCall:
    """The task of the processes.

    Attributes:
        kind: kind of the stage.
        settings: config of the stage, as JSON values.
        context: context of the stage.
        host: host name of the pipeline's machine.
        pipeline: the pipeline's process, which waits for the processes of the stage.
    """

    kind: str
    settings: dict[str, Any]
    context: Context
    host: str
    pipeline: Parent

    @property
    def config(self) -> StageConfig:
        """The config of the stage."""
        return registry()[self.kind].config.model_validate(self.settings)

    def write(self, folder: Path) -> None:
        """Write the task into ``folder``, as JSON."""
        write_json(folder / CALL, TypeAdapter(StageCall).dump_python(self, mode="json"))

    @classmethod
    def read(cls, folder: Path) -> "StageCall":
        """Read the task that ``write`` wrote into ``folder``."""
        return TypeAdapter(cls).validate_python(read_json(folder / CALL))
