"""Signals that end a process through its ``finally`` blocks.

Ctrl-C reaches every process of a terminal's group. Only the process that was started there should report it.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import resource_tracker
from typing import Any

came: list[int] = []
"""The signals of ``leave_upon`` that this process got."""
_again: list[Callable[[], BaseException]] = []
"""Makes what the last of them raised; the exception itself would keep alive all that it passed through."""
_steps: list[None] = []
"""One for each block ``after_this_step`` that we are in."""
_handlers: dict[int, Callable[[int, Any], None]] = {}
_AGAIN = 0.05  # seconds until a signal whose exception was lost is sent once more


def leave_upon(numbers: Iterable[int], error: Callable[[int], BaseException]) -> None:
    """Let each of the signals ``numbers`` raise ``error(number)``.

    Where Python cannot raise, as in a ``__del__``, it prints the exception and goes on as if there had been no signal.
    This function makes it print nothing then, and sends the signal again a moment later.
    """

    def leave(number: int, frame: object) -> None:
        waits = _steps and not came and number != signal.SIGINT
        came.append(number)
        _again[:] = [partial(error, number)]
        if waits:
            return
        raised = error(number)
        raised.of_a_signal = True  # type: ignore[attr-defined]
        raise raised

    def hook(lost: Any) -> None:
        if getattr(lost.exc_value, "of_a_signal", False):
            threading.Timer(_AGAIN, os.kill, (os.getpid(), came[-1])).start()
        else:
            others(lost)

    others = sys.unraisablehook
    sys.unraisablehook = hook
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, leave)
            _handlers[number] = leave


def hear_again() -> None:
    """Restore the handlers of ``leave_upon`` that a library has replaced, as Lightning does for SIGTERM."""
    for number, handler in _handlers.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def leave_if_asked() -> None:
    """Raise the exception of the last signal again, if a signal came.

    A library may turn that exception into another one (as a module does that was being imported) or swallow it. The caller
    must then report no fault and begin no work.
    """
    if _again:
        raise _again[-1]()


@contextmanager
def after_this_step() -> Iterator[None]:
    """Let the first signal of ``leave_upon`` in the block, except Ctrl-C, wait for the end of a training step.

    The code that runs the steps reads ``came`` after each step, and calls ``leave_if_asked`` once a checkpoint is written.
    So SLURM's warning that the time is nearly up costs no work. A second signal raises at once.
    """
    _steps.append(None)
    try:
        yield
    finally:
        _steps.pop()
    leave_if_asked()


@contextmanager
def deaf_to_ctrl_c() -> Iterator[None]:
    """Let the processes that are started in the block, and their children, ignore SIGINT. Their starter must end them.

    The processes inherit a mask that blocks SIGINT. In this process a SIGINT waits until the block ends; if it were ignored
    instead, a SIGINT during the block would be lost. Signals concern the main thread only: in another thread this function
    does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    resource_tracker.ensure_running()  # multiprocessing's helper: in the block its start would let SIGINT through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
