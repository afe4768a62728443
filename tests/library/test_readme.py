"""What the README shows of Python is what the examples, which the tests run, hold."""

from pathlib import Path
from textwrap import dedent

PROJECT = Path(__file__).parents[2]


def test_the_readmes_ten_lines_are_the_example() -> None:
    example = (PROJECT / "examples" / "pretrain.py").read_text()
    readme = (PROJECT / "README.md").read_text()
    first = readme.index("    import pytorch_lightning as pl\n")
    shown = dedent(readme[first : readme.index("\n\n`CondenserModule`", first)])
    lines = [line for line in shown.splitlines() if line.strip()]
    assert len(lines) >= 6
    assert [line for line in lines if line not in example] == []
