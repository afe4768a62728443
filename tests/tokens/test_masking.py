"""Masks hide the right share, whole words, never special tokens, and do not depend on the batch."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from condensery.tokens.masking import mask_spans
from condensery.tokens.tokenizer import train_wordpiece
from condensery.tokens.vocabulary import Vocabulary

RATE = 0.15


@pytest.fixture(scope="module")
def words() -> Vocabulary:
    """1,000 ids: 5 special, the odd ones go on with a word."""
    continues = np.arange(1000) % 2 == 1
    continues[:5] = False
    return Vocabulary(1000, 0, 2, 3, 4, 1, np.arange(5), continues)


def batch(words: Vocabulary, spans: int, most: int = 128, seed: int = 0) -> tuple[NDArray, NDArray]:
    """Spans of random ids with [CLS] and [SEP]; about half of the tokens go on with a word."""
    random = np.random.default_rng(seed)
    parts = [
        np.concatenate([[words.cls], random.integers(5, 1000, random.integers(3, most - 1)), [words.sep]])
        for _ in range(spans)
    ]
    return np.concatenate(parts), np.concatenate([[0], np.cumsum([len(part) for part in parts])])


def words_of(ids: NDArray, words: Vocabulary) -> list[list[int]]:
    """The positions of each word, token by token as BERT's code gathers them."""
    found: list[list[int]] = []
    before_is_special = True
    for position, number in enumerate(ids.tolist()):
        special = number in words.special
        if not special:
            if words.continues[number] and not before_is_special:
                found[-1].append(position)
            else:
                found.append([position])
        before_is_special = special
    return found


def test_a_token_of_a_script_without_blanks_is_masked_alone() -> None:
    continues = np.zeros(60, np.uint8)
    continues[20:40], continues[40:] = 1, 2
    words, span = Vocabulary(60, 0, 2, 3, 4, 1, np.arange(5), continues), [2, *range(10, 60), 3]
    _, masked, _ = mask_spans(span, [0, 52], words, 0.15, True, 1, "mask", 0, span_ids=[0])
    assert len(masked) == 8, "a word of 21 tokens does not fit"
    assert (masked > 30).any()


@pytest.mark.parametrize("whole_word", [True, False])
@pytest.mark.parametrize("rate", [0.15, 0.3, 0.45])
def test_every_span_fills_its_quota_as_far_as_words_allow(words: Vocabulary, whole_word: bool, rate: float) -> None:
    ids, starts = batch(words, 300)
    _, masked, targets = mask_spans(ids, starts, words, rate, whole_word, 1, "mask", 0, span_ids=np.arange(300))
    assert (np.diff(masked) > 0).all()
    assert np.array_equal(targets, ids[masked])
    assert not np.isin(targets, words.special).any()
    hidden = set(masked.tolist())
    for a, b in pairwise(starts):
        quota = max(1, round(rate * int(b - a - 2)))
        count = sum(place in hidden for place in range(a, b))
        if not whole_word:
            assert count == quota
            continue
        groups = [[a + place for place in word] for word in words_of(ids[a:b], words)]
        whole = [all(place in hidden for place in word) for word in groups]
        assert whole == [any(place in hidden for place in word) for word in groups]
        if count > quota:  # no word fitted: the shortest alone
            assert (
                count
                == min(map(len, groups))
                == sum(len(word) for word, taken in zip(groups, whole, strict=True) if taken)
            )
        else:  # no word that is left would still fit
            assert all(count + len(word) > quota for word, taken in zip(groups, whole, strict=True) if not taken)


def test_realised_rate_and_shares_lie_within_binomial_bounds(words: Vocabulary) -> None:
    ids, starts = batch(words, 3000, seed=1)
    read, masked, targets = mask_spans(ids, starts, words, RATE, True, 1, "mask", 0, span_ids=np.arange(3000))
    tokens, count = len(ids) - 2 * 3000, len(masked)
    assert abs(count / tokens - RATE) < 0.003
    is_mask = read[masked] == words.mask
    is_same = read[masked] == targets
    for share, found in ((0.8, is_mask.mean()), (0.1, (~is_mask & ~is_same).mean()), (0.1, is_same.mean())):
        assert abs(found - share) < 4 * np.sqrt(share * (1 - share) / count)
    drawn = read[masked][~is_mask & ~is_same]
    assert not np.isin(drawn, words.special).any()
    assert drawn.min() < 20
    assert drawn.max() > 980
    assert abs(drawn.mean() - 502) < 4 * 1000 / np.sqrt(12 * len(drawn))


def test_every_word_is_chosen_about_equally_often(words: Vocabulary) -> None:
    span = np.array([words.cls, *range(6, 46, 2), words.sep])  # 20 words of one token
    ids, starts = np.tile(span, 2000), np.arange(2001) * len(span)
    _, masked, _ = mask_spans(ids, starts, words, RATE, True, 7, span_ids=np.arange(2000))
    counts = np.bincount(masked % len(span), minlength=len(span))
    assert counts[0] == counts[-1] == 0
    assert (np.abs(counts[1:-1] - 300) < 4.5 * np.sqrt(300 * 0.85)).all()


def test_tokens_outside_the_mask_are_left_alone_and_the_input_is_not_changed(words: Vocabulary) -> None:
    ids, starts = batch(words, 50)
    before = ids.copy()
    read, masked, _ = mask_spans(ids, starts, words, RATE, True, 1, span_ids=np.arange(50))
    rest = np.setdiff1d(np.arange(len(ids)), masked)
    assert np.array_equal(read[rest], ids[rest])
    assert np.array_equal(ids, before)


