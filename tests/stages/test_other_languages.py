"""The page on other languages: its examples run as they stand, on small settings, and find what they say."""

import re
import shlex
from pathlib import Path

import pytest
from small_runs import MODEL, PROJECT, run_command

PAGE = (PROJECT / "docs" / "howto" / "other-languages.md").read_text()
COMMANDS = re.findall(r"^    python run\.py (.* ask=.*)$", PAGE, re.MULTILINE)
SIZES = ["backbone.vocab_size=1500", "backbone.max_positions=256"]
QUICK = [*MODEL, *SIZES, "stage.pretrain_cocondenser.steps=2", "stage.pretrain_cocondenser.batch_size=4"]


def test_the_page_has_an_example_with_blanks_and_one_without() -> None:
    assert [re.findall(r"languages/(\w+)", command) for command in COMMANDS] == [["chinese"], ["hindi"]]


@pytest.mark.parametrize("command", COMMANDS, ids=["chinese", "hindi"])
def test_an_example_ends_in_the_passage_that_answers(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(PROJECT)
    done = run_command(*shlex.split(command), *QUICK, f"output_root={tmp_path}").sound()
    first = done.out.split("found by fused\n")[1].split("╭─ 1 · ")[1].split("╭─ 2 · ")[0]
    assert first.startswith("2 · 2.txt#0"), done.out
    assert "warning" not in done.out
    assert ("the letters of the passages are Chinese" in done.out) == ("chinese" in command)
    assert "the letters of the passages are Chinese: pairs of characters are its terms" in PAGE
    shown = [line.strip(" │\n") for line in first.splitlines()[1:4]]
    assert ("chinese" not in command) or all(line in PAGE for line in shown)
    head = r"^ *╭─ 1 · 2 · 2\.txt#0 · [01]\.\d\d ─+╮$"
    assert all(len(re.findall(head, text, re.MULTILINE)) == 1 for text in (done.out, PAGE))
