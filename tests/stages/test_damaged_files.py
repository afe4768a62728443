"""Any file of a finished run, cut or with a bit flipped: the next run says so in one line, or shows the same results."""

import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from small_runs import Done, artifact_files, run_command

TRIALS = int(os.environ.get("DAMAGES", "60"))


def files_of(root: Path) -> list[Path]:
    """What a run holds, but for the folder that W&B keeps for itself and the pictures, which nothing reads."""
    return sorted(
        path
        for path in root.rglob("*")
        if path.is_file()
        and not {"wandb", "stages"} & {*path.relative_to(root).parts[:-1]}
        and path.suffix not in (".lock", ".png", ".svg", ".html")
    )


def damage(path: Path, draw: random.Random) -> str:
    """Cut a file, or flip a bit of it; what was done."""
    raw = bytearray(path.read_bytes())
    if not raw:
        return "nothing"
    at = draw.randrange(len(raw))
    if draw.random() < 0.2:
        path.write_bytes(raw[:at])
        return f"cut at {at}"
    bit = draw.randrange(8)
    raw[at] ^= 1 << bit
    path.write_bytes(raw)
    return f"byte {at} bit {bit}"


@pytest.mark.slow
def test_no_damage_ends_in_a_traceback_or_in_other_results(finished: Done, on_beir: list[str], tmp_path: Path) -> None:
    whole, root, draw = finished.folder.parents[1], tmp_path / "out", random.Random(5)
    wanted = (finished.folder / "results.json").read_bytes()
    names = [path.relative_to(whole) for path in files_of(whole)]
    noticed = 0
    for trial in range(TRIALS):
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(whole, root, symlinks=True)
        name = draw.choice(names)
        if trial % 3:  # a stage that is computed anew reads it
            shutil.rmtree(draw.choice([path for path in root.glob("artifacts/evaluate/*") if path.is_dir()]))
        if not (root / name).exists():
            continue
        what = f"{name}, {damage(root / name, draw)}"
        done = run_command("experiment=tiny", *on_beir, f"output_root={root}")
        assert done.code in (0, 1), what
        if done.code:
            noticed += 1
            assert re.fullmatch(r"error: .+\n", done.err), f"{what}:\n{done.err}"
        else:
            assert (root / "runs" / finished.folder.name / "results.json").read_bytes() == wanted, what
    assert noticed > TRIALS // 3


@pytest.mark.slow
def test_a_disk_that_fills_up_anywhere_is_one_line_and_with_more_space_the_run_goes_on(
    finished: Done, on_beir: list[str], tmp_path: Path
) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(tmp_path)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        arguments, size, failed = ["experiment=tiny", *on_beir, f"output_root={tmp_path}"], 100, 0
        while (done := run_command(*arguments)).code:
            assert re.fullmatch(r"error: .*: no space is left on the disk\n", done.err), f"{size} KiB: {done.err}"
            failed, size = failed + 1, int(size * 1.25)
            subprocess.run(["mount", "-o", f"remount,size={size}k", str(tmp_path)], check=True)
        assert failed > 3
        assert artifact_files(done.folder) == artifact_files(finished.folder)
        assert (done.folder / "results.json").read_bytes() == (finished.folder / "results.json").read_bytes()
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)
