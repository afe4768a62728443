"""Show progress: a bar on a terminal, a line every few seconds elsewhere, nothing when it is switched off.

The environment variable ``CONDENSERY_PROGRESS`` chooses ``bar``, ``lines`` or ``off``. By default a terminal gets a bar
and a log gets lines.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

LINE_EVERY = 10.0  # seconds between two lines of one task


class ProgressTask:
    """An object that receives the progress of a long task. This class shows nothing; its subclasses show it."""

    def advance(self, n: int = 1) -> None:
        """Report that ``n`` more units are done."""

    def note(self, text: str) -> None:
        """Show the string ``text``, such as a loss or a speed, beside the count."""


SILENT = ProgressTask()


class _Lines(ProgressTask):
    """Prints a line every ``LINE_EVERY`` seconds: units done, units per second, time left."""

    def __init__(self, label: str, total: int, unit: str, done: int) -> None:
        self.label, self.total, self.unit = label, total, unit
        self.done, self.before, self.text = done, done, ""
        self.started = self.printed = time.monotonic()

    def advance(self, n: int = 1) -> None:
        self.done += n
        now = time.monotonic()
        if now - self.printed >= LINE_EVERY:
            self.printed = now
            self.show(now - self.started)

    def note(self, text: str) -> None:
        self.text = text

    def show(self, elapsed: float) -> None:
        rate = (self.done - self.before) / max(elapsed, 1e-9)
        left = clock((self.total - self.done) / rate) if rate and self.total else "?"
        speed = f"{rate:,.0f} {self.unit}/s" if rate >= 10 else f"{rate:.2g} {self.unit}/s"
        parts = [f"{self.done:,}/{self.total:,} {self.unit}", self.text or speed, f"{left} left"]
        print(f"[{self.label}] " + " · ".join(parts), flush=True)


def clock(seconds: float) -> str:
    """Format seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def style() -> str:
    """Return the current style of the progress display: ``bar``, ``lines`` or ``off``."""
    return os.environ.get("CONDENSERY_PROGRESS") or ("bar" if sys.stderr and sys.stderr.isatty() else "lines")


@contextmanager
def progress(label: str, total: int, unit: str, done: int = 0) -> Iterator[ProgressTask]:
    """Show the progress of a task while the block runs.

    Args:
        label: name of the task.
        total: total number of units; 0 = unknown.
        unit: name of the units, such as ``rows``.
        done: number of units that were done before the block.
    """
    chosen = style()
    if chosen in ("off", "lines"):
        yield _Lines(label, total, unit, done) if chosen == "lines" else SILENT
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    name, note = TextColumn("{task.description}"), TextColumn("{task.fields[text]}")
    columns = (name, BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn(), note)
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(label, total=total, completed=done, text="")

        class Bar(ProgressTask):
            def advance(self, n: int = 1) -> None:
                shown.advance(task, n)

            def note(self, text: str) -> None:
                shown.update(task, text=text)

        yield Bar()
