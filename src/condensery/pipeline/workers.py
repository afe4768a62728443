"""A worker: a process that computes one stage after the other for the executor and never outlives the executor.

Each worker leads its own process group. So a stage's child processes end with the worker, and Ctrl-C reaches only the
executor.
"""

import os
import signal
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

from condensery.errors import DiskError, UserError, of_the_disk
from condensery.pipeline.graph import Node
from condensery.pipeline.store import Store
from condensery.stages.base import Runtime
from condensery.system.children import Parent, manner_of_death
from condensery.system.signals import leave_if_asked, leave_upon
from condensery.system.spawning import spawning

PATIENCE = 5.0  # seconds between the request to end and killing a worker


class StageError(Exception):
    """An error whose text is printed unchanged: the traceback of an unexpected exception, or lines about several stages."""


@dataclass(frozen=True)
class Failure:
    """The failure of a stage, without a traceback, which would keep the stage's objects in memory."""

    error: UserError | StageError
    reason: str  # the error in one line


def attempt(store: Store, runtime: Runtime, node: Node, force: bool) -> bool | Failure:
    """Compute ``node`` in this process.

    An exception that a library raises after the request to end the process is not a failure of the stage.

    Args:
        store: the store of the artifact.
        runtime: settings of this machine.
        node: the stage.
        force: whether to compute the stage even if the artifact exists.

    Returns:
        whether this call computed the artifact, or the failure.
    """
    try:
        return store.ensure(node, runtime, force)
    except Exception as error:
        leave_if_asked()
        known = of_the_disk(error) or error
        if isinstance(known, UserError):
            kind = DiskError if isinstance(known, DiskError) else UserError
            return Failure(kind(str(known)), " ".join(str(known).split()))
        kept = f"(in the stage {node.name}; its work so far is kept in {store.partial(node)})"
        reason = " ".join("".join(traceback.format_exception_only(error)).split())
        return Failure(StageError(traceback.format_exc() + kept), reason)


class Worker:
    """The executor's side of one worker process, which ``stop`` ends.

    Create the worker in a block ``deaf_to_ctrl_c``. The block must last until the worker is registered with the code that
    stops workers. Otherwise a Ctrl-C in between would leave the worker running, and this process would wait for it at exit.
    """

    def __init__(self, root: Path, runtime: Runtime, environment: Mapping[str, str]) -> None:
        context = spawning("jobs")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(Parent.here(), theirs, root, runtime, dict(environment)))
        self.process.start()
        theirs.close()  # so that the end of the worker shows as the end of the pipe
        self.node: Node | None = None

    def begin(self, node: Node, force: bool) -> None:
        """Make the worker compute ``node``."""
        self.node = node
        with suppress(BrokenPipeError):  # `wait` reports a worker that died
            self.connection.send((node, force))

    @staticmethod
    def wait(workers: Sequence["Worker"]) -> list["Worker"]:
        """Block until at least one of the workers has finished its stage or died."""
        while True:
            ready = wait([worker.connection for worker in workers], timeout=1.0)
            ended = [w for w in workers if w.connection in ready or w.process.exitcode is not None]
            if ended:
                return ended

    def end(self) -> tuple[Node, bool | Failure]:
        """Return the finished stage, and whether the worker computed it, or the failure."""
        node, self.node = self.node, None
        assert node is not None
        with suppress(EOFError, OSError):
            if self.connection.poll():
                result: bool | Failure = self.connection.recv()
                return node, result
        self.process.join(PATIENCE)
        _kill_group(self.process.pid)  # child processes that the worker left behind
        why = manner_of_death(self.process.exitcode)
        text = f"stage {node.name}: its process died ({why}); run the same command to go on"
        return node, Failure(UserError(text), text)

    def stop(self) -> None:
        """End the process and its child processes: immediately when idle, by SIGTERM and then SIGKILL when busy."""
        with suppress(OSError):
            if self.node is None:
                self.connection.send(None)
            else:
                self.process.terminate()
        self.process.join(PATIENCE)
        _kill_group(self.process.pid)
        self.process.kill()  # a process that is still starting does not lead a group yet
        self.process.join()
        self.connection.close()


def _kill_group(leader: int | None) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if leader:
            os.killpg(leader, signal.SIGKILL)


def _serve(
    parent: Parent, connection: Connection, root: Path, runtime: Runtime, environment: Mapping[str, str]
) -> None:
    """The worker's side: compute each node that is sent, until ``None`` is received."""
    with suppress(OSError):
        os.setpgid(0, 0)
    parent.end_with()
    leave_upon([signal.SIGTERM, signal.SIGUSR1], lambda number: SystemExit(128 + number))
    os.environ.update(environment)  # before torch is imported
    store = Store(root)
    with suppress(EOFError):  # the executor has ended
        for node, force in iter(connection.recv, None):
            connection.send(attempt(store, runtime, node, force))
