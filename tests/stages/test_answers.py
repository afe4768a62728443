"""A question to a finished run is answered without importing a library that takes longer than the answer."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import CONF, PROJECT, Done, run_command, some_text

HEAVY = {
    "torch", "transformers", "pytorch_lightning", "scipy", "bm25s", "faiss", "datasets", "pandas", "matplotlib", "wandb",
    "ir_measures",
}  # fmt: skip
WATCHED = (
    "import runpy, sys\n"
    "sys.argv = sys.argv[1:]\n"
    "try:\n    runpy.run_path(sys.argv[0], run_name='__main__')\n"
    f"finally:\n    print('imported', *sorted({HEAVY} & {{*sys.modules}}))\n"
)


@pytest.mark.parametrize(
    "retriever",  # round2 has two towers; fused joins the first two
    [*(pytest.param(one, marks=pytest.mark.slow) for one in ("bm25", "round1")), "round2", "fused"],
)
def test_an_answer_imports_nothing_heavy(retriever: str, finished: Done, on_beir: list[str], tmp_path: Path) -> None:
    store = tmp_path / "out"
    shutil.copytree(finished.folder.parents[1], store, symlinks=True)
    recipe = [
        "experiment=tiny",
        *on_beir,
        "stages.fused={stage: fuse, retrievers: [bm25, round1]}",
        f"++table.rows={{BM25: null, coCondenser: null, two towers: null, answers: {retriever}}}",
        "table.baseline=null",
        f"output_root={store}",
        f"ask={some_text().questions[0][1]}",
    ]
    first = run_command(*recipe).sound().out.partition("found by answers")[2]
    command = [sys.executable, "-c", WATCHED, PROJECT / "run.py", "--config-dir", CONF, *recipe]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    shown, _, imported = done.stdout.partition("found by answers")[2].rpartition("imported")
    assert imported.split() == []
    assert shown == first
    assert "1 · " in shown
