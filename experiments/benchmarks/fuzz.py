"""Give damaged input to every reader, and report whatever does not end well.

    python experiments/benchmarks/fuzz.py [minutes=10] [cases=0] [seed=1] [case=-1] [only=] [findings=outputs/fuzz]

Sound small inputs of every kind (``fuzz_subjects.py``: formats of collections, sentences, rankings, sheets, checkpoints,
artifacts, recipes, tables) are changed (``fuzz_mutations.py``) and read as a run reads them, for so many minutes, or so many
``cases`` where that is not 0. ``only=beir,recipe`` takes some kinds. What happens in case N is a function of N, the seed and
the kinds alone, and ``case=N`` does that one again. Linux only. A finding is

    traceback       an exception other than UserError
    hang            ten seconds of work, or of waiting (``seconds``)
    memory          1,000 MB above what was taken before (``megabytes``), or a MemoryError
    silent          a result where a fault must be told, or another one than the sound input's where the change must not
                    matter, or another one when it is read once more
    outside         a file written, a program run or a connection made outside the case's own folders
    poor line       a fault that is told in several lines, in control characters, at great length, or without a path

Each is printed with its case; its input, the story and the traceback lie in the folder ``findings``. At the end comes a JSON
line. The exit code is 1 with findings.
"""

import faulthandler
import fcntl
import importlib
import json
import os
import random
import resource
import select
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fuzz_mutations import ACCIDENTS, EITHER, NEUTRAL, TOLD, Mutation
from fuzz_subjects import SUBJECTS, DisagreementError, PoorLineError, Subject

QUIET = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
QUIET |= {"CONDENSERY_PROGRESS": "off", "WANDB_MODE": "disabled"}
BATCH = 200  # cases of a process; the next one begins with fresh memory
LONGEST = 2_000  # characters of a message
SPACE = 1 << 30  # bytes of addresses that a case may take beyond the memory that is a finding
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Limits:
    """What a case may take, and where all of them work."""

    seconds: float
    megabytes: int
    room: Path


class Outcome(NamedTuple):
    """What came of reading: ``result`` with the JSON of what was read, ``told`` with a message, or a kind of finding."""

    kind: str
    text: str


class Change(NamedTuple):
    """What was done to an input. ``wanted``: anything, same, told or either (told, or the same result)."""

    what: str
    wanted: str


# What a process may write, run and reach.


class Watch:
    """Notes what the process writes outside of one folder, which programs it runs, and what it connects to."""

    WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    BESIDE = ("os.mkdir", "os.remove", "os.rmdir", "os.chmod", "os.chown", "os.utime")  # last: an open folder, or -1
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
            self._check(event, given[event in self.PAIRS])
        elif event in self.RUN:
            self.found.append(f"{event} {given!r:.200}")

    def _check(self, event: str, path: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        whole = os.path.realpath(os.fsdecode(path))
        if not whole.startswith((self.room, "/dev/null", "/proc/self/")):
            self.found.append(f"{event} {whole}")


# One case.


def files_of(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    """The files that any of the patterns names; ``**/*`` as ``glob`` has it."""
    return sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})


def changed(draw: random.Random, subject: Subject, folder: Path) -> Change:
    """Change a file of the input, in one of the ways that fit it; accidents come one to three at a time."""
    for _ in range(50):
        way = draw.random()
        if way < 0.2 and subject.neutral:
            done = _mutated(draw, NEUTRAL[draw.choice(subject.neutral)], files_of(folder, subject.files), folder)
            wanted = "same"
        elif way < 0.35 and subject.told:
            name = draw.choice(sorted(subject.told))
            own = [path for path in files_of(folder, subject.told[name]) if path in files_of(folder, subject.files)]
            done = _mutated(draw, {**TOLD, **EITHER}[name], own, folder)
            wanted = "either" if name in EITHER else "told"
        else:
            before = content(folder) if subject.all_told else None
            steps = range(draw.choice((1, 1, 1, 2, 3)))
            each = [_mutated(draw, draw.choice(ACCIDENTS), files_of(folder, subject.files), folder) for _ in steps]
            done = "; ".join(filter(None, each))
            wanted = "anything" if before is None else "same" if content(folder) == before else "told"
        if done:
            return Change(done, wanted)
    return Change("nothing", "same")


def _mutated(draw: random.Random, mutation: Mutation, files: list[Path], folder: Path) -> str:
    path = draw.choice(files) if files else None
    try:
        done = mutation(draw, path) if path else ""
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OSError, struct.error):
        return ""  # an earlier accident left nothing that it could change
    return f"{path.relative_to(folder)}: {done}" if path and done else ""


