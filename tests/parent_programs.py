"""Programs that start each kind of child there is and then do nothing: ``python parent_programs.py KIND FOLDER``.

Each prints ``ready`` when its children are at work, or wait for some. They start them as the package does.
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

# Environment variable. `watch`: without the help of the kernel; `kernel`: without watching; `nothing`: without both
ALONE = "TEST_ENDS_BY"

gc.disable()  # a quarter of the time in which Lightning is imported

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
    """The workers have made all that was asked for, and wait for more."""
    work = tokenise(folder)
    while len({next(work) for _ in range(4)}) < 2:
        pass
    ready()


def tokenising_on(folder: Path) -> None:
    """The workers are at work."""
    work = tokenise(folder)
    while len({next(work) for _ in range(4)}) < 2:
        pass
    print("ready", flush=True)
    for _ in work:
        pass


def reading_docstrings(folder: Path) -> None:
    """Forked, where there is no other thread."""
    from condensery.text.formats.pydocs import _mapper

    with _mapper(2) as run:
        assert os.getpid() not in set(run(nap, range(8)))
        ready()


def reading_docstrings_beside_a_thread(folder: Path) -> None:
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    reading_docstrings(folder)


class Steps:
    """Batches that come at once."""

    def steps_an_epoch(self) -> int:
        return 10**6

    def batch(self, step: int, share: Any = None) -> Any:
        return step


class Waiting:
    """An order of batches whose vectors do not come."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def vectors(self, epoch: int) -> None:
        return None

    def begin(self) -> None:
        pass

    def make(self, epoch: int) -> None:
        ready()


def making_batches(folder: Path) -> None:
    """The process that loads batches, and the one that makes adaptive batches."""
    from condensery.training.adaptive.callback import AdaptiveBatches
    from condensery.training.data.data_module import StepDataModule

    loader = iter(StepDataModule(Steps(), workers=1).train_dataloader())
    assert next(loader) == 0
    callback = AdaptiveBatches(Waiting(folder), Steps())  # type: ignore[arg-type]
    callback._encode = lambda *_: None  # type: ignore[method-assign,assignment]
    callback.on_train_start(SimpleNamespace(global_step=0, max_steps=10), None)  # type: ignore[arg-type]
    time.sleep(600)


class Tokenising:
    """A stage that tokenises when it is looked at."""

    name = "tokens"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def kind(self) -> str:
        tokenising(self.folder)
        return "tokens"


def stage_process(folder: Path) -> None:
    """The process of a stage (``jobs=2``), which tokenises in processes of its own; and one that has nothing to do."""
    from condensery.pipeline.executor import Worker

    workers = [Worker(folder, None, {}) for _ in range(2)]  # type: ignore[arg-type]
    workers[0].begin(Tokenising(folder), False)  # type: ignore[arg-type]
    Worker.wait(workers)


class Nothing(StageConfig):
    pass


def meets(config: Nothing, context: Context) -> dict[str, Any]:
    """One process waits for the other in the midst of an exchange."""
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


if __name__ == "parent_programs":  # the plug-in of stages that this is for the other processes, and not the program
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
    """Say that the second process is ready."""
    while not any("ready" in path.read_text() for path in folder.glob("processes-*/output-1.txt")):
        time.sleep(0.05)
    print("ready", flush=True)


def torchrun(folder: Path) -> None:
    """It waits for another node."""
    from condensery.stages.launcher_config import TorchrunLauncher

    threading.Timer(6, lambda: print("ready", flush=True)).start()
    several(folder, TorchrunLauncher(kind="torchrun", nodes=2, endpoint="127.0.0.1:29513", before=["env"]))


def foreign_program(folder: Path) -> None:
    """It starts another one, and neither heeds SIGTERM."""
    command = ["sh", "-c", "trap '' TERM; echo ready; sleep 600; true"]
    subprocess.Popen(guarded(command), start_new_session=True).wait()


def tracking(folder: Path) -> None:
    """The service of W&B."""
    from condensery.training.tracking import Tracked, start

    folder.mkdir(exist_ok=True, parents=True)
    assert start(Tracked(True, "x", None, "x", "x", "x", "x", {}, folder))
    ready()


def _held(parent: Parent) -> None:
    """In a call that lets no other thread of Python run."""
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
    time.sleep(1.0)  # the thread is gone
    ready()


def thread(folder: Path) -> None:
    """A thread that has ended started the process."""

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
