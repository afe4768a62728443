"""Signals that end a process through its ``finally`` blocks.

Ctrl-C reaches every process of a terminal's group; only the one that was started there is to say something of it.
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
    Here it prints nothing, and the signal comes again a moment later.
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
    """Take back the signals of ``leave_upon`` that a library has given a handler of its own, as Lightning does SIGTERM."""
    for number, handler in _handlers.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def leave_if_asked() -> None:
    """Raise again what a signal raised, if one came.

    A library may make another exception of it, as one whose module was being imported, or none: no fault is to be reported
    then, and no work to be begun.
    """
    if _again:
        raise _again[-1]()


@contextmanager
def after_this_step() -> Iterator[None]:
    """In the block the first signal of ``leave_upon``, but Ctrl-C, does not raise: whoever makes the steps looks at ``came``
    after each, and calls ``leave_if_asked`` when a checkpoint is written. So SLURM's warning that the time is nearly up costs
    no work. A second signal raises at once.
    """
    _steps.append(None)
    try:
        yield
    finally:
        _steps.pop()
    leave_if_asked()


@contextmanager
def deaf_to_ctrl_c() -> Iterator[None]:
    """Processes that are started in the block, and those that they start, pass over SIGINT; who starts them ends them.

    They inherit a mask that blocks it. Here a SIGINT waits until the block ends: were it ignored, one that comes in
    between would be lost. For the main thread alone, as all that concerns signals; elsewhere it does nothing.
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
