"""Stages that create the examples of a sentence task: pairs with a score, or triplets (Gao and Callan 2021a, §4.2).

A triplet asks which of two sentences comes from the same section of an article as a third sentence.

- ``read_sts`` reads the pairs of the STS benchmark.
- ``read_triplets`` reads the Wikipedia triplets that Ein Dor et al. published.
- ``section_triplets`` samples triplets from articles.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from condensery.randomness import hash64
from condensery.stages.base import Context
from condensery.stages.sentences.config import ReadStsConfig, ReadTripletsConfig, SectionTripletsConfig
from condensery.system.files import write_json
from condensery.text import sections
from condensery.text.formats import sts, triplets
from condensery.text.table import TableWriter, TextTable
from condensery.text.words import number_of_words
from condensery.tokens.artifacts import unknown_words
from condensery.tokens.store import tokenise
from condensery.tokens.tokenizer import load_tokenizer
from condensery.tokens.vocabulary import Vocabulary
from condensery.tokens.workers import sentence_begins

Task = Literal["similarity", "triplets", "nli"]
SPLITS = ("train", "dev", "test")
Example = tuple[str, tuple[str, ...], float]  # split, sentences, score or label (0 for triplets)


def read_sts(config: ReadStsConfig, context: Context) -> dict[str, Any]:
    """Check the pairs of the STS benchmark and tokenise their sentences; scores are divided by 5."""
    examples = (
        (split, (first, second), score / sts.HIGHEST)
        for split, path in config.files().items()
        for first, second, score in sts.read_sts(path)
    )
    return write_sentences(examples, context, "STS-b", "similarity")


def read_triplets(config: ReadTripletsConfig, context: Context) -> dict[str, Any]:
    """Check the published triplets and tokenise their sentences."""
    examples = ((split, one, 0.0) for split, path in config.files().items() for one in triplets.read_triplets(path))
    return write_sentences(examples, context, "sections", "triplets")


def section_triplets(config: SectionTripletsConfig, context: Context) -> dict[str, Any]:
    """Split sections into sentences and sample triplets; each article is in exactly one split, by its id."""
    return write_sentences(_drawn(config), context, "sections", "triplets")


def _drawn(config: SectionTripletsConfig) -> Iterator[Example]:
    for article, of_article in sections.read_articles(config.file()):
        share = hash64(config.seed, "sections", article) / 2**64
        split = (
            "test" if share < config.test_share else "dev" if share < config.test_share + config.dev_share else "train"
        )
        cut = [_long_enough(texts, config.minimum_words, config.sentence_language) for texts in of_article]
        for triplet in sections.section_triplets(cut, config.per_article, config.seed, "triplets", article):
            yield split, triplet, 0.0


def _long_enough(texts: list[str], minimum_words: int, language: str) -> list[str]:
    """Return the sentences of a section that have at least ``minimum_words`` words."""
    kept = []
    for text in texts:
        for first, last in pairwise([*sentence_begins(text, language), len(text)]):
            sentence = " ".join(text[first:last].split())
            if number_of_words(sentence) >= minimum_words:
                kept.append(sentence)
    return kept


def write_sentences(
    examples: Iterable[Example], context: Context, name: str, task: Task, splits: Sequence[str] = SPLITS
) -> dict[str, Any]:
    """Write the artifact of a sentence task: its sentences, and its examples in each split.

    Args:
        examples: the examples, in any order of splits.
        context: context of the stage.
        name: name of the task's collection.
        task: kind of the examples.
        splits: the splits that have examples.

    Returns:
        the number of sentences, the number of examples of each split, and warnings.

    Raises:
        UserError: a split has no example.
    """
    folder, tokenizer = context.folder, context.input("tokenizer")
    known: dict[str, int] = {}
    rows: dict[str, list[list[int]]] = {split: [] for split in splits}
    scores: dict[str, list[float]] = {split: [] for split in rows}
    with TableWriter(folder / "sentences.arrow", ("text",)) as table:
        for split, texts, score in examples:
            for text in texts:
                if text not in known:
                    known[text] = table.count
                    table.add((text,), len(text))
            rows[split].append([known[text] for text in texts])
            scores[split].append(score)
    for split, split_rows in rows.items():
        if not split_rows:
            raise context.error("", f"the split {split} has no example; add sentences")
        np.save(folder / f"rows-{split}.npy", np.array(split_rows, np.int64))
        np.save(folder / f"scores-{split}.npy", np.array(scores[split], np.float32))
    Vocabulary.of(load_tokenizer(tokenizer)).save(folder)
    column = TextTable(folder / "sentences.arrow").column("text")
    store = tokenise(column, tokenizer, folder / "texts", sentences=False, label=f"{context.stage_name}: tokens")
    write_json(folder / "sentences.json", {"name": name, "task": task})
    counts = {"sentences": len(known), **{split: len(split_rows) for split, split_rows in rows.items()}}
    return {**counts, **unknown_words({"sentences": store}, tokenizer)}
