"""Stage ``validate``: measures the MRR@10 of a retriever on dev queries and on queries of held-out passages."""

from typing import Any

import numpy as np

from condensery.models.checkpoints.retrievers import load_retriever
from condensery.stages.adaptation.config import ValidateConfig
from condensery.stages.adaptation.sample import judge_of
from condensery.stages.base import Context
from condensery.system.files import write_json


def validate(config: ValidateConfig, context: Context) -> dict[str, Any]:
    """Write validation.json: ``by`` (the kinds of queries; null if there are none), ``queries`` and ``MRR@10``."""
    folder = context.input("retriever")
    judge = judge_of(config, context, folder, load_retriever(folder))
    found: dict[str, Any] = {"by": None, "queries": 0, "MRR@10": 0.0}
    if judge is not None:
        ranks = np.concatenate(judge.first)
        found = {"by": judge.by, "queries": len(ranks), "MRR@10": float(ranks.mean())}
    write_json(context.folder / "validation.json", found)
    return found
