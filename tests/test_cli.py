"""The command line: help, what is not imported, where output goes, and every fault in one line."""

import errno
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import small_runs
from error_lines import names
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from slow import slow_except

from condensery.cli import prepared, run_program
from condensery.errors import UserError
from condensery.pipeline.error_lines import in_one_line, quoted
from condensery.system import signals
from condensery.system.progress import style

TOYS = Path(__file__).parent / "pipeline"
SOURCE = str(TOYS.parents[1] / "src")
HEAVY = {
    "torch", "pytorch_lightning", "transformers", "tokenizers", "faiss", "datasets", "pyarrow", "pandas", "numpy", "scipy",
    "bm25s", "ir_measures", "matplotlib", "jinja2", "wandb",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TOYS), prepend=os.pathsep)
    monkeypatch.setenv("CONDENSERY_STAGES", "toys")
    monkeypatch.syspath_prepend(str(TOYS))


def in_this_process(*arguments: str) -> small_runs.Done:
    """The toy recipe, where it does not matter that the command is a process."""
    return small_runs.run_command("--config-dir", TOYS / "conf", "experiment=toy", *arguments)


def fails_in_one_line(done: small_runs.Done, place: str, *words: str) -> None:
    """Its exit code is 1, and it says in one line what is wrong and where."""
    assert done.code == 1
    assert done.err.startswith("error: ")
    assert len(done.err) < 1000
    names(done.err, place, *words)


def run_py(
    project: Path, cwd: Path, *arguments: str, watch: bool = False, recipe: str = "toy"
) -> "subprocess.CompletedProcess[str]":
    """Run ``run.py``; with ``watch`` the last line of stdout tells the heavy modules that were imported."""
    script = [str(project / "run.py")]
    if watch:
        code = (
            "import runpy, sys\nsys.argv = sys.argv[1:]\n"
            "try:\n    runpy.run_path(sys.argv[0], run_name='__main__')\n"
            f"finally:\n    print({HEAVY} & set(sys.modules))"
        )
        script = ["-c", code, *script]
    command = [sys.executable, *script, "--config-dir", str(TOYS / "conf"), f"experiment={recipe}", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60)


def test_help_lists_recipes_and_keys(project: Path, tmp_path: Path) -> None:
    done = run_py(project, tmp_path, "--help")
    assert done.returncode == 0, done.stderr
    assert "experiment: " in done.stdout
    for word in ("toy", "jobs=2", "force=[", "output_root=DIR", "dry_run=true", 'ask="'):
        assert word in done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["--cfg", "job"], ["dry_run=plan"]])