@pytest.mark.parametrize("whole_word", [True, False])
def test_a_span_gets_the_same_mask_in_any_batch(words: Vocabulary, whole_word: bool) -> None:
    ids, starts = batch(words, 40)
    names = np.arange(40) * 1_000_003
    read, masked, _ = mask_spans(ids, starts, words, RATE, whole_word, 1, "mask", 2, span_ids=names)
    for order in ([17], [39, 3, 3, 0, 21], list(range(39, -1, -1))):
        parts = [ids[starts[i] : starts[i + 1]] for i in order]
        edges = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
        again, places, _ = mask_spans(
            np.concatenate(parts), edges, words, RATE, whole_word, 1, "mask", 2, span_ids=names[order]
        )
        expected = np.concatenate([read[starts[i] : starts[i + 1]] for i in order])
        assert np.array_equal(again, expected)
        where = [masked[(masked >= starts[i]) & (masked < starts[i + 1])] - starts[i] for i in order]
        assert np.array_equal(places, np.concatenate([w + e for w, e in zip(where, edges[:-1], strict=True)]))


def test_another_seed_epoch_or_span_gives_another_mask(words: Vocabulary) -> None:
    ids, starts = batch(words, 10)
    masks = [
        mask_spans(ids, starts, words, RATE, True, *keys, span_ids=np.arange(10) + shift)[1].tolist()
        for keys, shift in (((1, 0), 0), ((2, 0), 0), ((1, 1), 0), ((1, 0), 10))
    ]
    assert all(masks[0] != other for other in masks[1:])


@pytest.mark.parametrize("whole_word", [True, False])
def test_spans_without_ordinary_tokens_yield_nothing_beside_spans_that_do(words: Vocabulary, whole_word: bool) -> None:
    ids = np.array([2, 3, 2, 10, 3, 2, 0, 3, 2, 7, 3])
    starts = np.array([0, 2, 2, 5, 8, 11])  # an empty span, and one that begins with a token that continues a word
    _, masked, targets = mask_spans(ids, starts, words, RATE, whole_word, 1, span_ids=np.arange(5))
    assert masked.tolist() == [3, 9]
    assert targets.tolist() == [10, 7]
    nothing = mask_spans(ids[:2], [0, 2], words, RATE, whole_word, 1, span_ids=[0])
    assert nothing[0].tolist() == [2, 3]
    assert len(nothing[1]) == len(nothing[2]) == 0
    empty = mask_spans([], [0], words, RATE, whole_word, 1, span_ids=[])
    assert [len(part) for part in empty] == [0, 0, 0]


def test_where_no_word_fits_the_shortest_is_taken_whole(words: Vocabulary) -> None:
    span = np.array([words.cls, 10, 11, 13, 20, 21, 30, 31, 33, words.sep])  # words of 3, 2 and 3 tokens, quota 1
    for name in range(20):
        _, masked, _ = mask_spans(span, [0, len(span)], words, RATE, True, 1, span_ids=[name])
        assert masked.tolist() == [4, 5]


def test_a_word_does_not_go_on_behind_a_special_token_or_in_the_next_span(words: Vocabulary) -> None:
    ids = np.array([2, 10, 3, 11, 3, 2, 13, 3])  # [CLS] 10 [SEP] 11 [SEP] | [CLS] 13 [SEP]: three words of one token
    _, masked, _ = mask_spans(ids, [0, 5, 8], words, 0.5, True, 1, span_ids=[0, 1])
    assert len(masked) == 2
    _, masked, _ = mask_spans(ids, [0, 5, 8], words, 1.0, True, 1, span_ids=[0, 1])
    assert masked.tolist() == [1, 3, 6]


def test_spans_without_special_tokens_are_words_of_their_own(words: Vocabulary) -> None:
    ids = [6, 8, 11, 12]  # 11 would go on with the word of 8, were it not in the next span
    places = [mask_spans(ids, [0, 2, 4], words, 0.5, True, 1, span_ids=[n, n + 99])[1].tolist() for n in range(40)]
    assert {tuple(place) for place in places} == {(0, 2), (0, 3), (1, 2), (1, 3)}


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1])
def test_a_rate_outside_its_range_is_refused(words: Vocabulary, rate: float) -> None:
    with pytest.raises(ValueError, match="mask rate"):
        mask_spans([2, 10, 3], [0, 3], words, rate, True, 1, span_ids=[0])


@pytest.mark.parametrize("text", ["หนังสือภาษาไทยหลายเล่ม", "ကျွန်တော်မြန်မာစာအုပ်ဖတ်သည်", "ភាសាខ្មែរសៀវភៅ", "がらすのほん"])
def test_of_a_run_without_blanks_whole_word_masking_hides_a_part(text: str, tmp_path: Path) -> None:
    tokenizer = train_wordpiece([text] * 3, 300, tmp_path)
    pieces = tokenizer(text[:-4] + text[:5], add_special_tokens=False)["input_ids"]
    ids = [tokenizer.cls_token_id, *pieces, tokenizer.sep_token_id]
    _, masked, _ = mask_spans(ids, [0, len(ids)], Vocabulary.of(tokenizer), 0.15, True, 1, span_ids=[0])
    assert len(pieces) > 3
    assert len(masked) == max(1, round(0.15 * len(pieces)))
