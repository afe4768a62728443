"""What a release rests on: one version everywhere, a changelog, a lock file that the requirements allow, sound workflows."""

import os
import re
import subprocess
import tomllib
from datetime import date
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version
from small_runs import PROJECT

import condensery

CHANGELOG = (PROJECT / "CHANGELOG.md").read_text()
LOCK = (PROJECT / "requirements-lock.txt").read_text()
VERSION = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
WORKFLOWS = sorted((PROJECT / ".github" / "workflows").glob("*.yml"))


def requirements(name: str) -> list[Requirement]:
    """The packages of a file of requirements, without comments and other files."""
    lines = [line.partition("#")[0].strip() for line in (PROJECT / name).read_text().splitlines()]
    return [Requirement(line) for line in lines if line and not line.startswith("-")]


def locked(name: str) -> set[Version]:
    """The versions of a package in the lock file; more than one where Pythons differ."""
    wanted = re.sub(r"[-_.]+", "-", name).lower()
    return {Version(found) for found in re.findall(rf"^{re.escape(wanted)}==(\S+)", LOCK, re.MULTILINE)}


def test_the_version_is_the_same_everywhere() -> None:
    citation = yaml.safe_load((PROJECT / "CITATION.cff").read_text())
    assert VERSION == condensery.__version__ == citation["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", VERSION)


def test_the_changelog_is_in_keep_a_changelogs_form() -> None:
    heads = re.findall(r"^## (.+)$", CHANGELOG, re.MULTILINE)
    assert heads[0] == "[Unreleased]"
    releases = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)", head) for head in heads[1:]]
    named = [(Version(release[1]), date.fromisoformat(release[2])) for release in releases if release]
    assert len(named) == len(heads) - 1
    assert named == sorted(named, reverse=True)
    assert str(named[0][0]) == VERSION
    kinds = set(re.findall(r"^### (.+)$", CHANGELOG, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt", "requirements-docs.txt"])
def test_the_lock_has_a_version_of_each_package_that_its_requirement_allows(name: str) -> None:
    for wanted in requirements(name):
        if wanted.name == "torch":
            (torch,) = re.findall(r"^# locked without hashes: torch==(.+)$", LOCK, re.MULTILINE)
            assert wanted.specifier.contains(torch)
        else:
            assert locked(wanted.name), wanted.name
            assert all(wanted.specifier.contains(version) for version in locked(wanted.name)), wanted.name


def test_every_package_of_the_lock_has_hashes_and_none_is_of_a_gpu() -> None:
    entries = [entry for entry in re.split(r"^(?=\S)", LOCK, flags=re.MULTILINE) if entry and not entry.startswith("#")]
    assert len(entries) > 100
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []
    assert [entry for entry in entries if entry.startswith(("torch==", "nvidia-", "cuda-", "triton"))] == []


def test_requirements_for_a_gpu_differ_in_faiss_alone() -> None:
    cpu, gpu = ({str(one) for one in requirements(f"requirements{kind}.txt")} for kind in ("", "-gpu"))
    assert {one.split(">")[0] for one in cpu ^ gpu} == {"faiss-cpu", "faiss-gpu-cu12"}


def test_a_gpu_has_an_installation_of_its_own_that_later_targets_keep(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", *(path.name for path in PROJECT.glob("requirements*.txt"))):
        (tmp_path / name).write_text((PROJECT / name).read_text())

    def commands(target: str) -> str:
        return subprocess.run(
            ["make", "-n", "--no-print-directory", target],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
            env={
                key: value for key, value in os.environ.items() if not key.startswith("MAKE")
            },  # of the make that tests
        ).stdout

    assert "-r requirements.txt" in commands("install")
    assert "-gpu" not in commands("test")
    lines = commands("install-gpu").splitlines()
    at = [next(i for i, line in enumerate(lines) if part in line) for part in ("uninstall", "-r requirements-gpu.txt")]
    assert at == sorted(at), "the module of faiss-cpu has the name of the other, and would be removed with it"
    assert lines[at[0]].endswith("uninstall --quiet --yes faiss-cpu")
    assert any(line.endswith("--no-deps -e .") for line in lines[at[1] :])
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / lines[-1].split()[1].rpartition("/")[2]).touch()
    for target in ("install", "test", "gpu-report"):
        found = commands(target)
        assert "-r requirements-gpu.txt" in found
        assert "-r requirements.txt" not in found
        assert "-r requirements-dev.txt" not in found, "it asks for requirements.txt, and so for faiss-cpu"


def test_malicious_versions_of_lightning_are_not_allowed() -> None:
    (lightning,) = [one for one in requirements("requirements.txt") if one.name == "pytorch-lightning"]
    assert not any(lightning.specifier.contains(version) for version in ("2.6.2", "2.6.3"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_targets_that_exist_and_may_write_nothing_by_default(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    targets = set(re.findall(r"^([\w-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    steps = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    assert {target for step in steps for target in re.findall(r"\bmake ([\w-]+)", step)} <= targets
    assert all(
        target in targets for target in re.findall(r"^make ([\w-]+)", (PROJECT / ".ci" / "run").read_text(), re.M)
    )
