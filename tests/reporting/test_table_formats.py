"""Labels of any kind: each format shows them as they are, and takes nothing in them for an order."""

import csv
import io
import re
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.cells import cell_len
from rich.console import Console

from condensery.evaluation.significance import Interval
from condensery.reporting.comparison import comparison
from condensery.reporting.html_page import results_table
from condensery.reporting.plain import one_line
from condensery.reporting.results import Row
from condensery.reporting.table import Block, Cell, Comparison, Significance, Table, build_table
from condensery.reporting.table_formats import csv_text, escape, escape_markdown, latex, markdown, records, show
from condensery.reporting.table_layout import TableLayout
from condensery.results import Results

LABELS = [
    "<script>alert(1)</script>",
    "<!-- gone",
    "a | b",
    "a \\| b \\",
    "&lt;b&gt; &#65; AT&T",
    "`code`",
    "*a* **b** RocketQA*",
    "_a_ __b__ a_b snake__case",
    "[text](http://example.org) [a][b] ![x](y) [C t6]",
    "<http://example.org>",
    "~~gone~~ ~a~",
    "# no heading #",
    "> no quotation",
    "- no list",
    "+ no list",
    "1. no list",
    "2) no list",
    "=====",
    "[a]: http://example.org",
    "10 < 20 > 5, p < 0.01",
    "$y$ costs $5, $$x$$",
]
DIRTY = "two\nlines\r\n\tand \x1b[31mred\x07\x00\u202e\u2028end\ud800"
CLEAN = "two lines and [31mred end"


def table(label: str, turned: bool = False) -> Table:
    """A label in each place that a table has for one."""
    return Table(
        label,
        [label, "M"],
        [label, "x"],
        [[Cell(label), Cell("1.0", number=1)], [Cell("2.0", number=2, best=True, marked=True), Cell("–")]],
        notes=[label],
        comparisons=[Comparison(label, label, 0.1, 0.5, Interval(-0.1, 0.3, 0.6), label)],
        sources=[label, label],
        blocks=[Block(label, 1, published=True), Block(label, 1)],
        conclusion=label,
        turned=turned,
    )


def inline(text: str) -> list[Token]:
    """The inline tokens of a Markdown page, as GitHub reads tables and strikethrough."""
    blocks = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    kinds = {token.type.removesuffix("_open").removesuffix("_close") for token in blocks}
    assert kinds <= {"heading", "paragraph", "table", "thead", "tbody", "tr", "th", "td", "inline"}, kinds
    return [token for token in blocks if token.type == "inline"]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("label", LABELS)
def test_markdown_shows_a_label_as_it_is(label: str, turned: bool) -> None:
    found = inline(markdown(table(label, turned)))
    parts = list(chain.from_iterable(token.children or [] for token in found))
    assert {part.type for part in parts} <= {"text", "em_open", "em_close", "strong_open", "strong_close"}
    texts = ["".join(part.content for part in token.children or []) for token in found]
    assert texts.count(label) == 12, "as often as the table has it"
    assert sum(part.type == "em_open" for part in parts) == 2 - turned, "what is published, and nothing else"


@pytest.mark.parametrize("text", ["$y$", "$$x_1$$", "$`x`$", "5 $ and 6 $"])
def test_markdown_shows_no_mathematics(text: str) -> None:
    assert not re.search(r"(?<!\\)\$", escape_markdown(text))


def test_markdown_stays_readable_as_plain_text() -> None:
    for text in ("a_b, R@1K [C t6], p < 0.01 & more", "1.5 ± 0.1", "coCondenser + hard negatives", "-3.1"):
        assert escape_markdown(text) == text


@pytest.mark.parametrize("turned", [False, True])
def test_a_line_break_or_control_character_in_a_label_reaches_no_format(turned: bool) -> None:
    made = table(DIRTY, turned)
    stream = io.StringIO()
    show(made, Console(file=stream, width=400, force_terminal=False))
    shown = [markdown(made), latex(made), csv_text(made), stream.getvalue(), str(results_table(made))]
    for text in shown:
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e\ud800-\udfff]", text), text
        assert CLEAN in text.replace("\\[", "[").replace("{[}", "[")
    clean = table(CLEAN, turned)
    assert (markdown(made), latex(made), csv_text(made)) == (markdown(clean), latex(clean), csv_text(clean))


def test_latex_takes_no_label_for_an_option_of_the_line_above() -> None:
    assert escape("[1] *") == "{[}1] {*}"
    for text in (latex(table("[x]")), latex(table("* x"))):
        lines = [line.lstrip() for line in text.partition(r"\toprule")[2].splitlines()]
        assert not [line for line in lines if line.startswith(("[", "*"))]
        assert not re.search(r"\\\\\s*[\[*]", text)


