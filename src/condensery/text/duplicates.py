"""Find near-duplicate texts by MinHash (Broder 1997) with banding, and sentences that occur word for word in texts."""

import zlib
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from condensery.text.words import terms as words

if TYPE_CHECKING:
    from datasketch import MinHash

PERMUTATIONS = 64
SHINGLE = 3  # words


@cache  # making the permutations takes longer than hashing a text
def _empty() -> "MinHash":
    from datasketch import MinHash

    return MinHash(num_perm=PERMUTATIONS, hashfunc=zlib.crc32)


def sketches(texts: Sequence[str]) -> "list[MinHash]":
    """Return the MinHash of the set of shingles (runs of three words) of each text."""
    min_hashes = []
    for text in texts:
        tokens = words(text)
        sketch = _empty().copy()  # shares the permutations
        runs = range(max(1, len(tokens) - SHINGLE + 1))
        sketch.update_batch(sorted({" ".join(tokens[at : at + SHINGLE]).encode() for at in runs}))
        min_hashes.append(sketch)
    return min_hashes


def first_of_each(min_hashes: "Iterable[MinHash]", threshold: float) -> list[bool]:
    """Return for each text, in order, whether it is kept.

    A text is kept if its estimated Jaccard similarity with every earlier kept text is below ``threshold``.
    """
    from datasketch import MinHashLSH

    index = MinHashLSH(threshold=threshold, num_perm=PERMUTATIONS)
    kept: dict[int, MinHash] = {}
    keep = []
    for number, sketch in enumerate(min_hashes):
        new = all(sketch.jaccard(kept[other]) < threshold for other in index.query(sketch))
        keep.append(new)
        if new:
            index.insert(number, sketch)
            kept[number] = sketch
    return keep


def contained(sentences: Sequence[str], texts: Iterable[str]) -> list[bool]:
    """Return for each sentence whether any of the texts contains its words as one run. Case and punctuation are ignored.

    A sentence of fewer than three words never counts as contained. Sentences are looked up by their first three words,
    so the search costs little more than one pass over the texts.
    """
    wanted = [words(sentence) for sentence in sentences]
    is_contained = [False] * len(sentences)
    by_start: dict[tuple[str, ...], list[int]] = {}
    for number, sentence in enumerate(wanted):
        if len(sentence) >= SHINGLE:
            by_start.setdefault(tuple(sentence[:SHINGLE]), []).append(number)
    for text in texts:
        tokens = words(text)
        for at, start in enumerate(zip(tokens, tokens[1:], tokens[2:], strict=False)):
            for number in by_start.get(start, ()):
                sentence = wanted[number]
                is_contained[number] = is_contained[number] or tokens[at : at + len(sentence)] == sentence
    return is_contained
