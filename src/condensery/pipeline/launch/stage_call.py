"""The task of processes that compute a stage together, and the names of the files that they exchange in a folder."""

from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from condensery.pipeline.launch.hardware import gpus, machine
from condensery.stages.base import Context, Runtime, StageConfig
from condensery.stages.registry import registry
from condensery.system.children import Parent
from condensery.system.files import read_json, write_json

CALL, DONE, FAILED, OUTPUT, STOP = "task.json", "done.json", "failed-{}.json", "output-{}.txt", "stop"
PATIENCE = 4.0  # seconds between asking the processes to end and killing them


@dataclass(frozen=True)
class StageCall:
    """The task of the processes.

    Attributes:
        kind: kind of the stage.
        config: of the stage.
        context: of the stage.
        host: the machine of the pipeline.
        pipeline: the process that waits for them.
    """

    kind: str
    config: StageConfig
    context: Context
    host: str
    pipeline: Parent

    def write(self, folder: Path) -> None:
        """Write the task into ``folder``, as JSON."""
        context = TypeAdapter(Context).dump_python(self.context, mode="json")
        config = self.config.model_dump(mode="json")
        task = {"kind": self.kind, "config": config, "context": context, "host": self.host}
        write_json(folder / CALL, {**task, "pipeline": asdict(self.pipeline)})

    @classmethod
    def read(cls, folder: Path) -> "StageCall":
        """Read the task that ``write`` has written into ``folder``."""
        task = read_json(folder / CALL)
        config = registry()[task["kind"]].config.model_validate(task.pop("config"))
        context, pipeline = TypeAdapter(Context).validate_python(task.pop("context")), Parent(**task.pop("pipeline"))
        return cls(config=config, context=context, pipeline=pipeline, **task)


def about_machine(runtime: Runtime) -> dict[str, str]:
    """Return a description of the machine, the threads and the GPUs of a stage, for its manifest."""
    return {**machine(), "threads": str(runtime.threads), "gpu": gpus()}
