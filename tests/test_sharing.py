"""Shared work: prepared once, every shard written once and kept, nothing goes on before all is there."""

import time
from pathlib import Path

import pytest
from simulated_processes import in_parts

from condensery.sharing import SINGLE_PROCESS, NotRankZero, ProcessGroup
from condensery.system.files import atomic

SHARDS = 7


class Work:
    """Seven files, each with its number; it remembers who wrote which, and how often the folder was prepared."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.prepared = folder, 0
        self.written: list[tuple[int, int]] = []
        self.seen: dict[int, int] = {}  # rank -> files that it found when the work was over

    def left(self) -> list[int]:
        time.sleep(0.05)  # the others must not be ahead of it
        self.prepared += 1
        self.folder.mkdir(exist_ok=True)
        return [number for number in range(SHARDS) if not (self.folder / str(number)).exists()]

    def __call__(self, group: ProcessGroup) -> int:
        with group.shards(self.left) as mine:
            for number in mine:
                time.sleep(0.02 * group.rank)  # nor must these be left behind
                with atomic(self.folder / str(number)) as temporary:
                    temporary.write_text(str(number))
                self.written.append((group.rank, number))
        self.seen[group.rank] = len(list(self.folder.iterdir()))
        group.leave_unless_rank_zero()
        return len(self.written)


@pytest.mark.parametrize("processes", [1, 2, 3, 10])
def test_every_shard_is_written_once_and_none_goes_on_before_all_are_there(processes: int, tmp_path: Path) -> None:
    work = Work(tmp_path / "shards")
    assert in_parts(processes, work) == [SHARDS, *[None] * (processes - 1)]
    assert work.prepared == 1
    assert sorted(number for _, number in work.written) == list(range(SHARDS))
    assert work.seen == dict.fromkeys(range(processes), SHARDS)
    numbers = [[number for rank, number in work.written if rank == one] for one in range(processes)]
    assert max(map(len, numbers)) - min(map(len, numbers)) <= 1
    assert {path.name: path.read_text() for path in work.folder.iterdir()} == {str(n): str(n) for n in range(SHARDS)}


def test_a_restart_keeps_what_is_done_and_shares_the_rest_whoever_did_it(tmp_path: Path) -> None:
    first = Work(tmp_path / "shards")
    first.left()
    for number in (0, 2, 4):  # what the first of two processes had done
        (first.folder / str(number)).write_text(str(number))
    again = Work(tmp_path / "shards")
    in_parts(2, again)
    assert sorted(again.written) == [(0, 1), (0, 5), (1, 3), (1, 6)]
    assert Work(tmp_path / "shards")(SINGLE_PROCESS) == 0


def test_what_the_first_finds_holds_for_all_and_is_found_once() -> None:
    calls: list[int] = []

    def work(group: ProcessGroup) -> str:
        return group.from_rank_zero(lambda: calls.append(group.rank) or f"of {group.rank}")

    assert in_parts(3, work) == ["of 0"] * 3
    assert calls == [0]


def test_a_part_that_fails_lets_none_go_on(tmp_path: Path) -> None:
    finished: list[int] = []

    def work(group: ProcessGroup) -> None:
        with group.shards(lambda: [0, 1]) as mine:
            if group.rank:
                raise ZeroDivisionError(f"{mine}")
        finished.append(group.rank)

    with pytest.raises(ZeroDivisionError, match=r"\[1\]"):
        in_parts(2, work)
    assert not finished


def test_only_the_first_goes_on_after_the_end() -> None:
    SINGLE_PROCESS.leave_unless_rank_zero()
    with pytest.raises(NotRankZero):
        ProcessGroup(1, 2).leave_unless_rank_zero()
