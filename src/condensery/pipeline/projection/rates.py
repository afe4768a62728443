"""Durations of work: on this machine, measured by a few steps, and on a named GPU, by its published rate."""

from typing import TYPE_CHECKING

from condensery.models.flops import Step
from condensery.pipeline.gpus import FP32, GPUS
from condensery.pipeline.launch.threads import limit_threads
from condensery.stages.workload import Work

if TYPE_CHECKING:
    from condensery.pipeline.projection.measured import Rate

SMALL, LARGE = 1.5e10, 4e12  # approximate operations of a measured step: on a CPU, on a GPU


class Here:
    """This machine. Each kind of step is measured when its rate is first needed.

    Attributes:
        device: the device that computes.
        cores: threads of a stage; 1 on a GPU. On a CPU one thread is measured, in its own CPU time. Threads that wait for
            each other would count as work, and on a busy machine they wait long.
    """

    def __init__(self, accelerator: str, threads: int) -> None:
        import torch

        limit_threads(1)
        gpu = accelerator != "cpu" and torch.cuda.is_available()
        self.device = torch.device("cuda" if gpu else "cpu")
        self.cores = 1 if gpu else threads
        self._rates: dict[Step, Rate] = {}
        self._products: float | None = None

    def seconds(self, work: Work) -> float | None:
        """Return the wall-clock seconds of the work on an otherwise idle machine; None where the work is not known."""
        if not work.known:
            return None
        seconds = work.seconds or 0.0
        if work.products:
            seconds += work.products / self._product_rate() / self.cores
        if work.step is not None and work.steps is not None:
            seconds += work.steps * self._rate(work.step).seconds(work.step) / self.cores
        return seconds

    def _rate(self, step: Step) -> "Rate":
        from condensery.pipeline.projection.measured import rate_of

        kind = step.sample(SMALL if self.device.type == "cpu" else LARGE)
        if kind not in self._rates:
            self._rates[kind] = rate_of(kind, self.device)
        return self._rates[kind]

    def _product_rate(self) -> float:
        from condensery.pipeline.projection.measured import product_rate

        if self._products is None:
            self._products = product_rate(self.device)
        return self._products


def seconds_on_gpu(work: Work, gpu: str, share: float) -> float | None:
    """Return the seconds of the work on a GPU, at a share of its published rate; None where the work is not known.

    The seconds of work that is no matrix product are added as they are.
    """
    if not work.known:
        return None
    step = work.step.flops * (work.steps or 0.0) if work.step else 0.0
    return (work.seconds or 0.0) + (step + (work.products or 0.0) / FP32) / (share * GPUS[gpu])
