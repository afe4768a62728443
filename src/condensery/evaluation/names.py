"""The names of metrics as users write them. The module imports no library, so misspelt names are reported at once."""

import re

from condensery.errors import UserError, shown

_NAME = re.compile(r"(?P<name>[a-z]+)(?:@(?P<cutoff>[1-9][0-9]{0,8}))?", re.IGNORECASE)
HIT = "Hit"  # computed without trec_eval: whether one of the first k passages contains an answer
# name in lower case -> measure of ir_measures, or HIT
MEASURES = {"mrr": "RR", "rr": "RR", "recall": "R", "r": "R", "ndcg": "nDCG", "success": "Success"}
MEASURES |= {"map": "AP", "ap": "AP", "precision": "P", "p": "P", "hit": HIT}
_NEEDS_CUTOFF = ("R", "Success", "P", HIT)


def split_metric(name: str) -> tuple[str, int | None]:
    """Split the name of a metric, such as MRR@10, Recall@100, R@100, nDCG@10, MAP or Hit@20, into measure and cutoff.

    Returns:
        The name of the measure in ir_measures, or ``HIT``; and the cutoff, or None if the name has no cutoff.

    Raises:
        UserError: the name does not exist or lacks its cutoff.
    """
    match = _NAME.fullmatch(name.strip()) if isinstance(name, str) else None
    measure = MEASURES.get(match["name"].lower()) if match else None
    if match is None or measure is None:
        known = "MRR@k, Recall@k, NDCG@k, Success@k, Hit@k, P@k, MAP, MAP@k"
        raise UserError(f"metric {shown(str(name))!r} does not exist; known: {known}")
    cutoff = int(match["cutoff"]) if match["cutoff"] else None
    if cutoff is None and measure in _NEEDS_CUTOFF:
        raise UserError(f"metric {shown(name)!r} needs a cutoff, for example {name}@100")
    return measure, cutoff


def known_metric(name: str) -> str:
    """Return the name of a metric, as a validator of pydantic. Raises ``ValueError`` if ``split_metric`` would fail."""
    try:
        split_metric(name)
    except UserError as error:
        raise ValueError(str(error)) from None
    return name