def test_nothing_heavy_is_imported_before_the_work(
    arguments: list[str], project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CONDENSERY_STAGES")
    given = [f"output_root={tmp_path / 'out'}", *arguments]
    done = run_py(project, tmp_path, *given, watch=True, recipe="quickstart")
    assert done.stdout.splitlines()[-1] == "set()", done.stdout + done.stderr


def test_one_job_of_a_sweep_says_that_it_is_alone(project: Path, tmp_path: Path) -> None:
    done = run_py(project, tmp_path, "dry_run=plan", f"output_root={tmp_path}", recipe="ablation/rocketqa")
    assert done.stdout.startswith("this recipe is a sweep over seed: -m runs all jobs"), done.stdout + done.stderr
    assert "jobs, this run is one of them (seed=1)\n" in done.stdout
    given = ["dry_run=plan", f"output_root={tmp_path}"]
    done = run_py(project, tmp_path, *given, recipe="ablation/pretraining_speed")
    assert done.stdout.startswith(
        "this recipe is a sweep over stage.pretrain_cocondenser and seed: -m runs all jobs, this run is none of them"
        " (stage.pretrain_cocondenser.steps=null, stage.pretrain_cocondenser.token_budget=700000, seed=1)\n"
    )
    done = run_py(project, tmp_path, *given, recipe="ablation/low_data")
    assert "this run is one of them (stage.finetune.train_queries=null, " in done.stdout
    drawn = "hydra.sweeper.params={seed: 'interval(1, 3)'}"  # as Optuna's sweeper takes it
    done = run_py(project, tmp_path, *given, drawn, recipe="ablation/rocketqa")
    assert "over seed: -m runs all jobs, this run is none of them (seed=1)\n" in done.stdout, done.stdout + done.stderr


def test_without_the_packages_a_line_says_how_to_get_them(project: Path) -> None:
    command = [sys.executable, "-S", "-E", str(project / "run.py"), "experiment=quickstart"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("error: condensery is not installed for ")
    assert "source .venv/bin/activate" in done.stderr


@pytest.mark.parametrize(
    "key", slow_except([f"{sign}stages.round2.temperature" for sign in ("", "+", "++")], "stages.round2.temperature")
)
def test_a_recipe_sweeps_over_a_key_that_it_leaves_at_its_default(key: str, tmp_path: Path) -> None:
    recipe = tmp_path / "experiment" / "swept.yaml"
    recipe.parent.mkdir()
    recipe.write_text(
        "# @package _global_\ndefaults: [/experiment/quickstart, _self_]\nname: swept\n"
        f"hydra: {{sweeper: {{params: {{{key}: '1,2'}}}}}}\n"
    )
    command = ["-m", "--config-dir", tmp_path, "experiment=swept", "dry_run=plan", f"output_root={tmp_path / 'out'}"]
    done = small_runs.run_command(*command).sound()
    jobs = [line.split()[3] for line in done.out.splitlines() if line.startswith("== job")]
    assert jobs == [f"stages.round2.temperature={value}" for value in (1, 2)]
    if key[0] != "+":
        done = small_runs.run_command(*command, "+stages.round2.temperature=3").sound()
        assert "1 job" in done.out, "the command replaces the values of the recipe"


def test_what_is_started_again_has_imported_nothing_yet(project: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\ndef started(*_):\n    print({'hydra', 'omegaconf', 'yaml'} & set(sys.modules), flush=True)\n"
        "    os._exit(0)\nos.execve = started\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    environment.pop("GLIBC_TUNABLES", None)
    command = [sys.executable, str(project / "run.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.stdout == "set()\n", done.stdout[:300] + done.stderr


def test_output_lies_beside_run_py_wherever_it_is_called_from(project: Path, tmp_path: Path) -> None:
    done = run_py(project, tmp_path, "--cfg", "job", "--resolve")
    assert f"output_root: {project / 'outputs'}" in done.stdout.splitlines()


def test_output_lies_where_the_user_says_for_all_commands(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDENSERY_HOME", str(tmp_path / "own"))
    done = run_py(project, tmp_path, "--cfg", "job", "--resolve")
    assert f"output_root: {tmp_path / 'own' / 'outputs'}" in done.stdout.splitlines(), done.stderr
    monkeypatch.setenv("CONDENSERY_HOME", "")
    done = run_py(project, tmp_path, "--cfg", "job", "--resolve")
    assert f"output_root: {project / 'outputs'}" in done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["seeed=1"], ["seeed", "'seed'"]),
        (["+study=small"], ["+study=small", "base=small"]),
        (["stages.plain.learning_rte=1", "data.root=x"], ["stages.plain.learning_rte", "'learning_rate'"]),
        (["experiment=smoka"], ["experiment=smoka", "no such option", "'smoke'"]),
        (["experiment=smok'a"], ["experiment=smok'a: there is no such option (did you mean 'smoke'?)"]),
        (['experiment="smok\'a"'], ["experiment=smok'a: there is no such option (did you mean 'smoke'?)"]),
        (["experiment=smok/a"], ["experiment=smok/a: there is no such option"]),
        (["experiment=[5]"], ["experiment=[5]", "a group needs the name of one of its options"]),
        (["experiment=of_mine"], ["experiment=of_mine", "FOLDER/experiment/of_mine.yaml", "--config-dir FOLDER"]),
        (["seed=[1"], ["seed=[1", "key=value"]),
        (["smoke"], ["smoke", "key=value", "experiment=NAME"]),
        (["~table.rows.'+ hard'"], ["key=value", "null removes a row", "'table.rows={+ hard negatives: null}'"]),
        (["table.rows={Größe: bm25}"], ["table.rows={Größe: bm25}: ö is read only in quotes", "in the recipe's file"]),
        (
            ["logger=null", "trainer=cpu", "name=x"],
            ["error: logger=null: a group needs the name of one of its options"],
        ),
        (["push_to_hub=me/name", "data.root=x"], ["push_to_hub", "such as {round2: me/name}"]),
        (["ask=", "data.root=x"], ["ask", "empty"]),
        (["stages.plane.steps=1", "data.root=x"], ["stages.plane", "not a stage", "'plain'"]),
        (["output_root=/proc/nix", "data.root=README.md"], ["/proc/nix", "no folder can be made"]),
        (["seed=1,2"], ["seed=1,2", "sweep", "-m"]),
        (["data.root=/nix"], ["/nix", "no such file"]),
        (["~stages.plain.init", "data.root=x"], ["stages.plain.init", "; ~stages.plain.init removes it"]),
        ([f"seed=-{'9' * 4000}", "data.root=x"], ["seed"]),
        (["data.root=${nix}"], ["data.root", "'nix'", "not found"]),
        (["stages=[a]"], ["stages", "list", "mapping"]),
        (["table.rows=[a]"], ["table.rows", "list", "mapping"]),
        (["data.root=${oc.env:HOME}"], ["data.root", "${oc.env:HOME}", "CONDENSERY_*"]),
        (["+seed=3"], ["seed", "leave out the +"]),
        (["trainer.threads=${x y}"], ["trainer.threads", "' y'"]),
        (["-m", "name=${nix}"], ["error: name: Interpolation key 'nix' not found"]),
        (["-m", "output_root=${nix}"], ["error: output_root: Interpolation key 'nix' not found"]),
    ],
)
def test_a_fault_is_one_line_and_exit_code_1(arguments: list[str], wanted: list[str], tmp_path: Path) -> None:
    fails_in_one_line(in_this_process(f"output_root={tmp_path / 'out'}", *arguments), *wanted)


def test_a_reference_to_nothing_is_told_in_its_job(tmp_path: Path) -> None:
    done = in_this_process("-m", f"output_root={tmp_path}", f"data.root={__file__}", "seed='${nix}',1", "dry_run=plan")
    assert done.code == 1
    assert "error: seed: Interpolation key 'nix' not found\n" in done.err
    assert "error: 1 of 2 jobs failed: seed='${nix}' (seed: Interpolation key 'nix' not found)\n" in done.err


def test_a_kind_that_replaces_all_others_is_named(tmp_path: Path) -> None:
    done = small_runs.run_command("experiment=smoke", "stage=finetune", "dry_run=plan", f"output_root={tmp_path}")
    fails_in_one_line(done, "stages.corpus.data: needs a value; stage=... replaces the defaults of all other kinds")


def test_a_fault_is_one_line_and_exit_code_1_for_whoever_started_the_program(project: Path, tmp_path: Path) -> None:
    done = run_py(project, tmp_path, f"output_root={tmp_path / 'out'}", "seeed=1")
    assert done.stdout == ""
    fails_in_one_line(small_runs.Done(done.returncode, done.stdout, done.stderr), "seeed", "'seed'")


@pytest.mark.parametrize(("force", "said"), [([], ""), (["force=[round2]"], "; stages of force start over")])
def test_what_is_interrupted_says_how_to_go_on(
    force: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", *force])
    monkeypatch.setattr(signals, "came", [signal.SIGTERM])

    def program() -> None:
        raise KeyboardInterrupt

    with small_runs._as_it_was():
        os.environ.pop("HYDRA_FULL_ERROR", None)
        assert run_program(program, small_runs.PROJECT) == 143
    assert capfd.readouterr().err == f"interrupted; run the same command again to continue{said}\n"


def test_a_broken_config_file_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "broken.yaml").write_text("# @package _global_\nname: [x\nseed: 1\n")
    done = small_runs.run_command("--config-dir", tmp_path, "experiment=broken")
    fails_in_one_line(done, f"{tmp_path / 'experiment' / 'broken.yaml'}:3")


@pytest.mark.parametrize("text", ["", "name: x\n", "# a comment\nname: x\n"])
def test_a_recipe_that_would_not_stand_at_the_root_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "own.yaml").write_text(text)
    done = small_runs.run_command("--config-dir", tmp_path, "experiment=own")
    fails_in_one_line(done, f"{tmp_path / 'experiment' / 'own.yaml'}", "# @package _global_")


def test_a_fault_of_ours_keeps_its_traceback(project: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("some text")
    given = [f"data.root={tmp_path / 'text.txt'}", f"output_root={tmp_path / 'out'}", "stages.plain.fail=bug"]
    done = run_py(project, tmp_path, *given)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert "ZeroDivisionError: a fault of ours\n(in the stage plain" in done.stderr
    assert "hydra/_internal" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (
            ["+hydra.callbacks.x._target_=pathlib.Path.touch", "+hydra.callbacks.x.self=x"],
            ["hydra.callbacks.x._target_", "pathlib.Path.touch"],
        ),
        (
            ["-m", "+hydra.launcher.x={_target_: pathlib.Path.touch}"],
            ["hydra.launcher.x._target_", "pathlib.Path.touch"],
        ),
        (["-m", "hydra.launcher._target_=os.system"], ["'os.system'", "plugin"]),
        (["-m", "name=../../x"], ["name", "^[A-Za-z0-9]"]),
    ],
)
def test_nothing_foreign_is_called_and_no_other_folder_is_touched(
    arguments: list[str], wanted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x" / "jobs").mkdir(parents=True)  # where the sweep `../../x` would clear away
    monkeypatch.chdir(tmp_path)
    done = in_this_process(f"output_root={tmp_path / 'out'}", f"data.root={tmp_path}", *arguments)
    fails_in_one_line(done, *wanted)
    assert [path.name for path in tmp_path.iterdir() if path.name != "out"] == ["x"]
    assert (tmp_path / "x" / "jobs").is_dir()


def test_the_command_line_is_made_ready_for_hydra() -> None:
    given = ["experiment=x", "stages.a.steps=1,2", "data.root=d", "data=beir", "hydra.verbose=true", "-m"]
    wanted = ["-m", "experiment=x", "++stages.a.steps=1,2", "++data.root=d", "data=beir", "hydra.verbose=true"]
    assert prepared(given) == wanted
    assert prepared(["stages={a: {stage: bm25}}", "figures={}"]) == ["++stages={a: {stage: bm25}}", "++figures={}"]
    # argparse takes a word before an option for the last of its kind: what is deleted stands with the other keys
    assert prepared(["experiment=x", "~table.rows.a", "--cfg", "job"]) == [
        "--cfg",
        "job",
        "experiment=x",
        "~table.rows.a",
    ]
    assert prepared(["output_root=~/x"]) == [f"output_root={os.path.expanduser('~/x')}"]


@pytest.mark.parametrize("twice", [["seed=1", "seed=1"], ["stages.a.x=1", "-m", "++stages.a.x=2"], ["a.b=1", "+a.b=2"]])
def test_a_key_that_is_given_twice_is_refused(twice: list[str]) -> None:
    with pytest.raises(UserError, match=r"^(seed|stages\.a\.x|a\.b): given twice"):
        prepared(["experiment=x", *twice])
    assert prepared(["~table.rows.x", "table.rows.x=1", "-m", "--config-dir=a", "--config-dir=a"])


@pytest.mark.parametrize(
    "text",
    [
        "it's a file",
        "C++ (advanced)",
        'say "hi"',
        "{}",
        "a, b",
        "of ${seed}?",
        "a\\b",
        "x\\\\",
        "\\${x}",
        "-",
        "true",
        "a='b'",
    ],
)
def test_a_question_is_taken_as_it_is_typed(text: str) -> None:
    (override,) = OverridesParser.create().parse_overrides(prepared([f"ask={text}"]))
    assert not override.is_sweep_override()
    config = OmegaConf.create({"ask": None, "seed": 1})
    OmegaConf.update(config, "ask", str(override.value()))
    assert config.ask == text


def test_null_asks_nothing_and_what_is_quoted_for_hydra_is_let_be() -> None:
    for given in ("ask=null", "ask='a, b'", 'ask="a"'):
        assert prepared([given]) == [given]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EISDIR, errno.EIO, errno.EMFILE])
