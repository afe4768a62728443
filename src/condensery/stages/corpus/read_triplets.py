"""Stage ``read_triplets``: the triplets of Wikipedia sections that Ein Dor et al. published (Gao and Callan 2021a, §4.2)."""

from typing import Any

from condensery.stages.base import Context
from condensery.stages.corpus.config import ReadTripletsConfig
from condensery.stages.corpus.sentences import write_sentences
from condensery.text.formats import triplets


def read_triplets(config: ReadTripletsConfig, context: Context) -> dict[str, Any]:
    """Check the triplets and tokenise their sentences."""
    examples = (
        (split, triplet, 0.0) for split, path in config.files().items() for triplet in triplets.read_triplets(path)
    )
    return dict(write_sentences(examples, context, "sections", "triplets"))
