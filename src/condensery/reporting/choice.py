"""What was kept of a training, in words; see the stage ``keep_best``."""

from collections.abc import Mapping
from typing import Any

HELD_OUT = "queries of passages that are held out"  # what is chosen by where nothing is judged
Kept = Mapping[str, Any]


def choice(kept: Kept) -> str:
    """What ``kept.json`` says, in words: by what was chosen, what the start has, what the best of training, what is kept.

    ``kept``: ``by`` (None where there were no queries), ``queries``, ``share`` of the trained weights that is kept, ``p``,
    ``worse_on_dev`` (the best is, alone on them), and ``values``, of each candidate ``of``, ``share`` and ``MRR@10``, from 0
    to 1; the start is the first.
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
