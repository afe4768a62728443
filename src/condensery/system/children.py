"""End a child process when its parent ends, even if the parent is killed and can no longer end its children.

The parent passes ``Parent.here()`` to the child, and the child first calls ``end_with``. Two mechanisms work together:

- Linux kills the child as soon as the thread that started it has ended (prctl(2), PR_SET_PDEATHSIG), even during a long
  computation. A thread may end long before its process, so this mechanism is used only for children that the main thread
  starts.
- On any system, a thread of the child checks at intervals whether the child still has the same parent process.

Watching for the end of a pipe would not work: a worker that waits for tasks holds both ends of the pipe, and its siblings do
too. So the pipe stays open.

A program that is not part of this project cannot call ``end_with``. ``guarded`` starts such a program through a small
process, which ends the program and its whole process group when the parent has ended.
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

QUOTA = Path("/sys/fs/cgroup/cpu.max")  # microseconds of CPU time, and the period in which they may be used
PAUSE = 0.2  # seconds between two checks
PATIENCE = 3.0  # seconds between SIGTERM and SIGKILL for a guarded program
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def cores() -> int:
    """Return the number of CPU cores that this process may use.

    The quota of a container (cgroup v2), rounded up to whole cores, limits this number.
    """
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # there is no quota, or it is "max"
        quota, period = map(int, QUOTA.read_text().split())
        own = min(own, -(-quota // period))
    return own


@dataclass(frozen=True)
class Parent:
    """A process that starts a child. The object is passed to the child, which calls ``end_with`` before anything else.

    Attributes:
        process: id of the parent process.
        main_thread: whether the parent's main thread starts the child.
    """

    process: int
    main_thread: bool

    @classmethod
    def here(cls) -> "Parent":
        """Describe the current process and thread as the parent."""
        return cls(os.getpid(), threading.current_thread() is threading.main_thread())

    def end_with(self) -> None:
        """Make this process, and the group that it leads, end when the parent ends, or at once if the parent has ended."""
        if self.main_thread:
            _killed_with_parent()
        if self.gone():  # the parent may have ended before the call above
            end_group()
        threading.Thread(target=self._watch, daemon=True).start()

    def gone(self) -> bool:
        """Return whether the parent has ended. Call it in the child, which gets another parent when its parent ends."""
        return os.getppid() != self.process

    def _watch(self) -> NoReturn:
        while not self.gone():
            time.sleep(PAUSE)
        end_group()


def alive(process: int) -> bool:
    """Return whether a process of this machine is alive. The process need not be a child of this process."""
    with suppress(OSError):  # Linux: an ended process may stay listed until its parent reads the exit code
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    with suppress(ProcessLookupError):
        with suppress(PermissionError):
            os.kill(process, 0)
        return True
    return False


def manner_of_death(code: int | None) -> str:
    """Describe how a process ended, by its exit code. A negative code is the number of a signal."""
    return f"killed by signal {-code}, perhaps because memory was full" if code and code < 0 else f"exit code {code}"


def end_group() -> NoReturn:
    """Kill this process, and its whole process group if this process leads the group."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL has no effect")


def guarded(command: Sequence[str]) -> list[str]:
    """Return the command line that runs ``command`` and ends it when this process ends.

    The command line must be started with ``start_new_session``, because it ends the process group that it leads.
    """
    return [sys.executable, "-m", "condensery.system.children", str(os.getpid()), *command]


def _killed_with_parent() -> None:
    """Make the kernel kill this process when the thread that started it ends. Has no effect outside Linux."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _guard(parent: Parent, command: Sequence[str]) -> int:
    """Run ``command`` in this process group and return its exit code, negative for a signal.

    The function does not return if the parent ends first.
    """
    end_requested = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: end_requested.set())
    program = subprocess.Popen(command)
    while not (parent.gone() or end_requested.is_set()):
        with suppress(subprocess.TimeoutExpired):
            return program.wait(PAUSE)
    os.killpg(0, signal.SIGTERM)  # the handler in this process only records the signal
    with suppress(subprocess.TimeoutExpired):
        program.wait(PATIENCE)
    end_group()


def main(parent: int, command: Sequence[str]) -> int:
    """Run ``command``, and end it when the process ``parent`` ends. Returns the exit code of ``command``.

    If a signal ended ``command``, this process ends by the same signal.
    """
    code = _guard(Parent(parent, main_thread=False), command)
    if code < 0:
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