def content(folder: Path) -> dict[str, Any]:
    """The files of a folder; of manifests what they say, however they are written."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            raw = path.read_bytes()
            try:
                own = path.name == "manifest.json"
                found[str(path)] = json.dumps(json.loads(raw.decode()), sort_keys=True) if own else raw
            except (ValueError, RecursionError):
                found[str(path)] = raw
    return found


def observed(subject: Subject, folder: Path, scratch: Path) -> Outcome:
    """Read an input; paths in what comes of it are written as FOLDER and SCRATCH."""
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
    except MemoryError:
        kind, text = "memory", traceback.format_exc()
    except BaseException:  # SystemExit and KeyboardInterrupt are findings too
        kind, text = "traceback", traceback.format_exc()
    return Outcome(kind, text.replace(str(folder), "FOLDER").replace(str(scratch), "SCRATCH"))


def verdict(subject: Subject, change: Change, found: Outcome, again: Outcome | None, sound: Outcome) -> Outcome | None:
    """The finding, if it is one."""
    if found.kind not in ("result", "told"):
        return found
    if again and again != found:
        return Outcome("silent", f"read once more:\n{found.text[:3000]}\n{again.kind}: {again.text[:3000]}")
    if change.wanted == "told" and found.kind != "told":
        return Outcome("silent", f"not told; the result:\n{found.text[:3000]}")
    if (change.wanted == "same" or (change.wanted == "either" and found.kind == "result")) and found != sound:
        return Outcome(
            "silent", f"not as without the change: {found.kind}\n{found.text[:3000]}\nbut\n{sound.text[:3000]}"
        )
    if found.kind == "told":
        from condensery.reporting.plain import CONTROLS

        steers = any(one in found.text for one in CONTROLS if one not in "\n\t")
        if (
            steers
            or len(found.text) > LONGEST
            or not found.text.strip()
            or (subject.named and "FOLDER" not in found.text)
        ):
            return Outcome("poor line", found.text)
    return None


def drawn(seed: int, number: int, subjects: list[Subject]) -> tuple[random.Random, Subject]:
    """The generator of a case, and its kind of input."""
    draw = random.Random(f"{seed} {number}")
    return draw, draw.choices(subjects, [subject.weight for subject in subjects])[0]


# The processes.


def megabytes(line: str) -> float:
    """A line of this process's status, as ``VmRSS``."""
    return next(
        int(one.split()[1]) / 1024 for one in Path("/proc/self/status").read_text().splitlines() if one.startswith(line)
    )


