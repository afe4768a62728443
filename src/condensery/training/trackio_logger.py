"""A Lightning logger for Trackio, since Lightning itself has none."""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from pytorch_lightning.loggers import Logger

from condensery.training.wandb_run import Tracked


class TrackioLogger(Logger):
    """Logs metrics to a Trackio run. The run begins with the first metric. A resumed stage continues the run.

    Args:
        project: name of the Trackio project.
        tracked: the names of the run, and the settings that Trackio shows with it.
    """

    def __init__(self, project: str, tracked: Tracked) -> None:
        super().__init__()
        self.project, self.tracked = project, tracked
        self.run: Any = None

    @property
    def name(self) -> str:
        """The name of the project."""
        return self.project

    @property
    def version(self) -> str:
        """The name of the run: the name and the run id in ``tracked``."""
        return f"{self.tracked.name} {self.tracked.run_id}"

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Do nothing, because the settings of the stage are logged when the run begins."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log the metrics of a step."""
        if self.run is None:
            import trackio

            self.run = trackio.init(
                self.project,
                name=self.version,
                group=self.tracked.group,
                config=dict(self.tracked.config),
                resume="allow",
            )
        self.run.log(dict(metrics), step=step)

    def finalize(self, status: str) -> None:
        """End the run."""
        if self.run is not None:
            self.run.finish()
            self.run = None
