"""What a step reads, against a slow, plain re-computation from the stores."""

import pickle
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import textbook
import trainings

from condensery.errors import UserError
from condensery.tokens.spans import RandomWindows, SentencePacked, SpanSet
from condensery.tokens.vocabulary import with_special
from condensery.training.data.sources import (
    MixedPairs,
    PassageQueries,
    Rows,
    RowSource,
    SentencePairs,
    SingleSpans,
    SpanPairs,
)

VOCABULARY = textbook.vocabulary()
LENGTH, SHORT = 20, 10  # of passages and of queries or sentences, in tokens
KINDS = ("windows", "sentences")


def texts(rows: Rows) -> list[list[int]]:
    """The ids of each row."""
    return [rows.flat[begin:end].tolist() for begin, end in pairwise(rows.starts.tolist())]


def framed(ids: list[int], length: int = LENGTH) -> list[int]:
    return with_special(ids, VOCABULARY, length).tolist()


def spans_of(folder: Path, kind: str, length: int = LENGTH) -> SpanSet:
    store = trainings.sentences(folder)
    if kind == "windows":
        return RandomWindows(store, length, seed=3, min_length=4)
    return SentencePacked(store, length, short_probability=0.2, seed=3, min_length=4)


def every(source: RowSource, epoch: int, step: int = 0) -> Rows:
    """All items of an epoch, in their order."""
    return source.rows(step, epoch, np.arange(source.items))


def passage_queries(folder: Path, candidates: int = 3, length: int = LENGTH, **asked: bool) -> PassageQueries:
    return PassageQueries(
        trainings.passages_and_queries(folder, **asked), VOCABULARY, length, SHORT, candidates, seed=3
    )


def all_sources(folder: Path) -> dict[str, RowSource]:
    windows = spans_of(folder, "windows")
    queries = passage_queries(folder)
    return {
        "single": SingleSpans(windows, VOCABULARY),
        "pairs": SpanPairs(windows, VOCABULARY),
        "sentences": SentencePairs(windows, VOCABULARY, SHORT, 0.3, seed=3),
        "queries": queries,
        "mixed": MixedPairs(queries, 0.5, seed=3),
    }


NAMES = ("single", "pairs", "sentences", "queries", "mixed")


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_framed_bounded_and_those_of_their_items_in_any_order(name: str, tmp_path: Path) -> None:
    source = all_sources(tmp_path)[name]
    both = 1 if name == "single" else 2
    found = every(source, epoch=1)
    lines = texts(found)
    assert len(lines) == len(found) == both * source.items
    for row, line in enumerate(lines):
        assert (line[0], line[-1]) == (textbook.CLS, textbook.SEP)
        assert 3 <= len(line) <= (SHORT if name in ("sentences", "queries") and row % 2 else LENGTH)
    chosen = np.random.default_rng(0).permutation(source.items)[:5]
    some = source.rows(0, 1, chosen)
    rows = (both * chosen[:, None] + np.arange(both)).reshape(-1)
    assert texts(some) == [lines[row] for row in rows]
    assert some.names.tolist() == found.names[rows].tolist()


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_a_function_of_seed_epoch_and_step_also_in_another_process(name: str, tmp_path: Path) -> None:
    source = all_sources(tmp_path)[name]
    sent = pickle.loads(pickle.dumps(source))
    asked = [(step, epoch) for epoch in (0, 3, 1) for step in range(8)]
    found = {key: texts(every(source, key[1], key[0])) for key in asked}
    for step, epoch in reversed(asked):
        assert texts(every(sent, epoch, step)) == found[step, epoch]
    assert found[0, 0] != found[0, 1], "the epochs are alike"
    alike = all(found[step, 0] == found[0, 0] for step in range(8))
    assert alike == (name != "mixed"), "the step decides for mixed pairs alone"


@pytest.mark.parametrize("kind", KINDS)
def test_single_spans_and_pairs_are_those_of_the_span_set(kind: str, tmp_path: Path) -> None:
    spans = spans_of(tmp_path, kind)
    tokens = spans.store.tokens
    singles, pairs = every(SingleSpans(spans, VOCABULARY), 0), every(SpanPairs(spans, VOCABULARY), 2)
    wanted = spans.spans(0).tolist()
    assert texts(singles) == [framed(tokens[a : a + n].tolist()) for a, n in wanted]
    assert singles.names.tolist() == [a for a, _ in wanted]
    wanted = [span for document in range(spans.documents) for span in spans.pair(2, document)]
    assert texts(pairs) == [framed(tokens[a : a + n].tolist()) for a, n in wanted]


def pieces(spans: SpanSet, begin: int, size: int) -> list[tuple[int, int]]:
    """(begin, end) of the sentences of a span, parts of sentences at its ends included."""
    assert spans.store.sentences is not None
    inside = [place for place in spans.store.sentences.tolist() if begin < place < begin + size]
    return list(pairwise([begin, *inside, begin + size]))


