"""Writes a table in Markdown, in LaTeX, as CSV and on a terminal. Published numbers are in italics everywhere.

A label may be any text. Each format escapes the characters that it would take for markup, so a reader sees the label as it
is. Line breaks become blanks, and control characters are left out.
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from condensery.reporting.plain import one_line
from condensery.reporting.table import COMPARED, MARK, MISSING, Cell, Table
from condensery.system.files import atomic
from condensery.system.spreadsheets import NUMBER, harmless

SOURCE = "source"
ABOUT_COMPARED = (
    "p is of the test over queries, after Holm's correction. The 95 % interval and the last p, of each test by itself, take "
    "the seeds as drawn at random as well as the queries (Clark 1973); a line with one seed has no spread over seeds."
)
SPREAD, SIGNIFICANCE, PRINTED = "±", "significance", "printed"  # further columns of a CSV beside the number
LINE = 240  # characters of a line where the output is no terminal
# The markup of Markdown with GitHub's tables. "_" within a word, "<" before a blank and a single bracket are no markup.
MARKUP = re.compile(r"[\\`*~]|(?<![^\W_])_|_(?![^\W_])|<(?=[A-Za-z/!?])|&(?=#?\w+;)|\](?=[(\[:])")
ESCAPES = {
    "[": "{[}",  # behind \\ or \midrule a bracket would begin an option, and a star would belong to the command
    "*": "{*}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "–": "--",
    "±": r"$\pm$",
    "·": r"$\cdot$",
    "†": r"$^\dagger$",
}


def one_lined(table: Table) -> Table:
    """The table with all texts in one line each, without control characters."""
    return replace(
        table,
        title=one_line(table.title),
        header=[one_line(text) for text in table.header],
        names=[one_line(text) for text in table.names],
        cells=[[replace(cell, text=one_line(cell.text)) for cell in line] for line in table.cells],
        notes=[one_line(text) for text in table.notes],
        comparisons=[replace(one, name=one_line(one.name), column=one_line(one.column)) for one in table.comparisons],
        sources=[one_line(text) for text in table.sources],
        blocks=[replace(block, heading=one_line(block.heading)) for block in table.blocks],
        conclusion=one_line(table.conclusion),
    )


def escape_markdown(text: str) -> str:
    """Escape text for a line of Markdown. Pipes are escaped later, where a table is made."""
    return MARKUP.sub(r"\\\g<0>", text)


def _paragraph(text: str) -> str:
    """Escape text for a paragraph of Markdown: its beginning must not make a heading, a quotation or a list."""
    escaped = re.sub(r"^(?=>|#+( |$)|[+-]([ -]|$))", r"\\", escape_markdown(text))
    return re.sub(r"^(\d{1,9})(?=[.)]( |$))", r"\1\\", escaped)


def markdown(table: Table) -> str:
    """The table in Markdown, with its conclusion, its notes and the differences from the baseline."""
    table = one_lined(table)
    title = re.sub(r"#+$", r"\\\g<0>", escape_markdown(table.title))  # else "#" would close the heading and vanish
    lines = [f"## {title}", ""]
    sourced = bool(table.sources)
    if table.turned:
        header = ["", *(_name_markdown(name, published) for name, published in _with_kinds(table))]
        body = [[label, *map(escape_markdown, texts)] for label, texts in _above(table)] if sourced else []
        body += [
            [escape_markdown(name), *map(_markdown, cells)]
            for name, cells in zip(table.names, table.cells, strict=True)
        ]
        lines += _grid(header, body)
    else:
        body = []
        for block, places in table.by_block():
            if block.heading:
                body.append([_name_markdown(block.heading, block.published), *[""] * (len(table.header) + sourced)])
            for i in places:
                name = _name_markdown(table.names[i], block.published)
                source = map(escape_markdown, table.sources[i : i + 1])
                body.append([name, *map(_markdown, table.cells[i]), *source])
        header = ["", *map(escape_markdown, table.header), *[SOURCE] * sourced]
        lines += _grid(header, body, left={0, len(table.header) + 1})
    below = [*([table.conclusion] if table.conclusion else []), *table.notes]
    lines += ["", *(line for text in below for line in (_paragraph(text), ""))]
    if table.comparisons:
        compared = [[escape_markdown(one.name), escape_markdown(one.column), *one.shown()] for one in table.comparisons]
        lines += [*_grid(["", *COMPARED], compared), "", escape_markdown(ABOUT_COMPARED)]
    return "\n".join(lines).rstrip() + "\n"


def _markdown(cell: Cell) -> str:
    stars = ("**" if cell.best else "") + ("*" if cell.published and cell.number is not None else "")
    return stars + escape_markdown(cell.text) + stars + (MARK if cell.marked else "")


def _name_markdown(name: str, published: bool) -> str:
    escaped = escape_markdown(name)
    return f"*{escaped}*" if published and name else escaped


def _with_kinds(table: Table) -> list[tuple[str, bool]]:
    """(label, whether it is published) of each column of a turned table."""
    return [(table.header[i], block.published) for block, places in table.by_block() for i in places]


def _above(table: Table) -> list[tuple[str, list[str]]]:
    """The lines above the numbers of a turned table: the block and the source of each column."""
    headings = [block.heading for block, places in table.by_block() for _ in places]
    return [("", headings), (SOURCE, table.sources)]


def _grid(
    header: Sequence[str], lines: Sequence[Sequence[str]], left: frozenset[int] | set[int] = frozenset({0})
) -> list[str]:
    """A Markdown table, padded so that it also reads well as plain text. ``left``: the columns that are left-aligned."""
    escaped = [[text.replace("|", "\\|") for text in line] for line in [header, *lines]]
    widths = [max(3, *(len(line[i]) for line in escaped)) for i in range(len(header))]
    rule = ["-" * width if i in left else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    rows = [
        [
            text.ljust(width) if i in left else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in escaped
    ]
    return ["| " + " | ".join(row) + " |" for row in [rows[0], rule, *rows[1:]]]


def latex(table: Table) -> str:
    """The table as a LaTeX ``table`` environment, for booktabs and graphicx. The notes stand below the numbers.

    A table that is wider than the text is scaled down.
    """
    table = one_lined(table)
    sourced = bool(table.sources)
    if table.turned:
        columns = "l" + "r" * len(table.header)
        body = _latex_turned(table)
    else:
        columns = "l" + "r" * len(table.header) + "l" * sourced
        body = [_latex_line(["", *map(escape, table.header), *[SOURCE] * sourced])]
        for block, places in table.by_block():
            body.append(r"\midrule")
            if block.heading:
                heading = _emphasis(escape(block.heading), block.published)
                body.append(_latex_line([rf"\multicolumn{{{len(columns)}}}{{l}}{{{heading}}}"]))
            for i in places:
                name = _emphasis(escape(table.names[i]), block.published)
                source = [escape(table.sources[i])] if sourced else []
                body.append(_latex_line([name, *map(_latex, table.cells[i]), *source]))
    notes = [rf"\par\footnotesize {escape(note)}" for note in table.notes]
    return "\n".join(
        [
            "% needs \\usepackage[T1]{fontenc}, \\usepackage{booktabs} and \\usepackage{graphicx}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escape(table.title)}}}",
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            *body,
            r"\bottomrule",
            r"\end{tabular}}",
            *notes,
            r"\end{table}",
            "",
        ]
    )


def _latex_turned(table: Table) -> list[str]:
    lines = []
    if table.sources:
        spans = [
            rf"\multicolumn{{{block.size}}}{{c}}{{{_emphasis(escape(block.heading), block.published)}}}"
            for block, _ in table.by_block()
        ]
        rules = " ".join(rf"\cmidrule(lr){{{places[0] + 2}-{places[-1] + 2}}}" for _, places in table.by_block())
        lines += [_latex_line(["", *spans]), rules]
    lines.append(_latex_line(["", *(_emphasis(escape(name), published) for name, published in _with_kinds(table))]))
    if table.sources:
        lines.append(_latex_line([SOURCE, *map(escape, table.sources)]))
    lines.append(r"\midrule")
    for name, cells in zip(table.names, table.cells, strict=True):
        lines.append(_latex_line([escape(name), *map(_latex, cells)]))
    return lines


def _latex_line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex(cell: Cell) -> str:
    text = _emphasis(escape(cell.text), cell.published and cell.number is not None)
    return (rf"\textbf{{{text}}}" if cell.best else text) + (escape(MARK) if cell.marked else "")


def _emphasis(text: str, published: bool) -> str:
    return rf"\textit{{{text}}}" if published else text


def escape(text: str) -> str:
    """Escape text for LaTeX."""
    return "".join(ESCAPES.get(character, character) for character in text)


def records(table: Table) -> tuple[list[str], list[list[str]]]:
    """The table as records: the names of the columns, and lines of texts.

    A number stands alone in its cell. Further columns beside it exist where any line needs them: the standard deviation over
    seeds, the p-value of the test against the baseline, and the different numbers of papers that disagree (the cell then
    holds the highest). A missing value is an empty text.
    """
    table = one_lined(table)
    table = table.turn() if table.turned else table
    beside = [_beside(cell[at] for cell in table.cells) for at in range(len(table.header))]
    header = [*(["block"] if table.blocks else []), "row", *([SOURCE] if table.sources else [])]
    for label, kinds in zip(table.header, beside, strict=True):
        header += [label, *(f"{label} {kind}" for kind in kinds)]
    lines = [
        [
            *([block.heading] if table.blocks else []),
            table.names[i],
            *table.sources[i : i + 1],
            *(text for cell, kinds in zip(table.cells[i], beside, strict=True) for text in _fields(cell, kinds)),
        ]
        for block, places in table.by_block()
        for i in places
    ]
    return header, lines


def _beside(cells: Iterator[Cell]) -> list[str]:
    """The kinds of further columns that a column needs."""
    texts = [_texts_of(cell) for cell in cells]
    return [kind for kind in (SPREAD, SIGNIFICANCE, PRINTED) if any(one[kind] for one in texts)]


def _fields(cell: Cell, kinds: Sequence[str]) -> list[str]:
    texts = _texts_of(cell)
    return [texts[""], *(texts[kind] for kind in kinds)]


def _texts_of(cell: Cell) -> dict[str, str]:
    """The texts of a cell by the kind of column; the number itself has the empty kind."""
    number, _, deviation = cell.text.partition(" ± ")
    several = cell.number is not None and not NUMBER.fullmatch(number)
    if several:
        number = str(cell.number)
    return {
        "": "" if cell.text == MISSING else number,
        SPREAD: deviation,
        SIGNIFICANCE: "" if cell.p is None else f"{cell.p:.4f}",
        PRINTED: cell.text if several else "",
    }


def csv_text(table: Table) -> str:
    """The records as CSV. Texts that a spreadsheet would take for a formula get an apostrophe before them."""
    stream = io.StringIO()
    header, lines = records(table)
    texts = [[harmless(text) for text in line] for line in (header, *lines)]
    csv.writer(stream, lineterminator="\n").writerows(texts)
    return stream.getvalue()


def write_table(table: Table, folder: Path) -> None:
    """Write ``table.md``, ``table.tex`` and ``table.csv`` into ``folder``."""
    for ending, text in (("md", markdown(table)), ("tex", latex(table)), ("csv", csv_text(table))):
        with atomic(folder / f"table.{ending}") as temporary:
            temporary.write_text(text, encoding="utf-8", newline="")


def show(table: Table, console: Console | None = None) -> None:
    """Print the table, its notes and its conclusion to a terminal."""
    table = one_lined(table)
    if console is None:
        console = Console()
        if not console.is_terminal:
            console.width = LINE
    shown = RichTable(title=Text(table.title), title_justify="left")
    shown.add_column("")
    if table.turned:
        for name, published in _with_kinds(table):
            shown.add_column(Text(name, _style(published)), justify="right")
        for what, texts in _above(table) if table.sources else []:
            shown.add_row(what, *map(Text, texts), end_section=what == SOURCE)
        for name, cells in zip(table.names, table.cells, strict=True):
            shown.add_row(Text(name), *map(_text, cells))
    else:
        for heading in table.header:
            shown.add_column(Text(heading), justify="right")
        if table.sources:
            shown.add_column(SOURCE)
        for block, places in table.by_block():
            if block.heading:
                shown.add_section()
                shown.add_row(Text(block.heading, "underline " + _style(block.published)))
            for i in places:
                label = Text(table.names[i], _style(block.published))
                shown.add_row(label, *map(_text, table.cells[i]), *map(Text, table.sources[i : i + 1]))
    console.print(shown)
    for note in table.notes:
        console.print(Text(note))
    if table.conclusion:
        console.print(Text(f"\n{table.conclusion}"))


def _text(cell: Cell) -> Text:
    styles = ["bold"] if cell.best else []
    return Text(cell.text + (MARK if cell.marked else ""), " ".join([*styles, _style(cell.published)]).strip())


def _style(published: bool) -> str:
    return "italic" if published else ""