def test_a_full_or_closed_disk_is_one_line(number: int) -> None:
    line = in_one_line(OSError(number, os.strerror(number), "/data/x"))
    assert line is not None
    assert line.startswith("error: /data/x: ")
    assert "\n" not in line


def test_only_foreseeable_faults_lose_their_traceback() -> None:
    assert in_one_line(UserError("a:1: wrong\nsecond")) == "error: a:1: wrong second"
    assert in_one_line(UserError(f"/a/b: {'x' * 300} is long")) == f"error: /a/b: {'x' * 40}… (300 characters) is long"
    assert in_one_line(ValueError("x")) is None
    assert in_one_line(OSError(errno.ECHILD, "x")) is None


def test_every_stage_with_defaults_is_loaded_by_the_root(project: Path) -> None:
    root = OmegaConf.load(project / "conf" / "config.yaml")
    loaded = next(entry.stage for entry in root.defaults if isinstance(entry, dict | type(root)) and "stage" in entry)
    assert sorted(loaded) == sorted(path.stem for path in (project / "conf" / "stage").glob("*.yaml"))


def test_without_an_experiment_it_asks_for_one(project: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(project / "run.py"), f"output_root={tmp_path / 'out'}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("error: experiment: which recipe? Give experiment=NAME")
    assert not (tmp_path / "out" / "runs").exists()


@pytest.mark.parametrize(
    "argument",
    [
        b"ask=caf\xe9 salt",
        b"--caf\xe9",
        b"data",
        *(pytest.param(one, marks=pytest.mark.slow) for one in (b"name=\xff", b"output_root=/tmp/\xe9")),
    ],
)
def test_bytes_that_are_no_utf8_are_one_line(argument: bytes, project: Path, tmp_path: Path) -> None:
    given = [argument, b"caf\xe9"] if argument == b"data" else [argument]
    command = [sys.executable, str(project / "run.py"), "experiment=quickstart", *given]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60)
    assert done.returncode == 1
    names(done.stderr.decode(), "not valid UTF-8", "byte 0x", "terminal")


