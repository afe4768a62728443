"""Long passages in windows, from the command line: an index like any other, and none of its own where there is one window."""

import shutil
from pathlib import Path

import numpy as np
from small_runs import Done, metrics_of, run_command

from condensery.system.files import read_json
from condensery.tokens.artifacts import Tokens

WIDE = "stages.wide={stage: encode, model: round1, windows: 3}"


def test_long_passages_are_searched_in_windows(finished: Done, on_beir: list[str], tmp_path: Path) -> None:
    shutil.copytree(finished.folder.parents[1], tmp_path / "out", symlinks=True)
    extra = ["+table.rows.wide=wide", "stages.wide_mined={stage: mine, retriever: wide, depth: 5}", "ask=word"]
    given = ["experiment=tiny", *on_beir, f"output_root={tmp_path / 'out'}"]
    done = run_command(*given, WIDE, *extra).sound()
    assert {*done.computed} == {"wide", "wide.evaluation", "wide_mined"}
    stages = done.folder / "stages"
    about = read_json(stages / "wide" / "index.json")
    lengths = Tokens((stages / "tokens").resolve()).passages.lengths
    assert about["passages"] == len(lengths)
    assert len(lengths) < about["windows"] <= 3 * len(lengths)
    windows = np.diff(np.load(stages / "wide" / "windows.npy"))
    assert (windows[lengths == lengths.max()] >= windows[lengths == lengths.min()].max()).all()
    rows = metrics_of(done.folder)
    assert set(rows["wide"]) == set(rows["BM25"])
    again = run_command(*given, "stage.encode.windows=1").sound()
    assert again.computed == [], "one window is what it always was"
