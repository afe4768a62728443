"""Stage ``read_sts``: the pairs and scores of the STS benchmark (Gao and Callan 2021a, §4.2)."""

from typing import Any

from condensery.stages.base import Context
from condensery.stages.corpus.config import ReadStsConfig
from condensery.stages.corpus.sentences import write_sentences
from condensery.text.formats import sts


def read_sts(config: ReadStsConfig, context: Context) -> dict[str, Any]:
    """Check the pairs and tokenise their sentences; scores are divided by 5."""
    examples = (
        (split, (first, second), score / sts.HIGHEST)
        for split, path in config.files().items()
        for first, second, score in sts.read_sts(path)
    )
    return dict(write_sentences(examples, context, "STS-b", "similarity"))