@pytest.mark.parametrize(
    "argument", ["ask=Größe", "data.root=/tmp/né", pytest.param("ask=東京", marks=pytest.mark.slow)]
)
def test_a_locale_of_ascii_is_one_line(argument: str, project: Path, tmp_path: Path) -> None:
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, str(project / "run.py"), "experiment=quickstart", argument.encode()]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, **locale}, capture_output=True, timeout=60)
    assert done.returncode == 1
    names(done.stderr.decode(), argument.partition("=")[0], "PYTHONUTF8=1", "C.UTF-8")


@pytest.mark.parametrize("value", ["/home/josé/notes", "/tmp/ne\u0301", "東京 1.txt", "C:\\Users\\Zoë"])
def test_letters_that_hydra_does_not_know_need_no_quotes(value: str) -> None:
    parse = OverridesParser.create().parse_override
    for key in ("data.root", "output_root"):
        given = prepared([f"{key}={value}"])[0]
        assert parse(given).value() == value
        *_, first = prepared([f"{key}={value},{value}b", "-m"])
        assert parse(first).is_sweep_override()
        assert [one.text for one in parse(first).sweep_iterator()] == [value, f"{value}b"]
    for quoted_already in (f"key='{value}'", f"key=[{value}]"):
        assert prepared([quoted_already]) == [quoted_already]


