"""Damage to files, for tests: hypothesis cuts, doubles or overwrites a part of a file, or a pipe replaces the file."""

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from condensery.errors import UserError

FEW = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
MORE = settings(FEW, max_examples=50)


@st.composite
def damaged(draw: st.DrawFn, raw: bytes) -> bytes:
    """Draw a damaged version of the bytes ``raw``: a value is replaced, or a part is cut, doubled or overwritten."""
    other = draw(st.one_of(st.sampled_from(TROUBLE), st.binary(max_size=12)))
    values = [found.span() for found in VALUE.finditer(raw)]
    if values and draw(st.integers(0, 3)):
        at, stop = draw(st.sampled_from(values))
        return raw[:at] + other + raw[stop:]
    at, stop = sorted(draw(st.integers(0, len(raw))) for _ in range(2))
    choices = (raw[:at], raw[:at] + raw[stop:], raw[:stop] + raw[at:], raw[:at] + other + raw[stop:], other)
    return draw(st.sampled_from(choices))


VALUE = re.compile(rb'"(?:[^"\\]|\\.)*"|[^\s",:\[\]{}]+')  # a string with its quotes, or a word or number
TROUBLE = [b"\0", b"\n", b"\r", b"\t", b'"', b"\\", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\\ud800", b"\x1f\x8b"]
TROUBLE += [
    b'"\\ud800"',
    b'""',
    b'" "',
    b'"a b"',
    b"[[1]]",
    b"[null]",
    b"true",
    b"1.5",
    b"null",
    b"NaN",
    b"-1e999",
    b"9" * 5000,
    b"[" * 3000,
    b"{}",
    b"[]",
    b'{"a":',
    b"\xe2\x80\xa8",
    b"#",
    b" ",
]


def named(error: UserError, path: Path) -> None:
    """Check that the error message is one line that names ``path`` or a file in it."""
    assert str(path) in str(error)
    assert "\n" not in str(error).replace(str(path), "")


def refused_as_a_pipe(read: Callable[[Path], object], path: Path) -> None:
    """Check that ``read`` rejects a pipe because it is not a file, and does not wait for data from the pipe."""
    os.mkfifo(path)
    said: list[str] = []

    def tried() -> None:
        try:
            read(path)
        except UserError as error:
            said.append(str(error))

    thread = threading.Thread(target=tried, daemon=True)
    thread.start()
    thread.join(10)
    assert said == [f"{path}: a pipe (FIFO), not a file"]
