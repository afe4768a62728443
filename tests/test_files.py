"""Files: arrays are read without their pickles, names stay in their folder, and what is broken is named in one line."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import refused_as_a_pipe

from condensery.errors import UserError
from condensery.pipeline.reports.study import tidied
from condensery.system.cache import cache_folder, cached
from condensery.system.files import expanded, inside, load_array, load_arrays, read_json


class Poison:
    """What leaves a file behind when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.trace,)


def test_the_poison_works(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Poison(tmp_path / "trace")))
    assert (tmp_path / "trace").exists()


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("kind", ["array of objects", "pickle", "archive", "nothing", "text", "header"])
def test_an_array_is_read_without_running_anything(kind: str, mapped: bool, tmp_path: Path) -> None:
    path, trace = tmp_path / "a.npy", tmp_path / "trace"
    poisoned = np.array([Poison(trace)], dtype=object)
    if kind == "array of objects":
        np.save(path, poisoned, allow_pickle=True)
    elif kind == "archive":
        with open(path, "wb") as stream:
            np.savez(stream, a=poisoned)
    else:
        raw = {"pickle": pickle.dumps(Poison(trace)), "nothing": b"", "text": b"[1, 2]"}
        path.write_bytes(raw.get(kind, b"\x93NUMPY\x01\x00\x10\x00open('trace','w')"))
    with pytest.raises(UserError, match=r"a\.npy: not .* array.*; delete the folder of this file") as raised:
        load_array(path, mapped)
    assert "\n" not in str(raised.value)
    assert not trace.exists()


def test_an_archive_is_read_without_running_anything(tmp_path: Path) -> None:
    path, trace = tmp_path / "a.npz", tmp_path / "trace"
    np.savez(path, good=np.arange(3), bad=np.array([Poison(trace)], dtype=object))
    for damage in (path.read_bytes(), pickle.dumps(Poison(trace)), b"", path.read_bytes()[:-30]):
        path.write_bytes(damage)
        with pytest.raises(UserError, match=r"a\.npz: not readable arrays .*; delete the folder"):
            load_arrays(path)
    assert not trace.exists()


def test_arrays_come_back_the_same(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(6).reshape(2, 3))
    assert load_array(tmp_path / "a.npy").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert isinstance(load_array(tmp_path / "a.npy", mapped=True), np.memmap)
    np.savez(tmp_path / "a.npz", one=np.arange(2), two=np.ones(1))
    assert {name: values.tolist() for name, values in load_arrays(tmp_path / "a.npz").items()} == {
        "one": [0, 1],
        "two": [1.0],
    }
    for load in (load_array, load_arrays):
        with pytest.raises(UserError, match="none: no such file"):
            load(tmp_path / "none")


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", "..", "", "a\0b", None, 3, ["a"]])
def test_a_name_that_leads_elsewhere_is_refused(name: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^results\.json: entry 2: .* does not name a file or folder in /") as raised:
        inside(tmp_path, name, "results.json: entry 2")
    assert "\n" not in str(raised.value)


def test_a_name_below_a_folder_is_kept(tmp_path: Path) -> None:
    assert inside(tmp_path, "finetune/0a..1b", "x") == tmp_path / "finetune" / "0a..1b"


def test_a_home_that_is_nobodys_is_a_name_like_any_other() -> None:
    assert expanded("~") == Path.home()
    assert expanded("~nobody-of-this-name/x") == Path("~nobody-of-this-name/x")


def test_who_has_no_home_needs_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("CONDENSERY_CACHE", raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 7)  # a user that the system does not know
    assert tidied(f"{tmp_path}/a", tmp_path) == f"{tmp_path.name}/a"
    assert cache_folder() == Path(".cache/condensery"), "and no folder called ~"


@pytest.mark.parametrize("raw", [b"{", b"\xff", b"[" * 99_999, b"9" * 5000, b""])
def test_broken_json_is_named(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(raw)
    with pytest.raises(UserError, match=r"a\.json: not valid JSON"):
        read_json(tmp_path / "a.json")


def test_json_is_not_read_from_a_pipe(tmp_path: Path) -> None:
    refused_as_a_pipe(read_json, tmp_path / "manifest.json")


def test_what_a_message_quotes_cannot_steer_the_terminal() -> None:
    said = str(UserError("x: \x1b[31m, \x00, \x85, \u202e, \ud800 and Fluß"))
    assert said == r"x: \x1b[31m, \x00, \x85, \u202e, \ud800 and Fluß"


def test_of_two_programs_that_make_the_same_at_once_the_first_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDENSERY_CACHE", str(tmp_path))

    def of_the_other(folder: Path) -> None:
        (folder / "lines").write_text("first")

    def make(folder: Path) -> None:
        cached("texts", "content", of_the_other)
        of_the_other(folder)

    made = cached("texts", "content", make)
    assert (made / "lines").read_text() == "first"
    assert [path.name for path in made.parent.iterdir()] == [made.name]


@pytest.mark.parametrize(("number", "said"), [(28, "no space is left"), (13, "no permission")])
def test_a_cache_that_cannot_be_written_is_one_line(
    number: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDENSERY_CACHE", str(tmp_path))

    def make(folder: Path) -> None:
        raise OSError(number, os.strerror(number), str(folder))

    with pytest.raises(UserError, match=f"{tmp_path}/texts/.*{said}.*; CONDENSERY_CACHE names the folder"):
        cached("texts", "content", make)
    assert not [*(tmp_path / "texts").iterdir()]

    def other(folder: Path) -> None:
        raise ConnectionError("no answer")

    with pytest.raises(ConnectionError):
        cached("texts", "content", other)
