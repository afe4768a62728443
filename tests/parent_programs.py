"""Programs that each start one kind of child process as the package does: ``python parent_programs.py KIND FOLDER``.

A program prints ``ready`` when its children work or wait for work, and then does nothing.
"""

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from condensery.sharing import NotRankZero
from condensery.stages.base import Context, StageConfig
from condensery.stages.registry import stage
from condensery.system import children
from condensery.system.children import Parent, guarded

# Environment variable: how a child notices the end of its parent. `watch`: only by checking; `kernel`: only by the
# kernel; `nothing`: not at all
ALONE = "TEST_ENDS_BY"

gc.disable()  # collecting takes a quarter of the time of importing Lightning

if os.environ.get(ALONE) in ("watch", "nothing"):
    children._killed_with_parent = lambda: None
if os.environ.get(ALONE) in ("kernel", "nothing"):
    children.Parent._watch = lambda self: None  # type: ignore[method-assign,assignment,return-value]


def ready() -> None:
    print("ready", flush=True)
    time.sleep(600)


def nap(*given: Any) -> int:
    """Some work."""
    time.sleep(0.05)
    return os.getpid()


def tokenise(folder: Path) -> Iterator[int]:
    from tokenizers import Tokenizer, models

    from condensery.tokens.workers import in_order

    folder.mkdir(exist_ok=True, parents=True)
    Tokenizer(models.WordLevel({"a": 0}, "a")).save(str(folder / "tokenizer.json"))
    return in_order(nap, range(10**9), folder, 2)


def tokenising(folder: Path) -> None:
    """Tokenising workers that have finished all tasks and wait for more."""
    work = tokenise(folder)
    while len({next(work) for _ in range(4)}) < 2:
        pass
    ready()


def tokenising_on(folder: Path) -> None:
    """Tokenising workers that are working."""
    work = tokenise(folder)
    while len({next(work) for _ in range(4)}) < 2:
        pass
    print("ready", flush=True)
    for _ in work:
        pass


def reading_docstrings(folder: Path) -> None:
    """Workers that read docstrings. They are forked if this process has no other thread."""
    from condensery.text.formats.pydocs import _mapper

    with _mapper(2) as run:
        assert os.getpid() not in set(run(nap, range(8), 1))
        ready()


def reading_docstrings_beside_a_thread(folder: Path) -> None:
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    reading_docstrings(folder)


class Steps:
    """Batches without any computation."""

    def steps_an_epoch(self) -> int:
        return 10**6

    def batch(self, step: int, share: Any = None) -> Any:
        return step


