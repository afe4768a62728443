"""Describe in words which weights the stage ``keep_best`` kept: trained weights or the initial checkpoint."""

from collections.abc import Mapping
from typing import Any

from condensery.errors import number_of

HELD_OUT = "queries of passages that are held out"  # the queries of the choice if no query is judged
Kept = Mapping[str, Any]


def choice(kept: Kept) -> str:
    """Describe the content of ``kept.json`` in a sentence.

    The sentence names the queries on which the weights were chosen, and the weights that are kept. It also has the MRR@10 of
    the initial checkpoint and of the best trained candidate. If the candidate is better, the sentence adds the candidate's
    p-value and the limit.

    Args:
        kept: a mapping with the keys

            - ``by``: kind of queries used for the choice; None if there were no queries;
            - ``queries``: number of these queries;
            - ``share``: share of the trained weights in the kept weights; 0 = the initial checkpoint is kept;
            - ``p``: p-value of the best candidate against the initial checkpoint;
            - ``level``: the limit below which ``p`` must be for trained weights to be kept; missing or 1 = no limit is named;
            - ``worse_on_dev``: whether the best candidate is worse on the dev queries alone;
            - ``values``: ``of``, ``share`` and ``MRR@10`` (0 to 1) of each candidate. The first candidate is the initial
              checkpoint;
            - ``MRR@10``: MRR@10 of the kept weights;
            - ``BM25``: MRR@10 of BM25 alone, if each candidate was fused with BM25.
    """
    if kept["by"] is None:
        return "There are no queries to choose weights by: the initial weights are kept"
    start, *trained = kept["values"]
    best = max(trained, key=lambda one: (one["MRR@10"], -one["share"]), default=start)
    line = f"MRR@10 of {number_of(kept['queries'], kept['by'])}: {100 * start['MRR@10']:.1f} with the initial weights"
    of_best = f"{100 * best['MRR@10']:.1f} with {100 * best['share']:g} % of the weights of {best['of']}"
    if best["MRR@10"] > start["MRR@10"]:
        p, level = kept["p"], kept.get("level", 1)
        digits = (f"{p:.{number}g}" for number in (2, 3, 4, 5))  # more digits if p rounds to the limit
        shown = next((one for one in digits if (float(one) < level) == (p < level)), p)
        limit = f", {'' if p < level else 'not '}below {level:g}" if level < 1 else ""
        line += f", {of_best} (p = {shown}{limit})"
    elif trained:
        line += f"; no candidate scores higher (best: {of_best})"
    else:
        line += "; there are no trained weights to compare"
    if kept.get("worse_on_dev"):
        line += ", but the best candidate scores lower on the dev queries alone"
    if "BM25" in kept:
        line += f"; {100 * kept['BM25']:.1f} with BM25 alone"
    return line + (": these weights are kept" if kept["share"] else ": the initial weights are kept")
