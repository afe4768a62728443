"""Write docs/rows.md: every row of the papers' tables, with the recipe that measures it or the reason why none does.

python .ci/rows_page.py          # `make conf` runs this
python .ci/rows_page.py --check  # fails if the page differs from src/condensery/reporting/published/
"""

import sys
from pathlib import Path

from condensery.reporting.comparison import RECIPE
from condensery.reporting.published import PublishedTable, papers
from condensery.reporting.table_formats import escape_markdown

PAGE = Path(__file__).resolve().parents[1] / "docs" / "rows.md"
HEAD = """# Every row of the papers' tables

This page lists every row of the papers' tables, with the recipe that measures it or the reason why there is none.
{counts} If a recipe measures only a part of a row, the row says what is missing.
`make conf` writes this page from the files in `src/condensery/reporting/published/`, so change it there.

A recipe trains on your files. The numbers of its row differ from the numbers of the paper for the reasons in
[differences from the papers](deviations.md). None of these recipes has been run at full size yet. Add `dry_run=true`
to a command to see what it will cost. Each section has the tables of one paper. Its heading is the letter that
stands for the paper. The commands have these placeholders:

- `DIR` is the folder with the files of the collection. The comment at the head of the recipe names these files. BEIR
  is read from `data/beir`, with a folder for each data set, or downloaded by name.
- `STSB` is the folder with the files of STS-b. `SNLI`, `MULTINLI` and `GLOVE` are files, and `PAQ` is a folder. The
  comment at the head of the recipe describes them.
- `FOLDER` is a checkpoint. For ICT it is an artifact of `experiment=ict_wikipedia`, and for BEIR a trained
  retriever. Table 2 of Q takes a checkpoint for each of its four rows, in this order: `spans_round2` and
  `queries_round2` of `experiment=query_as_context_msmarco`, then `round2` and `queries_round2` of
  `experiment=query_as_context_cotmae_msmarco`.
"""


def page() -> str:
    """The text of the page."""
    tables = [table for paper in papers().values() for table in paper.tables.values()]
    rows = sum(len(table.by_row()) for table in tables)
    without = sum(len(table.not_measured) for table in tables)
    counts = f"Of {rows} rows in {len(tables)} tables, {rows - without} have a recipe."
    parts = [HEAD.format(counts=counts)]
    for paper in papers().values():
        parts.append(f"## {paper.key}\n\n{escape_markdown(paper.citation.partition(': ')[2])}\n")
        parts += [_section(*one) for one in paper.tables.items()]
    return "\n".join(parts)


def _section(number: str, table: PublishedTable) -> str:
    lines = [f"### Table {number}: {escape_markdown(table.caption)}", ""]
    lines += [f"    {command}" for command in table.measured] + [""] * bool(table.measured)
    lines += ["| row of the paper | recipe and its row, or why there is none |", "|---|---|"]
    for row in table.by_row():
        recipes = [
            f"{_link(command)}: {escape_markdown(own[row])}" for command, own in table.measured.items() if row in own
        ]
        if row in table.in_part:
            recipes.append(f"not measured: {escape_markdown(table.in_part[row])}")
        said = "<br>".join(recipes) or f"none: {escape_markdown(table.not_measured[row])}"
        lines.append(f"| {escape_markdown(row)} | {said.replace('|', '&#124;')} |")
    return "\n".join([*lines, ""])


def _link(command: str) -> str:
    (name,) = RECIPE.findall(command)
    return f"[{escape_markdown(name)}](../conf/experiment/{name}.yaml)"


def main() -> int:
    """Write the page, or with ``--check`` return 1 if the page on disk differs."""
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
        print("docs/rows.md is not what src/condensery/reporting/published/ says: run `make conf`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