@pytest.mark.parametrize("label", ["ｶﾅと漢字", "שָׁלוֹם", "cafe\u0301", "한국어"])
def test_letters_of_any_script_are_padded_by_the_width_that_they_are_shown_with(label: str) -> None:
    lines = [line for line in markdown(table(label)).splitlines() if line.startswith("|")]
    assert len({cell_len(line) for line in lines[:4]}) == 1, lines
    printed = str(Results(Path(), [row(label, 0.5), row("BM25 of a long name", 0.5)])).splitlines()
    assert len({cell_len(line) for line in printed}) == 1, printed


def test_latex_says_what_letters_of_other_scripts_need() -> None:
    assert "LuaLaTeX" in latex(table("漢字")).splitlines()[0]
    assert "LuaLaTeX" not in latex(table("Größe ± †")).splitlines()[0]


@pytest.mark.parametrize("label", ["=cmd|' /C calc'!A0", "+1+cmd", "-2+3", "@SUM(A1)", "\t=1", "＝1+1"])
def test_a_spreadsheet_runs_no_label(label: str) -> None:
    lines = list(csv.reader(io.StringIO(csv_text(table(label)))))
    cells = [cell for line in lines for cell in line]
    assert "'" + label.strip() in cells
    assert not [cell for cell in cells if cell[:1] in ("=", "+", "-", "@", "\t", "＝")]
    assert "'" + label.strip() not in [cell for line in records(table(label))[1] for cell in line], "only in a CSV"


def test_numbers_of_a_csv_stay_numbers() -> None:
    made = Table("t", ["M"], ["-1.2", "x"], [[Cell("-1.2", number=-1.2)], [Cell("+3", number=3)]])
    assert csv_text(made).splitlines()[1:] == ["-1.2,-1.2", "x,+3"]


def row(name: str, level: float, seed: int = 1) -> Row:
    values = np.random.default_rng(seed).normal(level, 0.05, 60)
    names = [f"q{i}" for i in range(60)]
    return Row(name, "c", "test", {"MRR@10": float(values.mean()), "R": level}, {"MRR@10": values}, names, seed)


def test_csv_cells_are_plain_numbers_and_what_else_is_known_has_columns_of_its_own() -> None:
    rows = [row("base", 0.2), row("base", 0.3, 2), row("far", 0.9), Row("lost", "c", "test", {}, failed="it broke")]
    made = build_table(rows, significance=Significance("base"))
    assert made.cells[1][0].marked
    header, *found = csv.reader(io.StringIO(csv_text(made)))
    assert header == ["row", "MRR@10", "MRR@10 ±", "MRR@10 p", "R", "R ±"]
    base, far, lost = found
    assert [base[0], base[3], base[4:]] == ["base", "", ["25.0", "7.1"]]
    assert f"{base[1]} ± {base[2]}" == made.cells[0][0].text
    assert far[1] == made.cells[1][0].text
    assert float(far[3]) == pytest.approx(made.comparisons[0].p, abs=1e-4)
    assert [far[2], far[5]] == ["", ""], "one seed has no spread"
    assert lost == ["lost", "", "", "", "", ""]
    assert all(re.fullmatch(r"-?\d+(\.\d+)?|", cell) for line in found for cell in line[1:])
    assert csv_text(replace(made, turned=True)) == csv_text(made)


def test_no_p_value_is_printed_as_zero() -> None:
    made = build_table([row("base", 0.2), row("far", 0.9)], significance=Significance("base", test="t"))
    assert made.comparisons[0].p < 1e-9
    assert made.comparisons[0].shown()[2:] == ["0.0001", "0.0001"]
    assert csv_text(made).splitlines()[2].split(",")[2] == "0.0001"


def test_published_numbers_that_differ_stand_in_words_beside_the_highest() -> None:
    published = {"lexical": {"BM25": ["C/6/BM25", "C/5/BM25", "CO/1/BM25"], "DeepCT": ["C/6/DeepCT"]}}
    columns = {"MRR": {"published": "msmarco dev/MRR@10"}, "R": {"published": "msmarco dev/Recall@1000"}}
    given = {"title": None, "columns": columns, "published": published, "within": 0, "test": "t", "level": 0.01}
    made = comparison(TableLayout.model_validate(given), [], "test")
    header, bm25, deep = csv.reader(io.StringIO(csv_text(made)))
    assert header == ["block", "row", "source", "MRR", "MRR printed", "R", "R printed", "how it is measured"]
    assert bm25[3:-1] == ["18.9", "18.9 [C t6] / 18.4 [C t5] / 18.7 [CO]", "85.7", "85.3 [C t6, C t5] / 85.7 [CO]"]
    assert deep[3:-1] == ["24.3", "", "90.9", ""]
    assert [line[-1] for line in (bm25, deep)] == made.origins


def test_one_line_keeps_what_writings_need() -> None:
    assert one_line("می\u200cخواهم") == "می\u200cخواهم"
    assert one_line("") == one_line(" \n ") == ""
