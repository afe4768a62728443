"""Trackio as a logger of Lightning, which has none of its own for it."""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from pytorch_lightning.loggers import Logger

from condensery.training.tracking import Tracked


class TrackioLogger(Logger):
    """Logs metrics to a run of Trackio, which begins with the first of them and goes on where the stage was interrupted.

    Args:
        project: name of the project in Trackio.
        tracked: the names of the run, and the settings that are shown with it.
    """

    def __init__(self, project: str, tracked: Tracked) -> None:
        super().__init__()
        self.project, self.tracked = project, tracked
        self.run: Any = None

    @property
    def name(self) -> str:
        """The project."""
        return self.project

    @property
    def version(self) -> str:
        """The name of the run: that of the stage and the id of its artifact."""
        return f"{self.tracked.name} {self.tracked.run_id}"

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the settings of the stage are given when the run begins."""

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
