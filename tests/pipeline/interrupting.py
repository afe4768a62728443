"""A plug-in: the run gets Ctrl-C as soon as it has started a process, before anything else is done."""

import os
import signal
from multiprocessing.process import BaseProcess

start = BaseProcess.start


def interrupted(process: BaseProcess) -> None:
    start(process)
    os.kill(os.getpid(), signal.SIGINT)


BaseProcess.start = interrupted  # type: ignore[method-assign]
