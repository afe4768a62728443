"""Starts CPU processes that share a batch, for ``check_gradients``."""

import pickle
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed, multiprocessing

from condensery.errors import UserError
from condensery.training.data.steps import Share

_PATIENCE = timedelta(minutes=10)


class ProcessError(Exception):
    """Raised when a process fails. The message is the reason in one line."""


def in_processes(number: int, work: Callable[[Share], Any]) -> list[Any]:
    """Run ``work`` in ``number`` processes that are joined by ``torch.distributed``.

    The processes are forked if that is safe, so that functions do not have to be importable. Otherwise they are spawned.

    Returns:
        the result of each process, by rank.

    Raises:
        UserError: the processes cannot be started.
        ProcessError: a process failed.
    """
    if distributed.is_available() and distributed.is_initialized():
        raise UserError("check_gradients: processes=2 starts its own processes; call it before init_process_group")
    forked = sys.platform == "linux" and not torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arguments = (work, number, torch.get_default_dtype(), folder)
        try:
            multiprocessing.start_processes(
                _begin, arguments, nprocs=number, start_method="fork" if forked else "spawn"
            )
        except (multiprocessing.ProcessExitedException, multiprocessing.ProcessRaisedException) as error:
            messages = [path.read_text() for path in sorted(folder.glob("*.failed"))]
            hint = "" if forked else '; in a script, call check_gradients under `if __name__ == "__main__":`'
            raise ProcessError(messages[0] if messages else f"a process ended{hint}: {one_line(error)}") from None
        except (pickle.PicklingError, AttributeError, TypeError) as error:  # a process that is spawned gets a copy
            raise UserError(
                f"check_gradients: processes=2 must send the loss and the encoders to other processes ({one_line(error)});"
                " define them at the top level of a module"
            ) from None
        return [torch.load(folder / f"{rank}.pt") for rank in range(number)]


def _begin(rank: int, work: Callable[[Share], Any], number: int, dtype: torch.dtype, folder: Path) -> None:
    """Run one of the processes: save its result in ``folder``, or the reason for its failure."""
    torch.set_num_threads(1)
    torch.set_default_dtype(dtype)
    try:
        distributed.init_process_group(
            "gloo", f"file://{folder}/meeting", rank=rank, world_size=number, timeout=_PATIENCE
        )
        torch.save(work(Share(rank, number)), folder / f"{rank}.pt")
        distributed.barrier()
        distributed.destroy_process_group()
    except BaseException as error:
        (folder / f"{rank}.failed").write_text(one_line(error))
        sys.exit(1)


def one_line(error: BaseException) -> str:
    """Return an exception as one line of text."""
    text = str(error).strip().partition("\n")[0]
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"
