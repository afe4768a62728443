"""Ctrl-C while other processes start: they pass over it, and whoever starts them does not."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker

import pytest

from condensery.system.signals import deaf_to_ctrl_c, leave_upon

HIT = "import os, signal, subprocess, sys; os.kill(os.getpid(), signal.SIGINT)"
PRINT = "print('alive')"


@pytest.fixture(autouse=True)
def _hears_ctrl_c() -> Iterator[None]:
    # tests that are themselves run in the background inherit a SIGINT that is ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def hit_itself() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_one_that_comes_while_a_process_starts_is_not_lost() -> None:
    with pytest.raises(KeyboardInterrupt), deaf_to_ctrl_c():
        hit_itself()
    with pytest.raises(KeyboardInterrupt):  # the block is over
        hit_itself()


@pytest.mark.parametrize("code", [f"{HIT}; {PRINT}", f'subprocess.run([sys.executable, "-c", """{HIT}; {PRINT}"""])'])
def test_processes_started_there_and_those_that_they_start_pass_over_it(code: str) -> None:
    code = f"import subprocess, sys; {code}"
    with deaf_to_ctrl_c():
        deaf = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert deaf.communicate(timeout=30)[0] == "alive\n"
    hears = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert hears.stdout == "", "it does not reach them anyway"


def test_the_first_process_of_multiprocessing_passes_over_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_tracker._resource_tracker, "_fd", None)  # its helper was not started yet
    monkeypatch.setattr(resource_tracker._resource_tracker, "_pid", None)
    process = multiprocessing.get_context("spawn").Process(target=hit_itself)
    with deaf_to_ctrl_c():
        process.start()
    process.join(30)
    assert process.exitcode == 0


class HitAsItGoes:
    """A signal comes while Python removes this object, where an exception is lost."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)  # here the handler raises


class FailsAsItGoes:
    def __del__(self) -> None:
        raise ValueError("a fault of this object")


def leave_while_an_object_goes() -> None:
    leave_upon([signal.SIGTERM], lambda number: SystemExit(128 + number))
    FailsAsItGoes()
    HitAsItGoes()
    print("it went on", flush=True)
    time.sleep(30)
    print("it stayed")


def test_one_that_comes_while_an_object_goes_ends_the_process_a_little_later() -> None:
    code = f"import test_signals; test_signals.{leave_while_an_object_goes.__name__}()"
    here = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=here)
    assert (ran.returncode, ran.stdout) == (143, "it went on\n")
    assert "SystemExit" not in ran.stderr
    assert "a fault of this object" in ran.stderr, "other objects' faults are still seen"
