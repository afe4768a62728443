"""Tells in words which weights the stage ``keep_best`` kept of a training."""

from collections.abc import Mapping
from typing import Any

HELD_OUT = "queries of passages that are held out"  # the basis of the choice where no query is judged
Kept = Mapping[str, Any]


def choice(kept: Kept) -> str:
    """The content of ``kept.json`` in a sentence: basis of the choice, MRR@10 of the start and of the best, what is kept.

    Args:
        kept: with the keys

            - ``by``: the kind of queries of the choice; None where there were no queries;
            - ``queries``: their number;
            - ``share``: the share of the trained weights that is kept;
            - ``p``: the p-value;
            - ``worse_on_dev``: whether the best candidate is worse on the dev queries alone;
            - ``values``: for each candidate ``of``, ``share`` and ``MRR@10`` from 0 to 1. The first is the start.
    """
    if kept["by"] is None:
        return "There are no queries to choose by: the start is kept"
    start = kept["values"][0]
    best = max(kept["values"], key=lambda one: (one["MRR@10"], -one["share"]))
    line = f"MRR@10 of {kept['queries']:,} {kept['by']}: {100 * start['MRR@10']:.1f} as it is"
    if best["share"]:
        line += (
            f", {100 * best['MRR@10']:.1f} with {best['share']:g} of the weights of {best['of']} (p = {kept['p']:.2g})"
        )
    if kept.get("worse_on_dev"):
        line += ", but not on the dev queries alone"
    return line + (": kept" if kept["share"] else ": the start is kept")
