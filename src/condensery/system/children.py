"""A process ends with the one that started it, also where that is killed and cannot end anything any more.

Whoever starts a process hands it ``Parent.here()``, and the process begins with ``end_with``. Two ways hold at once:

- Linux kills it as soon as the thread that started it is gone (prctl(2), PR_SET_PDEATHSIG), also in the middle of a
  long computation. A thread may end long before its process, so this is for processes that the main thread starts.
- A thread looks now and then whether the parent is still the one that it was, on any system.

The end of a pipe would not do: a worker that waits for tasks holds both ends itself, and so do those beside it.

A program of somebody else's cannot be told this. It is started through ``guarded``: by a small process that ends it, and
all of its group, when the parent is gone.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

PAUSE = 0.2  # seconds between two looks
PATIENCE = 3.0  # seconds between asking a foreign program to end and making it
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def cores() -> int:
    """The CPU cores that this process may use: so many children can compute at a time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Parent:
    """The process that starts another one. It is sent to that one, which calls ``end_with`` first of all.

    Attributes:
        process: its id.
        main_thread: whether it is its main thread that starts the other.
    """

    process: int
    main_thread: bool

    @classmethod
    def here(cls) -> "Parent":
        """This process and thread."""
        return cls(os.getpid(), threading.current_thread() is threading.main_thread())

    def end_with(self) -> None:
        """End this process, and the group that it leads, when the parent ends; at once where it has ended already."""
        if self.main_thread:
            _killed_with_parent()
        if self.gone():  # before the line above
            end_group()
        threading.Thread(target=self._watch, daemon=True).start()

    def gone(self) -> bool:
        """Whether it has ended, as its own child sees it: another process has taken the child over."""
        return os.getppid() != self.process

    def _watch(self) -> NoReturn:
        while not self.gone():
            time.sleep(PAUSE)
        end_group()


def alive(process: int) -> bool:
    """Whether a process of this machine lives, as far as can be seen by one that is not its child."""
    with suppress(OSError):  # Linux: one that has ended may be listed until whoever started it asks for its exit code
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        return False
    return True


def end_group() -> NoReturn:
    """Kill this process, and where it leads a process group all of that."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL has no effect")


def guarded(command: Sequence[str]) -> list[str]:
    """The command that runs ``command`` and ends it with this process; for ``Popen`` with ``start_new_session``."""
    return [sys.executable, "-m", "condensery.system.children", str(os.getpid()), *command]


def _killed_with_parent() -> None:
    """Let the kernel send SIGKILL at the end of the thread that started this process; nothing where it cannot."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _guard(parent: Parent, command: Sequence[str]) -> int:
    """Run ``command`` in this group; its exit code, negative for a signal. Does not return when the parent ends first."""
    end_requested = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: end_requested.set())
    program = subprocess.Popen(command)
    while not (parent.gone() or end_requested.is_set()):
        with suppress(subprocess.TimeoutExpired):
            return program.wait(PAUSE)
    os.killpg(0, signal.SIGTERM)  # this process takes it for another request
    with suppress(subprocess.TimeoutExpired):
        program.wait(PATIENCE)
    end_group()


def main(parent: int, command: Sequence[str]) -> int:
    """Run ``command`` as a child of ``parent`` would, and end as it ends."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    code = _guard(Parent(parent, main_thread=False), command)
    if code < 0:
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