def prepare(limits: Limits) -> Watch:
    """Make this process one that works in its own folders alone, says nothing, and cannot take all memory."""
    home = limits.room / "home"
    home.mkdir(exist_ok=True)
    os.environ.update(
        {"HOME": str(home), "CONDENSERY_CACHE": str(home / "cache"), "TMPDIR": str(home), "HF_HOME": str(home)}
    )
    tempfile.tempdir, sys.dont_write_bytecode = str(home), True
    os.chdir(home)
    log = os.open(limits.room / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    space = int(megabytes("VmSize") * 2**20) + limits.megabytes * 2**20 + SPACE
    resource.setrlimit(resource.RLIMIT_AS, (space, space))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return Watch(limits.room)


def sound_inputs(subjects: list[Subject], limits: Limits, report: int) -> None:
    """Write the sound input of each kind and what is read of it. Ends the process."""
    prepare(limits)
    with open(limits.room / "why.txt", "w") as why:
        try:
            for subject in subjects:
                folder = limits.room / "sound" / subject.name
                folder.mkdir(parents=True)
                subject.write(folder)
                shutil.copytree(folder, limits.room / "input")
                found = observed(subject, limits.room / "input", limits.room / "scratch")
                shutil.rmtree(limits.room / "input")
                (limits.room / "sound" / f"{subject.name}.json").write_text(json.dumps(found))
                if found.kind != "result":
                    raise RuntimeError(f"the sound input of {subject.name} is not read: {found.kind}: {found.text}")
        except BaseException:
            traceback.print_exc(file=why)
            why.flush()
            os._exit(1)
    os._exit(0)


def work(numbers: range, seed: int, subjects: list[Subject], limits: Limits, report: int) -> None:
    """Do cases, and tell of the beginning and the end of each in a line of JSON. Ends the process."""
    watch = prepare(limits)
    with open(limits.room / "stack.txt", "w") as stack, open(report, "w", buffering=1) as told:
        faulthandler.register(signal.SIGUSR1, stack)
        for number in numbers:
            draw, subject = drawn(seed, number, subjects)
            folder, scratch = limits.room / "input", limits.room / "scratch"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(limits.room / "sound" / subject.name, folder, symlinks=True)
            change = changed(draw, subject, folder)
            print(json.dumps({"case": number, "kind": subject.name, "change": change}), file=told)
            finding = judged(subject, change, folder, scratch, limits, watch)
            if finding:  # the next case writes its own input before anyone has looked at this one
                shutil.copytree(folder, kept(limits, number), symlinks=True, ignore=_special)
            print(json.dumps({"end": number, "finding": finding}), file=told)
    os._exit(0)


def kept(limits: Limits, number: int) -> Path:
    """Where the input of a case with a finding lies until it is noted."""
    return limits.room / f"input-{number}"


def judged(
    subject: Subject, change: Change, folder: Path, scratch: Path, limits: Limits, watch: Watch
) -> Outcome | None:
    """Read a changed input, and say what is wrong with what comes of it."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak of memory begins anew
    before = megabytes("VmRSS")
    watch.found.clear()
    watch.on = True
    found = observed(subject, folder, scratch)
    again = observed(subject, folder, scratch) if subject.twice and found.kind in ("result", "told") else None
    watch.on = False
    taken = megabytes("VmHWM") - before
    if watch.found:
        return Outcome("outside", "\n".join(watch.found))
    if taken > limits.megabytes:
        return Outcome("memory", f"{taken:,.0f} MB\n{found.kind}: {found.text[:3000]}")
    sound = Outcome(*json.loads((limits.room / "sound" / f"{subject.name}.json").read_text()))
    return verdict(subject, change, found, again, sound)


def effort(process: int) -> tuple[float, bool]:
    """The CPU-seconds of a process so far, and whether it works or would, if the machine let it."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS, fields[0] == "R"


class Patience:
    """Tells when a case has worked, or waited, for too long; a busy machine, which lets it do neither, does not count."""

    def __init__(self, process: int, seconds: float) -> None:
        self.process, self.seconds = process, seconds
        self.begin()

    def begin(self) -> None:
        """Of the next case."""
        self.start, self.moved = effort(self.process)[0], time.monotonic()
        self.last = self.start

    def is_over(self) -> bool:
        """Whether it is at an end."""
        used, works = effort(self.process)
        if works or used > self.last:
            self.moved, self.last = time.monotonic(), used
        return used - self.start > self.seconds or time.monotonic() - self.moved > self.seconds


@dataclass
class Fuzzer:
    """Starts processes that do cases, watches over them, and keeps what they find."""

    seed: int
    subjects: list[Subject]
    limits: Limits
    findings: Path

    def __post_init__(self) -> None:
        self.kinds, self.found, self.case = Counter[str](), Counter[str](), dict[str, Any]()

    def start(self, task: Any, *given: Any) -> tuple[int, int]:
        """A process that does ``task``, and the end of a pipe with what it tells."""
        reading, writing = os.pipe()
        process = os.fork()
        if not process:
            os.close(reading)
            try:
                task(*given, self.limits, writing)
            except BaseException:  # a fault of the fuzzer's own, which the parent shows
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(1)
        os.close(writing)
        fcntl.fcntl(reading, fcntl.F_SETFL, os.O_NONBLOCK)
        return process, reading

    def write_sound_inputs(self) -> None:
        """Once, in a process of its own: the one that starts the others computes nothing."""
        process, reading = self.start(sound_inputs, self.subjects)
        os.close(reading)
        if os.waitpid(process, 0)[1]:
            sys.exit((self.limits.room / "why.txt").read_text() + (self.limits.room / "output.txt").read_text())

    def do(self, first: int, stop: int, until: float) -> None:
        """The cases from ``first`` to before ``stop``, or until the time is over."""
        while first < stop and time.monotonic() < until:
            first = self._batch(first, min(first + BATCH, stop), until)

    def _batch(self, first: int, stop: int, until: float) -> int:
        """Cases of one process; returns the next one."""
        process, reading = self.start(work, range(first, stop), self.seed, self.subjects)
        patience, rest, following = Patience(process, self.limits.seconds), b"", first
        try:
            while time.monotonic() < until:
                ready = select.select([reading], [], [], 0.2)[0]
                block = os.read(reading, 1 << 16) if ready else b""
                if ready and not block:  # its end
                    if following < stop:
                        self.note(Outcome("traceback", "the process died: " + self._last_words()))
                    return following + 1
                *lines, rest = (rest + block).split(b"\n")
                for line in map(json.loads, lines):
                    following = self._heard(line, following)
                    patience.begin()
                if not lines and patience.is_over():
                    os.kill(process, signal.SIGUSR1)
                    time.sleep(0.5)
                    self.note(Outcome("hang", (self.limits.room / "stack.txt").read_text()))
                    return following + 1
            return stop
        finally:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            os.close(reading)

    def _heard(self, line: dict[str, Any], following: int) -> int:
        if "case" in line:
            self.case = line
            return following
        self.kinds[self.case["kind"]] += 1
        if line["finding"]:
            self.note(Outcome(*line["finding"]))
        return int(line["end"]) + 1

    def _last_words(self) -> str:
        return (self.limits.room / "output.txt").read_text(errors="replace")[-2000:]

    def note(self, outcome: Outcome) -> None:
        """Keep a finding."""
        kind, text = outcome
        number, name, (what, wanted) = self.case["case"], self.case["kind"], self.case["change"]
        folder = self.findings / f"{kind.replace(' ', '-')}-{self.seed}-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        left = kept(self.limits, number)
        if left.exists():
            shutil.move(left, folder / "input")
        else:  # of a case that did not end
            shutil.copytree(self.limits.room / "input", folder / "input", symlinks=True, ignore=_special)
        title = f"{kind}: case={number} seed={self.seed}, {name}, {what}"
        story = f"{title}\nwanted: {wanted}\n\n{text}\n"
        (folder / "finding.txt").write_text(story, encoding="utf-8", errors="replace")
        self.found[kind] += 1
        lines = text.strip().splitlines() or [""]
        last = lines[0 if kind in ("silent", "memory", "hang") else -1][:300]
        print(f"{title!a}\n    {last!a}\n    {folder}", flush=True)


def _special(folder: str, names: list[str]) -> list[str]:
    """Pipes, which cannot be copied."""
    paths = (Path(folder, name) for name in names)
    return [path.name for path in paths if not (path.is_symlink() or path.is_file() or path.is_dir())]


def given(**defaults: str) -> dict[str, str]:
    """The arguments ``key=value``, over ``defaults``. (That of ``sizes.py`` would import torch for every kind.)"""
    pairs = [argument.partition("=") for argument in sys.argv[1:]]
    if any(not value or key not in defaults for key, _, value in pairs):
        sys.exit("usage: " + (__doc__ or "").splitlines()[2].strip())
    return defaults | {key: value for key, _, value in pairs}


def main(**settings: str) -> None:
    """Run the fuzzer and print its line."""
    names = [name for name in settings["only"].split(",") if name] or list(SUBJECTS)
    if unknown := [name for name in names if name not in SUBJECTS]:
        sys.exit(f"only={','.join(unknown)}: the kinds are {', '.join(SUBJECTS)}")
    subjects = [SUBJECTS[name] for name in names]
    os.environ.update(QUIET)  # before any library is imported
    for module in dict.fromkeys(module for subject in subjects for module in subject.imports):
        importlib.import_module(module)
    cases, one = int(settings["cases"]), int(settings["case"])
    first, stop = (one, one + 1) if one >= 0 else (0, cases or 10**9)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        limits = Limits(float(settings["seconds"]), int(settings["megabytes"]), Path(name).resolve())
        fuzzer = Fuzzer(int(settings["seed"]), subjects, limits, Path(settings["findings"]).resolve())
        fuzzer.write_sound_inputs()
        start = time.monotonic()
        fuzzer.do(first, stop, start + (1e9 if stop < 10**9 else 60 * float(settings["minutes"])))
        seconds = time.monotonic() - start
    done = fuzzer.kinds.total()
    told = {"cases": done, "a_second": round(done / seconds, 1), "findings": fuzzer.found.total()}
    print(json.dumps({**told, "seed": fuzzer.seed, "found": fuzzer.found, "kinds": dict(sorted(fuzzer.kinds.items()))}))
    if fuzzer.found:
        sys.exit(1)


if __name__ == "__main__":
    defaults = {"minutes": "10", "cases": "0", "seed": "1", "case": "-1", "only": "", "findings": "outputs/fuzz"}
    main(**given(**defaults, seconds="10", megabytes="1000"))
