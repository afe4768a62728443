"""A program that starts processes without a main guard is told so in one line, before there is any."""

import runpy
import subprocess
import sys
import traceback
from contextlib import redirect_stderr
from pathlib import Path

import pytest
from forked import run_process

import condensery.training.data.data_module  # noqa: F401  a fork has it

STARTS = 'print("here", flush=True)\nfrom condensery.system.spawning import spawning\n'
CALL = 'process = spawning("workers=2").Process(target=print, args=("a child",))\nprocess.start()\nprocess.join()\n'
BELOW = "".join(f"    {line}\n" for line in CALL.splitlines())
MAIN = f"def main():\n{BELOW}\n"
GUARD = 'if __name__ == "__main__":\n'

REFUSED = {
    "plain": STARTS + CALL,
    "in a function": STARTS + MAIN + "main()\n",
    "behind a guard of something else": STARTS + f"{GUARD}    print()\n" + CALL,
    "with a name that asks for nothing": STARTS + "name = __name__\n" + CALL,
    "behind the end of the children": STARTS + 'import sys\nif __name__ != "__main__":\n    sys.exit()\n' + CALL,
    "below another if": STARTS + "if True:\n" + BELOW,
    "with a logger of that name": STARTS + MAIN + "import logging\nmain.log = logging.getLogger(__name__)\nmain()\n",
    "for want of a parent, which a child knows only later": STARTS
    + "import multiprocessing\nif not multiprocessing.parent_process():\n"
    + BELOW,
    "in a thread": STARTS
    + MAIN
    + "import threading\nthread = threading.Thread(target=main)\nthread.start(), thread.join()\n",  # whichever it stands at
}
STARTED = {
    "guarded": STARTS + MAIN + f"{GUARD}    main()\n",
    "guarded with more": STARTS + MAIN + 'import sys\nif sys.argv and "__main__" == __name__:\n    main()\n',
    "by a variable": STARTS + MAIN + 'MAIN = __name__ == "__main__"\nif MAIN:\n    main()\n',
    "by a function": STARTS + MAIN + 'def first():\n    return __name__ == "__main__"\n\nif first():\n    main()\n',
    "by a name for the name": STARTS + MAIN + 'name = __name__\nif name == "__main__":\n    main()\n',
    "in one expression": STARTS + MAIN + '__name__ == "__main__" and main()\n',
    "in another expression": STARTS + MAIN + 'main() if __name__ == "__main__" else None\n',
    "by a match": STARTS + MAIN + 'match __name__:\n    case "__main__":\n        main()\n',
    "in the function": STARTS
    + MAIN
    + 'def begin(name):\n    if name == "__main__":\n        main()\n\nbegin(__name__)\n',
    "by the name of the process": STARTS
    + "import multiprocessing\nif multiprocessing.current_process().name == 'MainProcess':\n"
    + BELOW,
}


def run(folder: Path, *arguments: str, program: str | None = None) -> subprocess.CompletedProcess[str]:
    command = ["env", f"PYTHONPATH={':'.join([str(folder), *sys.path])}", sys.executable, *arguments]
    return subprocess.run(command, input=program, capture_output=True, text=True, timeout=120, cwd=folder, check=False)


@pytest.mark.parametrize("program", REFUSED.values(), ids=REFUSED)
def test_without_a_guard_nothing_is_started(program: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(program)
    done = run(tmp_path, str(path))
    assert done.returncode == ("thread" not in program), "Python goes on after an error in a thread"
    assert done.stdout.count("here") == 1, "a child came here"
    assert done.stderr.count("Traceback") == 1
    *_, last = done.stderr.strip().splitlines()
    lines = program.splitlines()
    last_of_all = lines[-1] == "main()" or "thread.start()" in lines[-1]
    number = len(lines) if last_of_all else len(lines) - 2
    assert last.startswith(
        f"condensery.errors.UserError: {path}, line {number}: workers=2 starts processes, which import"
    )
    assert 'put the program below `if __name__ == "__main__":`' in last


@pytest.mark.parametrize("program", STARTED.values(), ids=STARTED)
def test_with_one_processes_are_started(program: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(program)
    done = run(tmp_path, str(path))
    assert done.returncode == 0, done.stderr
    assert "a child" in done.stdout


def test_by_the_name_of_a_module_it_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(REFUSED["plain"])
    (tmp_path / "guarded.py").write_text(STARTED["guarded"])
    assert "workers=2 starts processes" in run(tmp_path, "-m", "plain").stderr
    assert "a child" in run(tmp_path, "-m", "guarded").stdout


def test_on_the_command_line_there_is_nothing_to_import_and_from_standard_input_it_cannot_be(tmp_path: Path) -> None:
    assert "a child" in run(tmp_path, "-c", REFUSED["plain"]).stdout
    done = run(tmp_path, "-", program=REFUSED["plain"])
    assert done.returncode == 1
    assert (
        "workers=2 starts processes, which cannot import a program that is read from <stdin>: write it" in done.stderr
    )


@pytest.mark.parametrize("what", ["batches", "tokens"])
def test_whoever_starts_workers_asks(what: str, tmp_path: Path) -> None:
    starts = {
        "batches": "from condensery.training.data.data_module import StepDataModule\n"
        "class None_:\n    def steps_an_epoch(self):\n        return 1\n"
        "StepDataModule(None_(), workers=2).train_dataloader()\n",
        "tokens": "from condensery.tokens.workers import in_order\nlist(in_order(print, [[], []], None, 2))\n",
    }
    path = tmp_path / "program.py"
    path.write_text(starts[what])
    assert run_process(run_file, path, tmp_path / "stderr.txt") == 1
    said = (tmp_path / "stderr.txt").read_text()
    assert "BrokenProcessPool" not in said
    assert f"{path}, line {len(starts[what].splitlines())}: workers=2 starts processes" in said


def run_file(path: Path, stderr: Path) -> None:
    """A program as ``python FILE`` runs it, in this process."""
    with open(stderr, "w") as stream, redirect_stderr(stream):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except Exception:
            traceback.print_exc()
            sys.exit(1)
