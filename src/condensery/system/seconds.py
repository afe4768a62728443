"""Wall seconds and CPU seconds of a stage, summed over its interrupted parts. Child processes are included."""

import os
import time
from contextlib import suppress
from pathlib import Path

from condensery.errors import UserError
from condensery.system.files import read_json, write_json

SPENT = ".seconds.json"  # in the folder of unfinished work


class Seconds:
    """The time that a stage takes, from the creation of this object on, and in earlier parts of the same work.

    A part that was killed could not write its time. It is assumed to end at the last change of a file in the folder. Its CPU
    time is assumed to be the same share of its wall time as in the other parts. Its beginning is also read from the time
    stamp of a file, because the clock of a file server may differ from the clock of this machine.

    Args:
        folder: folder of the work, where an interrupted part leaves its time.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / SPENT
        self.wall = self.cpu = self.killed = 0.0  # seconds of earlier parts; `killed`: wall seconds of killed parts
        with suppress(UserError, OSError, TypeError, ValueError):
            self.wall, self.cpu, self.killed, was_killed = map(float, read_json(self.file))
            last = max(path.stat().st_mtime for path in folder.rglob("*") if path.is_file())
            self.killed += last - self.file.stat().st_mtime if was_killed else 0.0
        self.begun, self.begun_cpu = time.monotonic(), cpu_seconds()
        write_json(self.file, [self.wall, self.cpu, self.killed, 1.0])

    def measured(self, wall: float, cpu: float) -> None:
        """Count seconds that another process has measured for this part, instead of the seconds of this process."""
        self.begun, self.begun_cpu = time.monotonic() - wall, cpu_seconds() - cpu

    def interrupted(self) -> None:
        """Write the time so far, for the next part."""
        with suppress(OSError):
            write_json(self.file, [*self._known(), self.killed, 0.0])

    def total(self) -> dict[str, float]:
        """Return ``wall_seconds`` and ``cpu_seconds`` of all parts, and remove the file of the earlier parts."""
        self.file.unlink(missing_ok=True)
        wall, cpu = self._known()
        return {"wall_seconds": wall + self.killed, "cpu_seconds": cpu * (1 + self.killed / wall) if wall else cpu}

    def _known(self) -> tuple[float, float]:
        return self.wall + time.monotonic() - self.begun, self.cpu + cpu_seconds() - self.begun_cpu


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its ended child processes."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
