"""The device that a stage computes on, and models on it."""

from collections.abc import Callable
from datetime import timedelta

import torch
from torch import distributed

from condensery.errors import UserError
from condensery.models.precision import Model, inference, with_cast_weights
from condensery.stages.base import Context, Runtime
from condensery.tokens.batches import Chunk


def torch_device(accelerator: str) -> torch.device:
    """Return the device for ``cpu``, ``gpu`` or ``auto`` (a GPU if there is one).

    Raises:
        UserError: ``gpu`` is requested and there is no GPU.
    """
    if accelerator == "gpu" and not torch.cuda.is_available():
        raise UserError("trainer.accelerator: gpu was asked for, but torch sees none; use cpu or auto")
    return torch.device("cuda" if accelerator != "cpu" and torch.cuda.is_available() else "cpu")


def on_device(
    model: Model, compute: Callable[[Model, Chunk], torch.Tensor], context: Context, precision: str
) -> Callable[[Chunk], torch.Tensor]:
    """Move a trained model to the device of a stage, and return ``compute`` for chunks that are on the CPU.

    Args:
        model: the model, whose dropout is switched off. Its weights may be copied: later changes may have no effect.
        compute: method of the model's class that takes a chunk on its device. It is called without gradients.
        context: context of the stage.
        precision: fp32, bf16 or fp16.
    """
    device = torch_device(context.runtime.accelerator)
    ready = with_cast_weights(model.to(device).eval(), precision)

    def computed(chunk: Chunk) -> torch.Tensor:
        with inference(device, precision):
            return compute(ready, chunk.to(device))

    return computed


def init_process_group(runtime: Runtime) -> None:
    """Join the processes of a stage into a process group, each on its own GPU if there are GPUs.

    Nothing happens if there is only one process, or if the processes are already joined.

    Raises:
        UserError: there are fewer GPUs than processes.
    """
    member = runtime.distributed
    if member is None or distributed.is_initialized():
        return
    gpu = torch_device(runtime.accelerator).type == "cuda"
    if gpu:
        seen = torch.cuda.device_count()
        bound = seen == 1 and runtime.launcher.kind in ("slurm", "ray")  # these may show a process only its own GPU
        if seen < member.local_processes and not bound:
            raise UserError(f"trainer.devices: {member.local_processes} GPUs are asked for, but torch sees {seen}")
        torch.cuda.set_device(0 if bound else member.local_rank)
    # The time limit is long: the other processes wait while the first validates. The launcher notices a process that dies.
    distributed.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo", timeout=timedelta(days=7))
