"""How a table looks: in Markdown, in LaTeX, as CSV and on a terminal. Published numbers are in italics everywhere."""

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

if TYPE_CHECKING:
    from condensery.reporting.table import Cell, Table

MARK = "†"
SOURCE = "source"
LINE = 240  # characters, where the output is no terminal
ESCAPES = {
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


def markdown(table: "Table") -> str:
    """The table, its notes and the differences from the baseline."""
    lines = [f"## {table.title}", ""]
    sourced = bool(table.sources)
    if table.turned:
        header = ["", *(_name_markdown(name, published) for name, published in _with_kinds(table))]
        body = [[label, *texts] for label, texts in _above(table)] if sourced else []
        body += [[name, *map(_markdown, cells)] for name, cells in zip(table.names, table.cells, strict=True)]
        lines += _grid(header, body)
    else:
        body = []
        for block, places in table.by_block():
            if block.heading:
                body.append([_name_markdown(block.heading, block.published), *[""] * (len(table.header) + sourced)])
            for i in places:
                name = _name_markdown(table.names[i], block.published)
                body.append([name, *map(_markdown, table.cells[i]), *table.sources[i : i + 1]])
        lines += _grid(["", *table.header, *[SOURCE] * sourced], body, left={0, len(table.header) + 1})
    lines += ["", *(line for note in table.notes for line in (note, ""))]
    if table.comparisons:
        compared = [[one.name, one.column, f"{100 * one.difference:+.1f}", f"{one.p:.4f}"] for one in table.comparisons]
        lines += _grid(["", "metric", "difference", "p"], compared)
    return "\n".join(lines).rstrip() + "\n"


def _markdown(cell: "Cell") -> str:
    stars = ("**" if cell.best else "") + ("*" if cell.published and cell.number is not None else "")
    return stars + cell.text + stars + (MARK if cell.marked else "")


def _name_markdown(name: str, published: bool) -> str:
    escaped = name.replace("*", "\\*")
    return f"*{escaped}*" if published else name


def _with_kinds(table: "Table") -> list[tuple[str, bool]]:
    """The columns of a turned table, and whether each is published."""
    return [(table.header[i], block.published) for block, places in table.by_block() for i in places]


def _above(table: "Table") -> list[tuple[str, list[str]]]:
    """What stands above the numbers of a turned table: of each column the block and the source."""
    headings = [block.heading for block, places in table.by_block() for _ in places]
    return [("", headings), (SOURCE, table.sources)]


def _grid(
    header: Sequence[str], lines: Sequence[Sequence[str]], left: frozenset[int] | set[int] = frozenset({0})
) -> list[str]:
    """A Markdown table, padded so that it also reads well as plain text; ``left`` columns are aligned to the left."""
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


def latex(table: "Table") -> str:
    """A ``table`` environment for a document with booktabs and graphicx; the notes stand below the numbers.

    A table that is wider than the text is set smaller.
    """
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


def _latex_turned(table: "Table") -> list[str]:
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


def _latex(cell: "Cell") -> str:
    text = _emphasis(escape(cell.text), cell.published and cell.number is not None)
    return (rf"\textbf{{{text}}}" if cell.best else text) + (escape(MARK) if cell.marked else "")


def _emphasis(text: str, published: bool) -> str:
    return rf"\textit{{{text}}}" if published else text


def escape(text: str) -> str:
    """Text as LaTeX sets it."""
    return "".join(ESCAPES.get(character, character) for character in text)


def records(table: "Table") -> tuple[list[str], list[list[str]]]:
    """Names of columns and lines of text under them; the significance mark stays, the typography goes."""
    data = table.data()
    header = [*(["block"] if table.blocks else []), "row", *([SOURCE] if table.sources else []), *data["columns"]]
    lines = [
        [
            *([block["heading"]] if table.blocks else []),
            row["name"],
            *([row["source"]] if table.sources else []),
            *(cell["text"] + (MARK if cell["marked"] else "") for cell in row["cells"]),
        ]
        for block in data["blocks"]
        for row in block["rows"]
    ]
    return header, lines


def csv_text(table: "Table") -> str:
    """The records with commas between them."""
    stream = io.StringIO()
    header, lines = records(table)
    csv.writer(stream, lineterminator="\n").writerows([header, *lines])
    return stream.getvalue()


def show(table: "Table", console: Console | None = None) -> None:
    """Print the table and its notes to a terminal."""
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


def _text(cell: "Cell") -> Text:
    styles = ["bold"] if cell.best else []
    return Text(cell.text + (MARK if cell.marked else ""), " ".join([*styles, _style(cell.published)]).strip())


def _style(published: bool) -> str:
    return "italic" if published else ""
