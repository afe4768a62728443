"""The config group ``launcher``: how to start the processes that compute a stage together."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from condensery.keys import Keys
from condensery.ranges import Count


class LocalLauncher(Keys):
    """Starts the processes on this machine."""

    kind: Literal["local"]


class TorchrunLauncher(Keys):
    """Starts the processes with torchrun.

    Attributes:
        nodes: number of nodes.
        endpoint: ``host:port`` of the rendezvous; required for several nodes.
        before: prefix that runs torchrun's command on every node, such as ``srun``.
    """

    kind: Literal["torchrun"]
    nodes: Count
    endpoint: str | None
    before: list[str]

    @model_validator(mode="after")
    def _nodes_meet_somewhere(self) -> Self:
        if self.nodes > 1 and not self.endpoint:
            raise ValueError("several nodes need a common address; set launcher.endpoint=host:port")
        return self


class SlurmLauncher(Keys):
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


class Resources(Keys):
    """The resources that a Ray task reserves; None = the launcher's value.

    Attributes:
        num_cpus: number of CPU cores and of threads.
        num_gpus: number of GPUs, or a fraction of one.
        memory: GB of memory.
    """

    num_cpus: Count | None = None
    num_gpus: Annotated[float, Field(ge=0)] | None = None
    memory: Annotated[float, Field(gt=0)] | None = None


class RayLauncher(Resources):
    """Runs every stage, and every shard of a stage, as a task of a Ray cluster.

    Attributes:
        address: address of the cluster; None = ``RAY_ADDRESS`` or, if it is not set, a new cluster of this machine alone.
        stages: resources that replace the launcher's resources, by the name or the kind of a stage.
        retries: a stage that lost a node or a process is restarted, at most this many times in a row without progress.
    """

    kind: Literal["ray"]
    address: str | None
    stages: dict[str, Resources]
    retries: Annotated[int, Field(ge=0)]


Launcher = Annotated[LocalLauncher | TorchrunLauncher | SlurmLauncher | RayLauncher, Field(discriminator="kind")]
