"""Build the tables of a pair audit: the annotators' judgements next to the published numbers, and BM25's ranks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from condensery.evaluation.pair_audit.bm25_ranks import CUTOFFS
from condensery.evaluation.pair_audit.pairs import PASSAGES, QUERIES
from condensery.reporting.comparison import published_cell
from condensery.reporting.table import MISSING, Cell, Table
from condensery.reporting.table_formats import markdown, show
from condensery.system.files import read_json, write_text

# References to the published numbers, as printed. A share of 200 pairs is a multiple of 0.5 %, but the printed 56.6 is not.
PUBLISHED = {PASSAGES: "Q/5/passage-passage", QUERIES: "Q/5/passage-query"}


def tables(audit: dict[str, Any]) -> list[Table]:
    """Build the tables from the content of ``audit.json``.

    The first table shows the annotators' judgements, or dashes if there are none yet. If BM25 was run, a second table shows
    its ranks.
    """
    kinds: dict[str, dict[str, Any]] = audit["kinds"]
    shown = [_by_annotators(kinds, audit["sheets"])]
    if any("proxy" in numbers for numbers in kinds.values()):
        shown.append(_by_bm25(kinds, audit["passages"]))
    return shown


def _by_annotators(kinds: dict[str, dict[str, Any]], sheets: Sequence[str]) -> Table:
    judgements = [kinds[kind].get("judged") for kind in kinds]
    cells = [
        [*([Cell(text) for text in _judged(one)] if one else [Cell(), Cell(), Cell()]), published_cell(PUBLISHED[kind])]
        for kind, one in zip(kinds, judgements, strict=True)
    ]
    header = ["high [95 %]", "pairs", "Fleiss' kappa", "published"]
    table = Table("Pair audit: shares that annotators rate as highly correlated", header, list(kinds), cells)
    if judgements[0]:
        annotators = judgements[0]["annotators"]
        table.notes.append(
            f"In percent, by the majority of {annotators} annotators per pair (a tie counts as low), with Wilson's interval."
        )
    else:
        table.notes.append(
            f"No judgements yet: copy {', '.join(sheets)} to your own folder, have every line filled in with high or"
            " low, and run again with the key `sheets` of this stage set to that folder."
        )
    table.notes.append("published: table 5 of Wu et al. 2023, not measured here; 200 pairs of each kind from MS MARCO.")
    return table


def _judged(numbers: dict[str, Any]) -> list[str]:
    low, high = numbers["interval"]
    kappa = MISSING if numbers["kappa"] is None else f"{numbers['kappa']:.3f}"
    return [f"{100 * numbers['share']:.1f} [{100 * low:.1f}, {100 * high:.1f}]", f"{numbers['pairs']:,}", kappa]


def _by_bm25(kinds: dict[str, dict[str, Any]], passages: int) -> Table:
    header = [f"rank {cutoff}" if cutoff == 1 else f"rank <= {cutoff}" for cutoff in CUTOFFS]
    cells = []
    for numbers in (kinds[kind]["proxy"] for kind in kinds):
        shares = [f"{100 * numbers[f'rank_{cutoff}']:.1f}" for cutoff in CUTOFFS]
        middle = MISSING if numbers["median_rank"] is None else f"{numbers['median_rank']:,.10g}"
        cells.append([Cell(text) for text in (*shares, middle, f"{numbers['pairs']:,}")])
    title = "Pair audit without annotators: BM25's rank of the passage for its context"
    table = Table(title, [*header, "median rank", "pairs"], list(kinds), cells)
    table.notes.append(f"In percent of the pairs, among {passages:,} passages; a context is not ranked for itself.")
    return table


def write_tables(audit: dict[str, Any], path: Path) -> None:
    """Write the tables as Markdown."""
    write_text(path, "\n".join(markdown(table) for table in tables(audit)))


def show_audit(folder: Path) -> None:
    """Print the tables of a finished audit."""
    for table in tables(read_json(folder / "audit.json")):
        show(table)
