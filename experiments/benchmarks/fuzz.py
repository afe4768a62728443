"""Give damaged input to every reader, and report whatever does not end well.

    python experiments/benchmarks/fuzz.py [cases=100] [seed=1] [only=] [findings=outputs/fuzz]

``fuzz_subjects.py`` has a small valid input of every kind: formats of collections, sentences, rankings, sheets, checkpoints,
artifacts, recipes and tables. ``fuzz_mutations.py`` changes an input, and this program reads it as a run does, ``cases``
times for each kind. Hypothesis draws the changes with the seed. It reduces a change with a finding to the smallest such
change, and tries the changes of earlier findings first. ``only=beir,recipe`` chooses some kinds. The program needs Linux.
Findings are:

    traceback       an exception other than UserError, or the end of the process
    hang            ten CPU-seconds (``seconds``), or a minute of wall-clock time (six times ``seconds``)
    memory          1,000 MB more than before the case (``megabytes``), or a MemoryError
    silent          a result although a fault must be reported; or a result that differs from that of the valid input
                    although the change must not matter; or a result that differs when the input is read again
    outside         a file written outside of the case's own folders, a program run, or a connection made
    poor line       a fault that is reported in several lines, with control characters, at great length, or without a path

The folder ``findings`` holds the input, a description of the change, and the traceback of each finding. The last line of the
output is JSON. The exit code is 1 if there are findings. A kind ends after its first finding, which is first reduced. A hang
or a lack of memory ends the kind at once.
"""

import faulthandler
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import yaml
from arguments import given
from fuzz_mutations import ACCIDENTS, EITHER, NEUTRAL, TOLD, Mutation
from fuzz_subjects import SUBJECTS, DisagreementError, PoorLineError, Subject
from hypothesis import strategies
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.errors import Flaky

QUIET = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
QUIET |= {"CONDENSERY_PROGRESS": "off", "WANDB_MODE": "disabled"}
LONGEST = 2_000  # characters of an error message
ENDS_A_KIND = ("hang", "memory")  # hypothesis would repeat these slow cases to reduce them


class Outcome(NamedTuple):
    """The outcome of reading. ``kind``: result (``text``: JSON), told (``text``: the error line) or a kind of finding."""

    kind: str
    text: str


class Change(NamedTuple):
    """A change of an input. ``wanted``: anything, same (result), told (reported), or either of the last two."""

    what: str
    wanted: str


class FindingError(Exception):
    """A case with a finding."""


class HangError(BaseException):
    """A case that takes too long. No reader catches it."""


class Watch:
    """Records what the process writes outside of one folder, which programs it runs, and what it connects to."""

    WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    BESIDE = ("os.mkdir", "os.remove", "os.rmdir", "os.chmod", "os.chown", "os.utime")  # last argument: folder or -1
    PAIRS = ("os.rename", "os.link", "os.symlink")
    PATHS = (*BESIDE, *PAIRS, "os.truncate", "sqlite3.connect")
    RUN = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "socket.connect", "pty.spawn")

    def __init__(self, room: Path) -> None:
        self.room, self.found, self.on = str(room.resolve()), list[str](), False
        sys.addaudithook(self._hear)

    def _hear(self, event: str, given: tuple[Any, ...]) -> None:
        if not self.on:
            return
        beside = event in (*self.BESIDE, *self.PAIRS) and given[-1] != -1
        writes = event == "open" and isinstance(given[2], int) and given[2] & self.WRITES
        if writes or (event in self.PATHS and not beside):
            path = given[event in self.PAIRS]
            whole = os.path.realpath(os.fsdecode(path)) if isinstance(path, str | bytes | os.PathLike) else self.room
            if not whole.startswith((self.room, "/dev/null", "/proc/self/")):
                self.found.append(f"{event} {whole}")
        elif event in self.RUN:
            self.found.append(f"{event} {given!r:.200}")


class Draws:
    """Draws of hypothesis. If there is nothing to draw from, ``IndexError`` is raised before hypothesis notes the draw."""

    def __init__(self, source: random.Random) -> None:
        self.source, self.random, self.sample = source, source.random, source.sample

    def randint(self, first: int, last: int) -> int:
        """A whole number from ``first`` to ``last``."""
        if last < first:
            raise IndexError
        return self.source.randint(first, last)

    def randrange(self, first: int, stop: int | None = None) -> int:
        """A whole number below ``stop``, or below ``first``."""
        return self.randint(0, first - 1) if stop is None else self.randint(first, stop - 1)

    def choice(self, values: Sequence[Any]) -> Any:
        """One of the values."""
        return values[self.randrange(len(values))]


def files_of(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    """Return the files that match any of the patterns; ``**/*`` as in ``glob``."""
    return sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})


