"""Stage ``keep_best``: keeps the best interpolation of trained and initial weights, or the initial encoder."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from condensery.evaluation.significance import CHANCE, FEW, randomisation_test
from condensery.models.blending import blended, same_weights
from condensery.models.checkpoints.retrievers import load_retriever, save_retriever
from condensery.reporting.choice import HELD_OUT, choice
from condensery.stages.adaptation.config import KeepBestConfig
from condensery.stages.adaptation.sample import DEV, LEFT_OUT, judge_of
from condensery.stages.base import Context
from condensery.system.files import write_json

KEPT_START = "the initial weights are kept"
FAR = 0.9  # share of the initial MRR@10; below it, a warning says that training made the retriever much worse
WORSE = "training made the retriever much worse at every share of the trained weights; set a lower learning_rate"
OF_DEV = "judge some queries in qrels/dev.tsv, or at least ten in qrels/train.tsv"
OF_HELD_OUT = f"add passages of several sentences or, unless by is queries, {DEV} (qrels/dev.tsv)"


def keep_best(config: KeepBestConfig, context: Context) -> dict[str, Any]:
    """Save the best candidate, and kept.json with the MRR@10 of each candidate and the p-value of the best.

    The p-value comes from a paired randomisation test of the best candidate against the initial encoder.
    """
    start = load_retriever(context.input("start"))
    judge = judge_of(config, context, context.input("start"), start, config.add_left_out_queries)
    if judge is None:
        by_dev = config.by == "dev" or config.queries is None
        wanted, remedy = (DEV, OF_DEV) if by_dev else (HELD_OUT, OF_HELD_OUT)
        context.say(f"there are no {wanted} to choose by, so {KEPT_START}; {remedy}")
        save_retriever(start, context.folder, context.input("start"))
        nothing = {"by": None, "queries": 0, "kept": "start", "share": 0.0}
        write_json(context.folder / "kept.json", {**nothing, "values": []})
        return nothing
    ranks = {("start", 0.0): judge.first}
    trained = zip(config.trained, [load_retriever(folder).model for folder in context.inputs("trained")], strict=True)
    # a training stage may have saved the initial weights
    models = {name: model for name, model in trained if not same_weights(start.model, model)}
    for name, model in models.items():
        for share in config.shares:
            found = judge.reciprocal_ranks(blended(start.model, model, share))
            if found is None:
                context.say(f"{share:g} of {name} is left out: its vectors are not finite")
                continue
            ranks[name, share] = found
    every = {candidate: np.concatenate(found) for candidate, found in ranks.items()}
    means = {candidate: float(values.mean()) for candidate, values in every.items()}
    best = max(means, key=lambda candidate: (means[candidate], -candidate[1]))
    p = randomisation_test(every[best] - every["start", 0.0]) if best[1] else 1.0
    of_each = {
        candidate: {name: float(of_sample.mean()) for name, of_sample in zip(judge.samples, found, strict=True)}
        for candidate, found in ranks.items()
    }
    judged = LEFT_OUT if config.add_left_out_queries else DEV
    worse_on_dev = judged in judge.samples and of_each[best][judged] < of_each["start", 0.0][judged]
    name, share = best if (p < config.level or config.level == 1) and not worse_on_dev else ("start", 0.0)
    kept = blended(start.model, models[name], share) if share else start.model
    save_retriever(replace(start, model=kept), context.folder, context.input("start"))
    queries = len(every[best])
    chosen = {"by": judge.by, "queries": queries, "kept": name, "share": share, "p": round(p, 6)}
    chosen |= {"worse_on_dev": worse_on_dev, "MRR@10": means[name, share]}
    if config.bm25_weight:
        chosen["BM25"] = float(np.concatenate(judge.reciprocal_ranks(start.model, 1) or judge.first).mean())
    values = [{"of": of, "share": part, "MRR@10": means[of, part], "by": of_each[of, part]} for of, part in means]
    write_json(context.folder / "kept.json", {**chosen, "values": values})
    fused = f"each candidate fused with BM25 (weight {config.bm25_weight:g}): " if config.bm25_weight else ""
    context.say(f"{fused}{choice({**chosen, 'level': config.level, 'values': values})}")
    if queries < FEW and models:
        context.say(CHANCE)
    first, *others = means.values()
    if all_far_below(first, others):
        chosen["warnings"] = [f"{', '.join(f'stages.{one}' for one in config.trained)}: {WORSE}"]
    return {**chosen, "MRR@10 of the start": first}


def all_far_below(start: float, trained: Sequence[float]) -> bool:
    """Whether there are trained candidates, and the best of them has less than ``FAR`` of the start's MRR@10."""
    return max(trained, default=start) < FAR * start