@pytest.mark.parametrize("keep", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sentence_and_the_rest_are_its_span_or_the_span_keeps_it(kind: str, keep: float, tmp_path: Path) -> None:
    spans = spans_of(tmp_path, kind)
    source = SentencePairs(spans, VOCABULARY, SHORT, keep, seed=3)
    tokens, total = spans.store.tokens.tolist(), spans.store.token_count
    kept: list[bool] = []
    places, cut, inside = [], 0, 0
    for epoch in range(40):
        usable = [(a, n) for a, n in spans.spans(epoch).tolist() if len(pieces(spans, a, n)) > 1]
        if epoch == 0:
            assert (source.items, source.left_out) == (len(usable), len(spans.spans(0)) - len(usable))
            assert source.left_out > 0
        found = every(source, epoch)
        lines = texts(found)
        for item in range(source.items):
            begin, size = usable[item % len(usable)]
            sentences = pieces(spans, begin, size)
            assert found.names[2 * item] == begin
            first, last = next(place for place in sentences if place[0] == found.names[2 * item + 1] - total)
            assert lines[2 * item + 1] == framed(tokens[first:last], SHORT)
            whole = framed(tokens[begin : begin + size])
            without = framed(tokens[begin:first] + tokens[last : begin + size])
            assert lines[2 * item] in (whole, without)
            assert len(without) < len(whole)
            kept.append(lines[2 * item] == whole)
            number = sentences.index((first, last))
            places.append((number + 0.5) / len(sentences))
            cut += last - first > SHORT - 2
            inside += begin not in spans.store.sentences.tolist() and number == 0
    assert np.mean(kept) == pytest.approx(keep, abs=4 * (keep * (1 - keep) / len(kept)) ** 0.5)
    assert np.mean(places) == pytest.approx(0.5, abs=0.04)
    for which in (True, False):  # which sentence it is has nothing to do with whether it stays
        chosen = [place for place, stays in zip(places, kept, strict=True) if stays == which]
        assert not chosen or np.mean(chosen) == pytest.approx(0.5, abs=0.05)
    assert min(places) == pytest.approx(1 - max(places)), "begin and end of the longest spans are drawn alike"
    assert cut, "no sentence was longer than its row"
    assert (inside > 0) == (kind == "windows"), "spans that begin inside of a sentence"


@pytest.mark.parametrize("kind", KINDS)
def test_every_sentence_of_every_span_is_drawn_over_the_epochs(kind: str, tmp_path: Path) -> None:
    spans = spans_of(tmp_path, kind)
    source = SentencePairs(spans, VOCABULARY, SHORT, 0.0, seed=3)
    wanted, drawn = set(), set()
    for epoch in range(120):
        drawn |= {int(name) for name in every(source, epoch).names[1::2]}
        for begin, size in spans.spans(epoch).tolist():
            of_it = pieces(spans, begin, size)
            wanted |= {spans.store.token_count + first for first, _ in of_it if len(of_it) > 1}
    assert drawn <= wanted
    assert len(drawn) >= (1.0 if kind == "sentences" else 0.9) * len(wanted)  # windows begin at new places


def test_the_inverse_cloze_task_needs_sentences_and_spans_of_two(tmp_path: Path) -> None:
    without = RandomWindows(trainings.documents(tmp_path), LENGTH, seed=3, min_length=4)
    with pytest.raises(UserError, match="has no sentence boundaries, which the inverse cloze task needs"):
        SentencePairs(without, VOCABULARY, SHORT, 0.0, seed=3)
    one = trainings.store(tmp_path / "one", [30, 30], sentences=[0, 30])
    with pytest.raises(UserError, match=r"no span has two sentences; raise length"):
        SentencePairs(RandomWindows(one, LENGTH, seed=3, min_length=4), VOCABULARY, SHORT, 0.0, seed=3)


def plain_passage(source: PassageQueries, passage: int, query: int | None = None) -> list[int]:
    """Title, [SEP] and the passage without what its query hides, cut to length."""
    asked = source.stores
    begin, end = asked.passages.starts[passage : passage + 2].tolist()
    hidden: set[int] = set()
    if query is not None and asked.hidden is not None and asked.hidden[query, 0] >= 0:
        first, size = asked.hidden[query].tolist()
        hidden = set(range(first, first + size))
    body = [int(asked.passages.tokens[at]) for at in range(begin, end) if at not in hidden]
    title = [] if asked.titles is None else asked.titles.text(passage).tolist()
    return framed([*title, textbook.SEP, *body] if title else body, source.length)


@pytest.mark.parametrize("length", [LENGTH, 12, 8])
@pytest.mark.parametrize("hidden", [True, False])
@pytest.mark.parametrize("titles", [True, False])
def test_a_passage_comes_with_one_of_its_first_queries_which_hides_its_stretch(
    titles: bool, hidden: bool, length: int, tmp_path: Path
) -> None:
    source = passage_queries(tmp_path, 3, length, titles=titles, hidden=hidden)
    asked = source.stores
    having = [passage for passage in range(16) if trainings.QUERIES[passage]]
    assert (source.items, source.left_out) == (len(having), 2)
    drawn: dict[int, set[int]] = {passage: set() for passage in having}
    for epoch in range(40):
        found = every(source, epoch)
        lines = texts(found)
        assert found.names[::2].tolist() == having
        for item, passage in enumerate(having):
            query = int(found.names[2 * item + 1]) - 16
            drawn[passage].add(query - int(asked.first[passage]))
            assert lines[2 * item] == plain_passage(source, passage, query)
            assert lines[2 * item + 1] == framed(asked.queries.text(query).tolist(), SHORT)
    assert drawn == {passage: set(range(min(3, trainings.QUERIES[passage]))) for passage in having}


def test_fewer_candidates_are_the_first_ones(tmp_path: Path) -> None:
    source = passage_queries(tmp_path, candidates=1)
    firsts = [16 + int(source.stores.first[passage]) for passage in range(16) if trainings.QUERIES[passage]]
    for epoch in range(5):
        assert every(source, epoch).names[1::2].tolist() == firsts


def test_what_is_hidden_stands_in_every_part_of_a_passage(tmp_path: Path) -> None:
    """Of what the other tests here are made: stretches at the begin, in the middle and at the end."""
    asked = trainings.passages_and_queries(tmp_path)
    assert asked.hidden is not None
    where = set()
    for passage, query in zip(np.repeat(np.arange(16), trainings.QUERIES), range(len(asked.queries)), strict=True):
        first, size = asked.hidden[query].tolist()
        begin, end = asked.passages.starts[passage : passage + 2].tolist()
        where.add("none" if first < 0 else (first == begin, first + size == end))
        assert first < 0 or begin <= first < first + size <= end
    assert where == {"none", (True, False), (False, False), (False, True)}


def test_mixed_pairs_take_a_sibling_or_the_query_as_the_step_decides(tmp_path: Path) -> None:
    pairs = passage_queries(tmp_path)
    source = MixedPairs(pairs, 0.3, seed=3)
    assert (source.items, source.left_out) == (pairs.items, pairs.left_out)
    documents = np.repeat(np.arange(len(trainings.SIZES)), trainings.SIZES)
    steps, with_passages, siblings = 400, 0, set()
    for step in range(steps):
        epoch = step // 4
        found, plain = every(source, epoch, step), every(pairs, epoch)
        if found.names.tolist() == plain.names.tolist():
            assert texts(found) == texts(plain)
            continue
        with_passages += 1
        lines, queried = texts(found), texts(plain)
        for item in range(source.items):
            passage, other = found.names[2 * item : 2 * item + 2].tolist()
            assert passage == plain.names[2 * item]
            if trainings.SIZES[documents[passage]] == 1:  # alone in its document
                assert lines[2 * item : 2 * item + 2] == queried[2 * item : 2 * item + 2]
                assert other == plain.names[2 * item + 1]
                continue
            assert other != passage
            assert documents[other] == documents[passage]
            assert lines[2 * item] == plain_passage(pairs, passage), "nothing is hidden where no query is drawn"
            assert lines[2 * item + 1] == plain_passage(pairs, other)
            siblings.add((passage, other))
    assert with_passages / steps == pytest.approx(0.3, abs=4 * (0.3 * 0.7 / steps) ** 0.5)
    asking = [passage for passage in range(16) if trainings.QUERIES[passage]]
    assert siblings == {(p, o) for p in asking for o in range(16) if o != p and documents[o] == documents[p]}


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_share_of_mixed_pairs_reaches_its_ends(share: float, tmp_path: Path) -> None:
    pairs = passage_queries(tmp_path)
    source = MixedPairs(pairs, share, seed=3)
    same = [every(source, 0, step).names.tolist() == every(pairs, 0).names.tolist() for step in range(60)]
    assert all(same) == (share == 0.0)
    assert any(same) == (share == 0.0)


@pytest.mark.parametrize("name", ["sentences", "queries", "mixed"])
def test_one_name_is_one_text_whatever_side_it_stands_on(name: str, tmp_path: Path) -> None:
    """Masks are drawn by the name; the passages' own differ where something is hidden, so nothing is here."""
    windows = spans_of(tmp_path, "sentences")
    pairs = passage_queries(tmp_path, hidden=False)
    source = {
        "sentences": SentencePairs(windows, VOCABULARY, SHORT, 1.0, seed=3),
        "queries": pairs,
        "mixed": MixedPairs(pairs, 0.5, seed=3),
    }[name]
    text_of: dict[int, list[int]] = {}
    for epoch in range(20):
        found = every(source, epoch, epoch)
        for number, line in zip(found.names.tolist(), texts(found), strict=True):
            assert text_of.setdefault(number, line) == line
    assert len({tuple(line) for line in text_of.values()}) > 20