def changed(draw: Draws, subject: Subject, folder: Path) -> Change:
    """Change a file of the input, in one of the ways that fit it. One to three accidents happen at a time."""
    way = draw.choice(("accident", "accident", "accident", "neutral", "told"))
    if way == "neutral" and subject.neutral:
        files = files_of(folder, subject.files)
        return Change(_mutated(draw, NEUTRAL[draw.choice(subject.neutral)], files, folder), "same")
    if way == "told" and subject.told:
        name = draw.choice(sorted(subject.told))
        own = [path for path in files_of(folder, subject.told[name]) if path in files_of(folder, subject.files)]
        change = _mutated(draw, {**TOLD, **EITHER}[name], own, folder)
        return Change(change, "told" if change and name in TOLD else "either" if change else "same")
    before = content(folder) if subject.all_told else None
    steps = range(draw.choice((1, 1, 1, 2, 3)))
    done = [_mutated(draw, draw.choice(ACCIDENTS), files_of(folder, subject.files), folder) for _ in steps]
    wanted = "anything" if before is None else "same" if content(folder) == before else "told"
    return Change("; ".join(filter(None, done)), wanted)


def _mutated(draw: Draws, mutation: Mutation, files: list[Path], folder: Path) -> str:
    """Change one of the files. Return a description of the change, or "" if nothing was changed."""
    path = draw.choice(files) if files else None
    try:
        done = mutation(draw, path) if path else ""
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OSError, struct.error, yaml.YAMLError):
        return ""  # an earlier change left nothing that this mutation applies to
    return f"{path.relative_to(folder)}: {done}" if path and done else ""


def content(folder: Path) -> dict[str, Any]:
    """Return the contents of the files in a folder. Manifests are compared by their data, not by their bytes."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        found[str(path)] = raw = path.read_bytes()
        if path.name == "manifest.json":
            with suppress(ValueError, RecursionError):
                found[str(path)] = json.dumps(json.loads(raw.decode()), sort_keys=True)
    return found


def observed(subject: Subject, folder: Path, scratch: Path) -> Outcome:
    """Read an input. In the outcome, its paths are replaced by FOLDER and SCRATCH."""
    from condensery.errors import UserError

    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        kind, text = "result", json.dumps(subject.read(folder, scratch), sort_keys=True)
    except UserError as error:
        kind, text = "told", str(error)
    except DisagreementError as error:
        kind, text = "silent", str(error)
    except PoorLineError as error:
        kind, text = "poor line", str(error)
    except BaseException as error:  # SystemExit and KeyboardInterrupt are findings too
        names = {MemoryError: "memory", HangError: "hang"}
        kind, text = names.get(type(error), "traceback"), traceback.format_exc()
    return Outcome(kind, text.replace(str(folder), "FOLDER").replace(str(scratch), "SCRATCH"))


def verdict(subject: Subject, change: Change, found: Outcome, again: Outcome | None, sound: Outcome) -> Outcome | None:
    """Return the finding, or None if the case ended well."""
    from condensery.reporting.plain import CONTROLS

    if found.kind not in ("result", "told"):
        return found
    if again and again != found:
        return Outcome("silent", f"read once more:\n{found.text[:3000]}\n{again.kind}: {again.text[:3000]}")
    if change.wanted == "told" and found.kind != "told":
        return Outcome("silent", f"not told; the result:\n{found.text[:3000]}")
    if (change.wanted == "same" or (change.wanted == "either" and found.kind == "result")) and found != sound:
        text = f"not as without the change: {found.kind}\n{found.text[:3000]}\nbut\n{sound.text[:3000]}"
        return Outcome("silent", text)
    if found.kind == "told":
        steers = any(one in found.text for one in CONTROLS if one not in "\n\t")
        unnamed = subject.named and "FOLDER" not in found.text
        if steers or unnamed or len(found.text) > LONGEST or not found.text.strip():
            return Outcome("poor line", found.text)
    return None


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise ``HangError`` after ``seconds`` of CPU time, or after six times as many wall-clock seconds."""

    def over(*_: Any) -> None:
        raise HangError

    signal.signal(signal.SIGPROF, over)
    signal.signal(signal.SIGALRM, over)
    faulthandler.dump_traceback_later(10 * seconds, exit=True)  # ends code that no signal interrupts
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 6 * seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()


