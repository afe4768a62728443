"""Stage ``section_triplets``: triplets that ask which of two sentences shares a third's section.

The task is that of Gao and Callan 2021a, §4.2.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from condensery.randomness import hash64
from condensery.stages.base import Context
from condensery.stages.corpus.config import SectionTripletsConfig
from condensery.stages.corpus.sentences import Example, write_sentences
from condensery.text import sections
from condensery.text.words import number_of_words
from condensery.tokens.workers import sentence_begins


def section_triplets(config: SectionTripletsConfig, context: Context) -> dict[str, Any]:
    """Cut the sections into sentences and draw triplets; the id of an article puts it into one split alone."""
    return dict(write_sentences(_examples(config), context, "sections", "triplets"))


def _examples(config: SectionTripletsConfig) -> Iterator[Example]:
    for article in sections.read_articles(config.file()):
        share = hash64(config.seed, "sections", article.id) / 2**64
        split = (
            "test" if share < config.test_share else "dev" if share < config.test_share + config.dev_share else "train"
        )
        cut = [_sentences(texts, config.minimum_words) for texts in article.sections]
        for triplet in sections.section_triplets(cut, config.per_article, config.seed, "triplets", article.id):
            yield split, triplet, 0.0


def _sentences(texts: list[str], minimum_words: int) -> list[str]:
    """Return the sentences of a section that have at least ``minimum_words`` words."""
    kept = []
    for text in texts:
        for first, last in pairwise([*sentence_begins(text), len(text)]):
            sentence = " ".join(text[first:last].split())
            if number_of_words(sentence) >= minimum_words:
                kept.append(sentence)
    return kept
