"""What `pip install .` brings runs outside of a checkout, recipes included."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
PARTS = ("src", "conf", "pyproject.toml", "README.md", "LICENSE", "requirements.txt")


def built(folder: Path) -> Path:
    """A wheel of a copy of the checkout, unpacked."""
    copy = folder / "copy"
    copy.mkdir()
    for name in PARTS:
        source = PROJECT / name
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        if source.is_dir():
            shutil.copytree(source, copy / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(source, copy / name)
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--quiet", "--wheel-dir", folder]
    subprocess.run(command, cwd=copy, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"


@pytest.mark.slow
def test_the_wheel_holds_all_that_a_run_reads(tmp_path: Path) -> None:
    installed, elsewhere = built(tmp_path), tmp_path / "elsewhere"
    elsewhere.mkdir()
    recipes = {path.relative_to(PROJECT) for path in (PROJECT / "conf").rglob("*.yaml")}
    assert recipes == {path.relative_to(installed / "condensery") for path in installed.rglob("conf/**/*.yaml")}
    given = {**os.environ, "PYTHONPATH": str(installed), "WANDB_MODE": "disabled"}
    called = [sys.executable, "-P", "-m", "condensery"]
    own = "import condensery; print(condensery.__file__)"
    where = subprocess.run([sys.executable, "-P", "-c", own], env=given, cwd=elsewhere, capture_output=True, text=True)
    assert where.stdout.startswith(str(installed)), where.stdout + where.stderr
    shown = subprocess.run(
        [*called, "experiment=quickstart", "dry_run=plan"], env=given, cwd=elsewhere, capture_output=True
    )
    assert shown.returncode == 0, shown.stderr
    assert (installed / "condensery" / "reporting" / "templates" / "page.css").exists()
    assert (installed / "condensery" / "models" / "checkpoints" / "card.md").exists()
    points = next(installed.glob("*.dist-info/entry_points.txt")).read_text()
    assert "condensery = condensery.command:installed" in points
