"""Write a table as Markdown, LaTeX or CSV, or print it to a terminal. Published numbers are in italics, except in CSV.

A label may be any string. Each format escapes the characters that it would interpret as markup, so that a reader sees the
label unchanged. Line breaks become spaces, and control characters are left out.
"""

import re
from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from condensery.evaluation.significance import four_digits
from condensery.reporting.plain import one_line
from condensery.reporting.table import COMPARED, MARK, MISSING, Block, Cell, Comparison, Table
from condensery.system.files import write_text
from condensery.system.spreadsheets import NUMBER, csv_of, harmless

Part = TypeVar("Part")
SOURCE, ORIGIN = "source", "how it is measured"
ABOUT_COMPARED = (
    "p is of the test over queries, after Holm's correction. The 95 % interval and the last p are of each test alone, and "
    "treat both the seeds and the queries as random samples (Clark 1973); a line with one seed has no spread over seeds."
)
SPREAD, SIGNIFICANCE, PRINTED = "±", "p", "printed"  # further columns of a CSV, after the number
LINE = 240  # characters per line if the output is not a terminal
IN_BOLD = re.compile(r"; [^.;]*\bin bold\b[^.;]*(?=\.)")  # part of a note that needs a terminal
# Markup of GitHub-flavoured Markdown, and $ of formulas. "_" in a word, "<" before a space, and a single bracket are none.
MARKUP = re.compile(r"[\\`*~$]|(?<![^\W_])_|_(?![^\W_])|<(?=[A-Za-z/!?])|&(?=#?\w+;)|\](?=[(\[:])")
LATIN = "\u024f"  # the last letter that LaTeX prints without a font of another script
OTHER_SCRIPTS = "; for letters of other scripts, use LuaLaTeX and a font that has them in place of fontenc"
LATEX = str.maketrans(
    {
        "[": "{[}",  # after \\ or \midrule, a bracket would begin an option, and a star would belong to the command
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
)


def one_lined(part: Part) -> Part:
    """Return a table, or a part of one, with every string in one line, without control characters."""
    known: Any = part
    if isinstance(known, str):
        known = one_line(known)
    elif isinstance(known, list):
        known = list(map(one_lined, known))
    elif isinstance(known, Table | Comparison | Cell | Block):
        known = replace(known, **{name: one_lined(value) for name, value in vars(known).items()})
    return cast(Part, known)


def escape_markdown(text: str) -> str:
    """Escape text for a line of Markdown. Pipes are escaped later, when a table is built."""
    return MARKUP.sub(r"\\\g<0>", text)


def _paragraph(text: str) -> str:
    """Escape text for a paragraph of Markdown, so that its beginning is not read as a heading, a quotation or a list."""
    escaped = re.sub(r"^(?=>|#+( |$)|[+-]([ -]|$))", r"\\", escape_markdown(text))
    return re.sub(r"^(\d{1,9})(?=[.)]( |$))", r"\1\\", escaped)


def markdown(table: Table) -> str:
    """Return the table in Markdown, with its conclusion, its notes and the differences from the baseline."""
    table = one_lined(table)
    title = re.sub(r"#+$", r"\\\g<0>", escape_markdown(table.title))  # else a final "#" would disappear
    header, above, body, left = laid_out(table)
    lines = [header, *above]
    for block, own in body:
        if block.heading:
            lines.append([_heading(block), *[Cell("")] * (len(header) - 1)])
        lines += own
    shown = grid([[_markdown(cell) for cell in line] for line in lines], left)
    below = [*([table.conclusion] if table.conclusion else []), *table.notes]
    text = [f"## {title}", "", *shown, "", *(line for text in below for line in (_paragraph(text), ""))]
    if table.comparisons:
        compared = [[escape_markdown(one.name), escape_markdown(one.column), *one.shown()] for one in table.comparisons]
        text += [*grid([["", *COMPARED], *compared]), "", escape_markdown(ABOUT_COMPARED)]
    return "\n".join(text).rstrip() + "\n"


class Layout(NamedTuple):
    """The lines of a table as the formats show them.

    Attributes:
        header: the header line.
        above: the lines between the header and the numbers of a transposed table: the block and the source of each column.
        body: each block with its lines: name, numbers and source. A transposed table has a single block.
        left: indices of the left-aligned columns.
    """

    header: list[Cell]
    above: list[list[Cell]]
    body: list[tuple[Block, list[list[Cell]]]]
    left: set[int]


def laid_out(table: Table) -> Layout:
    """Return the lines of a table, transposed if ``table.turned``."""
    names = [Cell(table.names[i], published=block.published) for block, places in table.by_block() for i in places]
    if table.turned:
        lines = [[Cell(label), *(line[at] for line in table.cells)] for at, label in enumerate(table.header)]
        headings = [block.heading for block, places in table.by_block() for _ in places]
        above = [["", *headings], [SOURCE, *table.sources]] if table.sources else []
        body = [(Block("", len(lines)), lines)]
        return Layout([Cell(""), *names], [[Cell(text) for text in line] for line in above], body, {0})
    sources = [[Cell(text)] for text in table.sources] or [[]] * len(names)
    lines = [[name, *cells, *source] for name, cells, source in zip(names, table.cells, sources, strict=True)]
    header = [Cell(text) for text in ("", *table.header, *[SOURCE] * bool(table.sources))]
    body = [(block, [lines[i] for i in places]) for block, places in table.by_block()]
    return Layout(header, [], body, {0, len(table.header) + 1} if table.sources else {0})


def _heading(block: Block) -> Cell:
    return Cell(block.heading, published=block.published)


def _in_italics(cell: Cell) -> bool:
    return cell.published and cell.text not in ("", MISSING)


def _markdown(cell: Cell) -> str:
    stars = ("**" if cell.best else "") + ("*" if _in_italics(cell) else "")
    return stars + escape_markdown(cell.text) + stars + (MARK if cell.marked else "")


def grid(lines: Sequence[Sequence[str]], left: Container[int] = (0,)) -> list[str]:
    """Return a Markdown table, padded so that it also reads well as plain text.

    Args:
        lines: the header and the lines below it.
        left: indices of the left-aligned columns.
    """
    escaped = [[text.replace("|", "\\|") for text in line] for line in lines]
    widths = [max(3, *map(cell_len, column)) for column in zip(*escaped, strict=True)]
    rule = ["-" * width if i in left else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    rows = []
    for line in (escaped[0], rule, *escaped[1:]):
        blanks = [" " * (width - cell_len(text)) for text, width in zip(line, widths, strict=True)]
        padded = [line[i] + blanks[i] if i in left else blanks[i] + line[i] for i in range(len(line))]
        rows.append(f"| {' | '.join(padded)} |")
    return rows


def latex(table: Table) -> str:
    """Return the table as a LaTeX ``table`` environment for booktabs and graphicx, with the notes below the numbers.

    A table that is wider than the text is scaled down.
    """
    table = one_lined(table)
    header, above, by_block, left = laid_out(table)
    columns = "".join("l" if at in left else "r" for at in range(len(header)))
    body = [_latex_line(header)]
    if above:
        spans = [rf"\multicolumn{{{block.size}}}{{c}}{{{_latex(_heading(block))}}}" for block, _ in table.by_block()]
        rules = [rf"\cmidrule(lr){{{places[0] + 2}-{places[-1] + 2}}}" for _, places in table.by_block()]
        body = [rf" & {' & '.join(spans)} \\", " ".join(rules), *body, _latex_line(above[-1])]
    for block, lines in by_block:
        body.append(r"\midrule")
        if block.heading:
            body.append(rf"\multicolumn{{{len(columns)}}}{{l}}{{{_latex(_heading(block))}}} \\")
        body += map(_latex_line, lines)
    notes = [rf"\par\footnotesize {escape(note)}" for note in table.notes]
    other_scripts = any(one.isalpha() and one > LATIN for one in "".join([table.title, *body, *notes]))
    needs = "\\usepackage[T1]{fontenc}, \\usepackage{booktabs} and \\usepackage{graphicx}"
    return "\n".join(
        [
            f"% needs {needs}{OTHER_SCRIPTS if other_scripts else ''}",
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


def _latex_line(cells: Sequence[Cell]) -> str:
    return " & ".join(map(_latex, cells)) + r" \\"


def _latex(cell: Cell) -> str:
    text = rf"\textit{{{escape(cell.text)}}}" if _in_italics(cell) else escape(cell.text)
    return (rf"\textbf{{{text}}}" if cell.best else text) + (escape(MARK) if cell.marked else "")


def escape(text: str) -> str:
    """Escape text for LaTeX."""
    return text.translate(LATEX)


def records(table: Table) -> tuple[list[str], list[list[str]]]:
    """Return the table as records: the column names, and lines of strings.

    The column of a metric holds only the numbers. After this column, further columns are added if any line needs them: the
    standard deviation over seeds, the p-value against the baseline, and the different numbers of papers that disagree. If
    papers disagree, the column of the metric holds the highest number. A missing value is an empty string. The last column
    says how each line was or would be measured.
    """
    table = one_lined(table)
    header = [*(["block"] if table.blocks else []), "row", *([SOURCE] if table.sources else [])]
    lines = [
        [*([block.heading] if table.blocks else []), table.names[i], *table.sources[i : i + 1]]
        for block, places in table.by_block()
        for i in places
    ]
    for at, label in enumerate(table.header):
        texts = [_texts_of(line[at]) for line in table.cells]
        for kind in ("", SPREAD, SIGNIFICANCE, PRINTED):
            if not kind or any(one[kind] for one in texts):
                header.append(f"{label} {kind}".rstrip())
                for line, one in zip(lines, texts, strict=True):
                    line.append(one[kind])
    if table.origins:
        header.append(ORIGIN)
        lines = [[*line, origin] for line, origin in zip(lines, table.origins, strict=True)]
    return header, lines


def _texts_of(cell: Cell) -> dict[str, str]:
    """Return the CSV strings of a cell: kind of column -> string. The kind of the column with the number is ""."""
    number, _, deviation = cell.text.partition(" ± ")
    several = cell.number is not None and not NUMBER.fullmatch(number)
    if several:
        number = str(cell.number)
    return {
        "": "" if cell.text == MISSING else number,
        SPREAD: deviation,
        SIGNIFICANCE: "" if cell.p is None else four_digits(cell.p),
        PRINTED: cell.text if several else "",
    }


def csv_text(table: Table) -> str:
    """Return the records as CSV. A string that a spreadsheet would read as a formula is prefixed with an apostrophe."""
    header, lines = records(table)
    return csv_of([harmless(text) for text in line] for line in (header, *lines))


def write_table(table: Table, folder: Path) -> None:
    """Write ``table.md``, ``table.tex`` and ``table.csv`` into ``folder``."""
    for ending, text in (("md", markdown(table)), ("tex", latex(table)), ("csv", csv_text(table))):
        write_text(folder / f"table.{ending}", text)


def show(table: Table, console: Console | None = None) -> None:
    """Print the table, its notes and its conclusion to a terminal."""
    table = one_lined(table)
    if console is None:
        console = Console()
        if not console.is_terminal:
            console.width = LINE
    header, above, body, left = laid_out(table)
    shown = RichTable(title=Text(table.title), title_justify="left")
    for at, cell in enumerate(header):
        shown.add_column(_text(cell), justify="left" if at in left else "right")
    for line in above:
        shown.add_row(*map(_text, line), end_section=line[0].text == SOURCE)
    for block, lines in body:
        if block.heading:
            shown.add_section()
            shown.add_row(Text(block.heading, "underline italic" if block.published else "underline"))
        for line in lines:
            shown.add_row(*map(_text, line))
    console.print(shown)
    for note in table.notes if console.is_terminal else [IN_BOLD.sub("", note) for note in table.notes]:
        console.print(Text(note), soft_wrap="python run.py" in note)  # a command is copied as one line
    if table.conclusion:
        console.print(Text(f"\n{table.conclusion}"))


def _text(cell: Cell) -> Text:
    styles = [*["bold"] * cell.best, *["italic"] * _in_italics(cell)]
    return Text(cell.text + (MARK if cell.marked else ""), " ".join(styles))
