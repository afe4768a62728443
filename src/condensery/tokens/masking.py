"""Masked language modelling: choose the tokens of a batch that are predicted, and replace them in the input.

The rule is that of Devlin et al. (2019, section 3.1, and their code). In every span, about a share ``rate`` of the tokens
is predicted. Of these tokens 80 % become [MASK], 10 % a random token, and 10 % stay unchanged. Whole-word masking takes
words in a random order and masks either all tokens of a word or none.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from condensery.randomness import Key, uniforms
from condensery.tokens.vocabulary import Vocabulary

Ids = NDArray[np.int64]
MASK_SHARE, RANDOM_SHARE = 0.8, 0.1  # shares of the predicted tokens; the rest stays unchanged
_DRAW_BITS = 40  # bits of the sort key for the random order within a span; the other 24 bits hold the span's number
MOST_SPANS = 1 << (64 - _DRAW_BITS)


def mask_spans(
    ids: ArrayLike,
    starts: ArrayLike,
    vocabulary: Vocabulary,
    rate: float,
    whole_word: bool,
    *keys: Key,
    span_ids: ArrayLike,
) -> tuple[Ids, Ids, Ids]:
    """Mask a batch of spans for masked language modelling.

    A span with n ordinary (not special) tokens has a quota of max(1, round(rate * n)) tokens. The words of the span are
    taken in a random order until the quota is reached. A word that would exceed the quota is skipped, as in BERT's code.
    If no word of the span fits into the quota, as in a span of few, long words, the shortest word is masked completely.
    Without whole-word masking, every token counts as a word. A span without ordinary tokens stays unchanged.

    Every random number depends only on (keys, span id, position in the span), so a span gets the same mask in any batch.

    Args:
        ids: (N,) the concatenated spans, with their special tokens; the array is not changed.
        starts: (n + 1,) the start of each span; the last entry is N.
        vocabulary: supplies the special tokens, the word borders and the tokens for random replacement.
        rate: share of the tokens that is predicted, 0 < rate <= 1.
        whole_word: whether to mask whole words (by ``vocabulary.continues``) instead of single tokens.
        keys: keys of the random numbers, for example (seed, "mask", epoch).
        span_ids: (n,) the index of each span in the corpus, not in the batch.

    Returns:
        input_ids (N,): the ids that the encoder reads. masked (m,): ascending positions of the predicted tokens in
        ``ids``. targets (m,): the original ids at these positions.

    Raises:
        ValueError: ``rate`` is not in (0, 1], or the batch has more than ``MOST_SPANS`` spans.
    """
    if not 0 < rate <= 1:
        raise ValueError(f"the mask rate must be above 0 and at most 1, not {rate}")
    flat, edges, names = (np.asarray(values, dtype=np.int64) for values in (ids, starts, span_ids))
    if len(edges) - 1 > MOST_SPANS:
        raise ValueError(f"at most {MOST_SPANS} spans a batch")
    span = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    ordinary = ~vocabulary.is_special[flat]
    begins = _word_starts(flat, edges, ordinary, vocabulary, whole_word)
    word_at = np.flatnonzero(begins)  # (words,) position of the first token of each word
    word_span = span[word_at]
    word_of = np.cumsum(begins) - 1  # (N,) index of the word that contains a token
    sizes = np.bincount(word_of[ordinary], minlength=len(word_at))
    draws = uniforms(*keys, "order", index=names[word_span], second=word_at - edges[word_span])
    tokens = np.bincount(span[ordinary], minlength=len(edges) - 1)
    quota = np.where(tokens > 0, np.maximum(1, np.rint(rate * tokens)), 0).astype(np.int64)
    taken = _take_words(word_span, sizes, draws, quota)
    masked = np.flatnonzero(ordinary & taken[word_of]) if len(taken) else np.empty(0, dtype=np.int64)
    replaced = _replace(flat, masked, names[span[masked]], masked - edges[span[masked]], vocabulary, keys)
    return replaced, masked, flat[masked]


def _word_starts(
    flat: Ids, edges: Ids, ordinary: NDArray[np.bool_], vocabulary: Vocabulary, whole_word: bool
) -> NDArray[np.bool_]:
    """Return (N,) True at the first token of each word.

    An ordinary token begins a word, unless it continues the word of an ordinary token directly before it in the same span.
    """
    if not whole_word:
        return ordinary
    preceded = np.empty_like(ordinary)
    preceded[:1] = False
    preceded[1:] = ordinary[:-1]
    preceded[edges[:-1][edges[:-1] < len(flat)]] = False
    return ordinary & ~((vocabulary.continues[flat] == 1) & preceded)


def _take_words(word_span: Ids, sizes: Ids, draws: NDArray[np.float64], quota: Ids) -> NDArray[np.bool_]:
    """Return (words,) True for the words that fill the quota of each span, taken in the order of their random numbers.

    All spans are processed in parallel, one word of each span per turn, until the quota is filled or no word is left.
    """
    key = (word_span.astype(np.uint64) << np.uint64(_DRAW_BITS)) | (draws * 2.0**_DRAW_BITS).astype(np.uint64)
    order = np.argsort(key, kind="stable")
    numbers = np.bincount(word_span, minlength=len(quota))
    first = np.cumsum(numbers) - numbers
    taken = np.zeros(len(word_span), dtype=np.bool_)
    left = quota.copy()
    active = np.flatnonzero((left > 0) & (numbers > 0))
    turn = 0
    while len(active):
        word = order[first[active] + turn]
        fits = sizes[word] <= left[active]
        taken[word[fits]] = True
        left[active[fits]] -= sizes[word[fits]]
        turn += 1
        active = active[(left[active] > 0) & (numbers[active] > turn)]
    empty = np.flatnonzero((left == quota) & (numbers > 0))
    if len(empty):
        mine = np.flatnonzero(np.isin(word_span, empty))
        shortest = mine[np.lexsort((draws[mine], sizes[mine], word_span[mine]))]
        taken[shortest[np.unique(word_span[shortest], return_index=True)[1]]] = True
    return taken


def _replace(flat: Ids, masked: Ids, names: Ids, positions: Ids, vocabulary: Vocabulary, keys: tuple[Key, ...]) -> Ids:
    """Return the ids with 80 % of ``masked`` replaced by [MASK] and 10 % by an ordinary token drawn uniformly."""
    replaced = flat.copy()
    kind = uniforms(*keys, "kind", index=names, second=positions)
    replaced[masked[kind < MASK_SHARE]] = vocabulary.mask
    random = (kind >= MASK_SHARE) & (kind < MASK_SHARE + RANDOM_SHARE)
    draws = uniforms(*keys, "token", index=names[random], second=positions[random])
    replaced[masked[random]] = vocabulary.ordinary[(draws * len(vocabulary.ordinary)).astype(np.int64)]
    return replaced