class Fuzzer:
    """Fuzzes one kind of input, in a process of its own that works in the folder ``room`` alone.

    Args:
        name: the kind.
        room: a folder for inputs and whatever is written.
        settings: settings of the command line.
    """

    def __init__(self, name: str, room: Path, settings: dict[str, str]) -> None:
        self.subject, self.room, self.cases = SUBJECTS[name], room / name, 0
        self.seed, self.wanted = int(settings["seed"]), int(settings["cases"])
        self.seconds, self.megabytes = float(settings["seconds"]), int(settings["megabytes"])
        self.findings, self.found = Path(settings["findings"]).resolve(), set[str]()
        self.input, self.scratch, self.sound = (self.room / one for one in ("input", "scratch", "sound"))

    def run(self) -> tuple[int, list[str]]:
        """Return how many cases were tried, and the kinds of findings."""
        home = self.room / "home"
        home.mkdir(parents=True)
        folders = {"HOME": home, "CONDENSERY_CACHE": home / "cache", "TMPDIR": home, "HF_HOME": home}
        os.environ.update({key: str(folder) for key, folder in folders.items()})
        tempfile.tempdir, sys.dont_write_bytecode = str(home), True
        os.chdir(home)
        self.subject.write(self.sound)
        self._fresh()
        self.result = observed(self.subject, self.input, self.scratch)
        if self.result.kind != "result":
            raise RuntimeError(f"the sound input of {self.subject.name} is not read: {self.result}")
        space = (int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()) + (2 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (space + (self.megabytes << 20), resource.RLIM_INFINITY))
        self.watch = Watch(self.room)
        found = DirectoryBasedExampleDatabase(self.findings / "examples" / self.subject.name)
        rules = hypothesis.settings(
            max_examples=self.wanted,
            deadline=None,
            database=found,
            report_multiple_bugs=False,
            suppress_health_check=list(hypothesis.HealthCheck),
            verbosity=hypothesis.Verbosity.quiet,
        )
        cases = hypothesis.given(strategies.randoms(use_true_random=False))(self._case)
        with suppress(FindingError, HangError, Flaky):
            rules(hypothesis.seed(self.seed)(cases))()  # settings last: a seed removes the database
        return self.cases, sorted(self.found)

    def _fresh(self) -> None:
        shutil.rmtree(self.input, ignore_errors=True)
        shutil.copytree(self.sound, self.input, symlinks=True)

    def _case(self, draw: random.Random) -> None:
        self.cases += 1
        self._fresh()
        change = changed(Draws(draw), self.subject, self.input)
        hypothesis.assume(change.what)
        before, again = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, None
        self.watch.found.clear()
        with limited(self.seconds):
            self.watch.on = True
            found = observed(self.subject, self.input, self.scratch)
            if self.subject.twice and found.kind in ("result", "told"):
                again = observed(self.subject, self.input, self.scratch)
            self.watch.on = False
        taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        finding = verdict(self.subject, change, found, again, self.result)
        if self.watch.found:
            finding = Outcome("outside", "\n".join(self.watch.found))
        elif taken > self.megabytes:
            finding = Outcome("memory", f"{taken:,.0f} MB\n{found.kind}: {found.text[:3000]}")
        if finding:
            self._keep(change, finding)

    def _keep(self, change: Change, finding: Outcome) -> None:
        """Write the input and its description. They replace those of a larger change with the same finding.

        Raises ``FindingError``, or ``HangError`` if the kind ends here.
        """
        kind, text = finding
        folder = named(self.findings, kind, self.subject.name)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.input, folder / "input", symlinks=True, ignore=_special)
        story = f"{kind}: {self.subject.name}, {change.what}\nwanted: {change.wanted}\n\n{text}\n"
        (folder / "finding.txt").write_text(story, encoding="utf-8", errors="replace")
        self.found.add(kind)
        if kind in ENDS_A_KIND:
            raise HangError
        raise FindingError(kind)


def named(findings: str | Path, end: str, name: str) -> Path:
    """Return the folder of a finding."""
    return Path(findings, f"{end.replace(' ', '-')}-{name}")


def _special(folder: str, names: list[str]) -> list[str]:
    """Return the pipes, which cannot be copied."""
    paths = (Path(folder, name) for name in names)
    return [path.name for path in paths if not (path.is_symlink() or path.is_file() or path.is_dir())]


def fuzzed(name: str, room: Path, settings: dict[str, str]) -> tuple[int, list[str]]:
    """Return how many cases of a kind were tried, and the kinds of findings. A process that dies is a finding."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as process:
        try:
            return process.submit(_in_silence, name, room, settings).result()
        except BrokenProcessPool:
            folder = named(settings["findings"], "traceback", name)
            shutil.copytree(room / name / "input", folder / "input", symlinks=True, ignore=_special, dirs_exist_ok=True)
            (folder / "finding.txt").write_text(f"traceback: {name}\n\nthe process died: {_last_words(room)}")
            return 0, ["traceback"]


def _in_silence(name: str, room: Path, settings: dict[str, str]) -> tuple[int, list[str]]:
    log = os.open(room / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    return Fuzzer(name, room, settings).run()


def _last_words(room: Path) -> str:
    return (room / "output.txt").read_text(errors="replace")[-2000:]


def main(**settings: str) -> None:
    """Run the fuzzer and print its line."""
    names = [name for name in settings["only"].split(",") if name] or list(SUBJECTS)
    if unknown := [name for name in names if name not in SUBJECTS]:
        sys.exit(f"only={','.join(unknown)}: the kinds are {', '.join(SUBJECTS)}")
    os.environ.update(QUIET)  # before any library is imported
    kinds, found = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as room:
        for name in names:
            kinds[name], ends = fuzzed(name, Path(room).resolve(), settings)
            found.update(ends)
            for end in ends:
                print(f"{end}: {named(settings['findings'], end, name)}", flush=True)
    told = {"cases": kinds.total(), "findings": found.total(), "seed": int(settings["seed"])}
    print(json.dumps({**told, "found": found, "kinds": kinds}))
    if found:
        sys.exit(1)


if __name__ == "__main__":
    defaults = {"cases": "100", "seed": "1", "only": "", "findings": "outputs/fuzz"}
    main(**given(__doc__, **defaults, seconds="10", megabytes="1000"))