class Waiting:
    """An order of batches that waits for vectors."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def vectors(self, epoch: int) -> None:
        return None

    def begin(self) -> None:
        pass

    def make(self, epoch: int) -> None:
        ready()


def making_batches(folder: Path) -> None:
    """A process that loads batches, and a process that makes adaptive batches."""
    from condensery.training.adaptive.callback import AdaptiveBatches
    from condensery.training.data.data_module import StepDataModule

    loader = iter(StepDataModule(Steps(), workers=1).train_dataloader())
    assert next(loader) == 0
    callback = AdaptiveBatches(Waiting(folder), Steps())  # type: ignore[arg-type]
    callback._encode = lambda *_: None  # type: ignore[method-assign,assignment]
    callback.on_train_start(SimpleNamespace(global_step=0, max_steps=10), None)  # type: ignore[arg-type]
    time.sleep(600)


class Tokenising:
    """A stage that tokenises when its kind is read."""

    name = "tokens"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def kind(self) -> str:
        tokenising(self.folder)
        return "tokens"


def stage_process(folder: Path) -> None:
    """Two workers for stages (``jobs=2``): one tokenises in processes of its own, and the other has no stage."""
    from condensery.pipeline.executor import Worker

    workers = [Worker(folder, None, {}) for _ in range(2)]  # type: ignore[arg-type]
    workers[0].begin(Tokenising(folder), False)  # type: ignore[arg-type]
    Worker.wait(workers)


class Nothing(StageConfig):
    pass


def meets(config: Nothing, context: Context) -> dict[str, Any]:
    """A stage in which one process waits for the other during an exchange."""
    from torch import distributed

    from condensery.stages.devices import init_process_group

    member = context.runtime.distributed
    assert member is not None
    init_process_group(context.runtime)
    distributed.barrier()
    if member.rank:
        ready()
    distributed.barrier()
    raise NotRankZero


if __name__ == "parent_programs":  # the other processes import this file as a plug-in
    stage("test_meets", version=1, makes="encoder", together=True)(meets)


def several(folder: Path, launcher: Any) -> None:
    from condensery.pipeline.launch.processes import compute
    from condensery.stages.base import Runtime, Wandb
    from condensery.stages.registry import registry

    os.environ["CONDENSERY_STAGES"] = "parent_programs"
    folder.mkdir(exist_ok=True, parents=True)
    runtime = Runtime("cpu", 2, 2, 0, Wandb(project="x", entity=None, enabled=False), "x", folder, launcher=launcher)
    meeting = registry()["test_meets"]
    compute(meeting, meeting.config(), Context("meets", folder, runtime, {}))


def several_devices(folder: Path) -> None:
    """Two processes on a CPU; the second prints into a file."""
    from condensery.stages.launcher_config import LocalLauncher

    threading.Thread(target=_told, args=(folder,), daemon=True).start()
    several(folder, LocalLauncher(kind="local"))


def _told(folder: Path) -> None:
    """Print ``ready`` when the second process is ready."""
    while not any("ready" in path.read_text() for path in folder.glob("processes-*/output-1.txt")):
        time.sleep(0.05)
    print("ready", flush=True)


def torchrun(folder: Path) -> None:
    """torchrun, which waits for another node."""
    from condensery.stages.launcher_config import TorchrunLauncher

    threading.Timer(6, lambda: print("ready", flush=True)).start()
    several(folder, TorchrunLauncher(kind="torchrun", nodes=2, endpoint="127.0.0.1:29513", before=["env"]))


def foreign_program(folder: Path) -> None:
    """A program that starts another program. Both ignore SIGTERM."""
    command = ["sh", "-c", "trap '' TERM; echo ready; sleep 600; true"]
    subprocess.Popen(guarded(command), start_new_session=True).wait()


def tracking(folder: Path) -> None:
    """The service of W&B."""
    from condensery.training.wandb_run import Tracked, start

    folder.mkdir(exist_ok=True, parents=True)
    assert start(Tracked(True, "x", None, "x", "x", "x", "x", {}, folder))
    ready()


def _held(parent: Parent) -> None:
    """Run a call that blocks all other Python threads."""
    import re

    parent.end_with()
    print("ready", flush=True)
    re.match(r"(a+)+$", "a" * 60 + "b")


def computing(folder: Path) -> None:
    process = get_context("spawn").Process(target=_held, args=(Parent.here(),))
    process.start()
    process.join()


def _child_of_a_thread(parent: Parent) -> None:
    parent.end_with()
    time.sleep(1.0)  # the thread has ended by then
    ready()


def thread(folder: Path) -> None:
    """A process that was started by a thread which has ended."""

    def begin() -> None:
        get_context("spawn").Process(target=_child_of_a_thread, args=(Parent.here(),), daemon=True).start()

    starter = threading.Thread(target=begin)
    starter.start()
    starter.join()
    time.sleep(600)


def compiling(folder: Path) -> None:
    """torch's compiler."""
    import torch
    from torch._inductor.async_compile import AsyncCompile

    AsyncCompile.warm_pool()
    torch.compile(lambda x: (x * 2).sin())(torch.ones(8))
    ready()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        globals()[sys.argv[1]](Path(sys.argv[2]))
