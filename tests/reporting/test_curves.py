"""The picture of the training: what is read from the CSV, and that a picture comes out."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from condensery.errors import UserError
from condensery.reporting.curves import draw_curves, read_curves, smoothed

HEADER = "epoch,step,train/loss,train/mlm_head,val/mrr@10\n"


def write(path: Path, text: str) -> Path:
    path.write_text(HEADER + text)
    return path


def test_sparse_rows_become_one_curve_a_column(tmp_path: Path) -> None:
    curves = read_curves(write(tmp_path / "m.csv", "0,10,9.5,5.0,\n0,20,,,0.1\n0,20,8.5,nan,\n0,30,8.0,4.0,0.2\n"))
    assert curves["train/loss"].steps.tolist() == [10, 20, 30]
    assert curves["train/loss"].values.tolist() == [9.5, 8.5, 8.0]
    assert curves["train/mlm_head"].steps.tolist() == [10, 30]
    assert curves["val/mrr@10"].values.tolist() == [0.1, 0.2]
    assert "train/contrast" not in curves


def test_a_resumed_run_counts_its_later_rows_and_a_torn_row_is_left_out(tmp_path: Path) -> None:
    curves = read_curves(write(tmp_path / "m.csv", "0,10,9,5,\n0,20,8,4,\n0,20,7,3,\n0,30,6,2,\n0,4"))
    assert curves["train/loss"].values.tolist() == [9, 7, 6]
    assert curves["train/loss"].steps.tolist() == [10, 20, 30]


def test_smoothing_keeps_the_ends_and_a_straight_line() -> None:
    line = np.linspace(3.0, 1.0, 1000)
    np.testing.assert_allclose(smoothed(line), line)
    noisy = line + np.random.default_rng(0).normal(size=1000)
    assert np.std(smoothed(noisy) - line) < 0.4
    assert smoothed(noisy)[0] == pytest.approx(noisy[0])
    assert smoothed(noisy[:20]).tolist() == noisy[:20].tolist()


@pytest.mark.parametrize(
    "stages", [1, pytest.param(3, marks=pytest.mark.slow), 4, pytest.param(9, marks=pytest.mark.slow)]
)
def test_a_picture_has_a_panel_for_each_stage(tmp_path: Path, stages: int) -> None:
    rows = "".join(
        f"0,{step},{9 - step / 20},{5 - step / 40},{0.01 * step if step % 4 == 0 else ''}\n" for step in range(9)
    )
    paths = {f"stage {i}": write(tmp_path / f"{i}.csv", rows) for i in range(stages)}
    draw_curves(paths, tmp_path / "curves")
    picture = imread(tmp_path / "curves.png")
    assert picture.shape[0] > 300
    assert picture.shape[1] > 500
    assert picture.std() > 0.01


def test_a_stage_that_logged_nothing_or_one_step_still_draws(tmp_path: Path) -> None:
    paths = {"none": write(tmp_path / "a.csv", ""), "one": write(tmp_path / "b.csv", "0,1,5,3,0.0\n")}
    draw_curves(paths, tmp_path / "curves")
    assert (tmp_path / "curves.png").stat().st_size > 1000


def test_the_same_curves_give_the_same_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "m.csv", "0,10,9,5,\n0,20,8,4,0.2\n")
    for name in ("a", "b"):
        draw_curves({"stage": path}, tmp_path / name)
    for kind in ("png", "svg"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


def test_no_stage_a_missing_file_and_another_csv_are_user_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no training stage"):
        draw_curves({}, tmp_path / "curves")
    with pytest.raises(UserError, match="no such file"):
        draw_curves({"a": tmp_path / "missing.csv"}, tmp_path / "curves")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match=r"other\.csv"):
        draw_curves({"a": tmp_path / "other.csv"}, tmp_path / "curves")