def test_a_path_with_a_comma_in_a_sweep_names_the_quotes(tmp_path: Path) -> None:
    (tmp_path / "a,b").mkdir()
    with pytest.raises(UserError, match=r"is one path, .* quote it: 'data.root=\"[^\"]*a,b\"'"):
        prepared(["-m", f"data.root={tmp_path / 'a,b'}"])
    prepared(["-m", f"data.root={tmp_path / 'a'},{tmp_path / 'b'}", f'name="{tmp_path / "a,b"}"'])


@pytest.mark.parametrize(
    "encoding",
    [
        "ascii",
        "latin-1:strict",
        None,
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("cp1252", "ascii:surrogateescape")),
    ],
)
def test_a_terminal_that_knows_few_characters_gets_the_rest_as_question_marks(
    encoding: str | None, project: Path, tmp_path: Path
) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom condensery.cli import run_program\n"
        "def program():\n"
        "    from rich.console import Console\n    from rich.table import Table\n"
        "    table = Table('x', title='東京 Müller')\n    table.add_row('naïve …')\n    Console().print(table)\n"
        "    print('東京 →', flush=True)\n    print('東京', file=sys.stderr, flush=True)\n"
        "    import subprocess\n"
        "    subprocess.run([sys.executable, '-c', 'print(chr(0x6771))'], check=True)\n"
        "sys.argv[1:] = []\nsys.exit(run_program(program, Path.cwd()))"
    )
    of_ascii = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment = {**os.environ, **({"PYTHONIOENCODING": encoding} if encoding else of_ascii)}
    code = code.encode("ascii", "backslashreplace").decode()
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert b"?? ?" in done.stdout
    assert done.stdout.strip().endswith(b"?")


