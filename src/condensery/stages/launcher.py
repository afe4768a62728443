"""The config group ``launcher``: how to start the processes that compute a stage together."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from condensery.ranges import Count


class _Launcher(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class LocalLauncher(_Launcher):
    """Starts the processes on this machine."""

    kind: Literal["local"]


class TorchrunLauncher(_Launcher):
    """Starts the processes with torchrun.

    Attributes:
        nodes: number of nodes.
        endpoint: ``host:port`` of the rendezvous; required for several nodes.
        before: prefix of torchrun's command that runs it on every node.
    """

    kind: Literal["torchrun"]
    nodes: Count
    endpoint: str | None
    before: list[str]

    @model_validator(mode="after")
    def _nodes_meet_somewhere(self) -> Self:
        if self.nodes > 1 and not self.endpoint:
            raise ValueError("several nodes need launcher.endpoint=host:port to meet at")
        return self


class SlurmLauncher(_Launcher):
    """Submits a job with submitit, to SLURM or to processes of this machine.

    Attributes:
        cluster: ``slurm``, or ``local`` for processes of this machine.
        nodes: number of nodes.
        hours: time limit of the job.
        cpus_per_process: CPU cores of each process.
    """

    kind: Literal["slurm"]
    cluster: Literal["slurm", "local"]
    nodes: Count
    partition: str | None
    account: str | None
    hours: Annotated[float, Field(gt=0)]
    cpus_per_process: Count
    memory: Annotated[float, Field(gt=0)] | None
    setup: list[str]
    options: dict[str, Any]


Launcher = Annotated[LocalLauncher | TorchrunLauncher | SlurmLauncher, Field(discriminator="kind")]