def program_of(code: str) -> list[str]:
    """A program that runs ``code`` as the command line runs a recipe."""
    head = "import os, sys\nfrom pathlib import Path\nfrom condensery.cli import run_program\nsys.argv[1:] = []\n"
    body = "".join(f"    {line}\n" for line in code.splitlines())
    return [sys.executable, "-c", f"{head}def program():\n{body}sys.exit(run_program(program, Path()))"]


def test_output_that_nobody_reads_ends_it_in_one_line(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = program_of("print('a' * 99, flush=True)")
    done = subprocess.run(command, cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    both = subprocess.run(command, cwd=tmp_path, stdout=write, stderr=write, timeout=60)  # `2>&1 | head`
    os.close(write)
    assert both.returncode == 141
    assert (done.returncode, done.stderr) == (141, "interrupted; run the same command again to continue\n")


def test_streams_that_are_closed_take_what_is_printed_and_no_file_gets_their_number(tmp_path: Path) -> None:
    child = "import sys; sys.exit(None in (sys.stdout, sys.stderr))"
    code = f"""import subprocess
print('a', flush=True), print('b', file=sys.stderr)
assert open('file', 'w').fileno() > 2
subprocess.run([sys.executable, '-c', {child!r}], check=True)"""
    done = subprocess.run(
        ["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash", *program_of(code)], cwd=tmp_path, timeout=60, check=False
    )
    assert done.returncode == 0


def test_progress_needs_no_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONDENSERY_PROGRESS", raising=False)
    monkeypatch.setattr(sys, "stderr", None)
    assert style() == "lines"


def test_a_missing_file_without_a_name_is_no_folder_that_is_gone() -> None:
    """pyarrow and sockets raise such errors."""
    assert in_one_line(FileNotFoundError(errno.ENOENT, "Failed to open local file")) is None


def test_a_folder_that_is_gone_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    script = 'rmdir "$PWD"; exec "$@"'
    done = subprocess.run(
        ["bash", "-c", script, "bash", *program_of("pass")],
        cwd=tmp_path / "gone", env={**os.environ, "PYTHONPATH": SOURCE}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    wanted = "error: the folder in which this command was started no longer exists; start it in another\n"
    assert (done.returncode, done.stderr.splitlines(keepends=True)[-1]) == (1, wanted)


@pytest.mark.parametrize("value", ["/a,b", "/a=b", "/a[b", "/a(b)", "/a{b", "/a'b", '/a"b', "/a,b'", "/a;b,"])
@pytest.mark.parametrize("key", ["data.root", "output_root"])
def test_a_value_with_special_characters_gets_the_quotes_that_work(key: str, value: str) -> None:
    given = prepared([f"{key}={value}"])[0]
    parse = OverridesParser.create().parse_override
    try:
        if not parse(given).is_sweep_override():
            return  # it needs no quotes
    except HydraException as error:
        line = in_one_line(error)
        assert line is not None
        assert "++" not in line
    advice = shlex.split(quoted(key, value))
    parsed = parse(prepared(advice)[0])
    assert not parsed.is_sweep_override()
    assert parsed.value() == value


@pytest.mark.parametrize("key", ["data.root", "name"])
def test_a_comma_in_a_value_names_the_quotes(key: str) -> None:
    done = in_this_process(f"{key}=/a,b")
    fails_in_one_line(done, f"{key}=/a,b", "add -m", f"{key}=[/a,b]", f"""'{key}="/a,b"'""")
    assert "++" not in done.err
