"""Chunks hold every row once, within the budget of padded tokens, and know where the masked tokens went."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from condensery.tokens.batches import Chunk, TokenRows, chunks, flatten, span_rows, text_rows
from condensery.tokens.ranges import ranges
from condensery.tokens.store import tokenise
from condensery.tokens.vocabulary import Vocabulary, with_special


def rows_of(seed: int, number: int = 40, most: int = 30) -> tuple[NDArray, NDArray]:
    random = np.random.default_rng(seed)
    return flatten([random.integers(1, 1000, random.integers(1, most)) for _ in range(number)])


@pytest.mark.parametrize("budget", [1, 17, 64, 300, 100_000])
@pytest.mark.parametrize("seed", range(3))
def test_chunks_hold_every_row_once_within_the_budget(seed: int, budget: int) -> None:
    flat, starts = rows_of(seed)
    made = chunks(flat, starts, budget, pad_id=0)
    for chunk in made:
        assert chunk.tokens <= budget or len(chunk) == 1
        assert chunk.lengths[0] == chunk.lengths.max()
        assert chunk.input_ids.shape[1] == min(-(-int(chunk.lengths[0]) // 8) * 8, int(made[0].lengths[0]))
        assert chunk.masked is None
        assert chunk.targets is None
        assert (chunk.input_ids[~chunk.attention_mask] == 0).all()
        assert chunk.input_ids.dtype == chunk.lengths.dtype == chunk.rows.dtype == torch.int64
        for ids, mask, row in zip(chunk.input_ids, chunk.attention_mask, chunk.rows.tolist(), strict=True):
            assert ids[mask].tolist() == flat[starts[row] : starts[row + 1]].tolist()
    lengths = torch.cat([chunk.lengths for chunk in made])
    rows = torch.cat([chunk.rows for chunk in made])
    assert rows.tolist() == sorted(range(len(starts) - 1), key=lambda row: (starts[row] - starts[row + 1], row))
    assert (lengths[1:] <= lengths[:-1]).all()


def test_a_chunk_takes_rows_until_the_budget_is_full() -> None:
    flat, starts = flatten([np.arange(n) for n in (3, 5, 4, 4, 1)])
    made = chunks(flat, starts, 10, pad_id=9)
    assert [tuple(chunk.input_ids.shape) for chunk in made] == [(2, 5), (2, 5), (1, 5)]
    assert [chunk.rows.tolist() for chunk in made] == [[1, 2], [3, 0], [4]]
    flat, starts = flatten([np.arange(n) for n in (9, 20, 17, 16, 1)])
    made = chunks(flat, starts, 40, pad_id=9)
    assert [tuple(chunk.input_ids.shape) for chunk in made] == [(2, 20), (2, 16), (1, 8)]


@pytest.mark.parametrize("budget", [1, 17, 64, 300])
@pytest.mark.parametrize("seed", range(3))
def test_level_chunks_have_no_padding_where_equal_rows_fill_a_quarter(seed: int, budget: int) -> None:
    flat, starts = rows_of(seed, number=400)
    lengths = np.diff(starts)
    padded = 0
    for chunk in (made := chunks(flat, starts, budget, pad_id=0, level=True)):
        assert chunk.tokens <= budget or len(chunk) == 1
        width = int(chunk.lengths[0])
        assert chunk.input_ids.shape[1] == max(1, width)
        padded += chunk.tokens - int(chunk.lengths.sum())
        for ids, mask, row in zip(chunk.input_ids, chunk.attention_mask, chunk.rows.tolist(), strict=True):
            assert ids[mask].tolist() == flat[starts[row] : starts[row + 1]].tolist()
    rows = torch.cat([chunk.rows for chunk in made])
    assert rows.tolist() == sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    usual = sum(chunk.tokens for chunk in chunks(flat, starts, budget, pad_id=0)) - len(flat)
    assert padded < usual / 4 or budget == 1


@pytest.mark.parametrize("seed", range(4))
def test_masked_positions_point_at_the_same_tokens_in_the_chunks(seed: int) -> None:
    flat, starts = rows_of(seed)
    random = np.random.default_rng(seed)
    masked = random.permutation(random.choice(len(flat), len(flat) // 5, replace=False))  # in any order
    targets = masked + 5000
    made = chunks(flat, starts, 50, pad_id=0, masked=masked, targets=targets)
    found = []
    for chunk in made:
        assert chunk.masked is not None
        assert chunk.targets is not None
        assert (chunk.masked[1:] > chunk.masked[:-1]).all()
        assert chunk.input_ids.flatten()[chunk.masked].tolist() == flat[chunk.targets.numpy() - 5000].tolist()
        row, column = chunk.masked // chunk.input_ids.shape[1], chunk.masked % chunk.input_ids.shape[1]
        assert (torch.from_numpy(starts)[chunk.rows[row]] + column == chunk.targets - 5000).all()
        found += chunk.targets.tolist()
    assert sorted(found) == sorted(targets.tolist())


def test_a_chunk_without_masked_tokens_has_empty_positions() -> None:
    flat, starts = flatten([[1, 2, 3], [4, 5]])
    made = chunks(flat, starts, 3, pad_id=0, masked=[1], targets=[7])
    assert [chunk.masked.tolist() for chunk in made] == [[1], []]  # type: ignore[union-attr]
    assert made[1].targets is not None
    assert made[1].targets.dtype == torch.int64


def test_rows_and_tower_are_carried_along() -> None:
    flat, starts = flatten([[1], [2, 3], [4, 5, 6]])
    made = chunks(flat, starts, 4, pad_id=0, tower=1, rows=[70, 80, 90])
    assert [chunk.rows.tolist() for chunk in made] == [[90], [80], [70]]
    assert {chunk.tower for chunk in made} == {1}


def test_an_empty_batch_gives_no_chunk_and_an_empty_row_is_kept() -> None:
    assert chunks([], [0], 10, pad_id=0) == []
    (made,) = chunks([1], [0, 0, 1], 10, pad_id=0)
    assert made.lengths.tolist() == [1, 0]
    assert made.attention_mask.tolist() == [[True], [False]]


def _tokens_by_row(made: list[Chunk], source: list[Chunk]) -> dict[int, list[int]]:
    """The tokens that ``made`` holds for each row of the batch as ``source`` names it."""
    return {
        row: ids[mask].tolist()
        for chunk, named in zip(made, source, strict=True)
        for ids, mask, row in zip(chunk.input_ids, chunk.attention_mask, named.rows.tolist(), strict=True)
    }


@pytest.mark.parametrize("budget", [1, 40, 100, 100_000])
@pytest.mark.parametrize("seed", range(4))
def test_contexts_follow_their_rows_and_both_sides_stay_in_the_budget(seed: int, budget: int) -> None:
    sides = [rows_of(seed, most=30), rows_of(seed + 100, most=(8, 60)[seed % 2])]
    random = np.random.default_rng(seed)
    masked = [random.permutation(len(flat))[: len(flat) // 4] for flat, _ in sides]
    context = TokenRows(*sides[1], masked[1], masked[1] + 5000)
    made = chunks(*sides[0], budget, 0, masked[0], masked[0] + 5000, rows=np.arange(40), context=context)
    contexts = [chunk.context for chunk in made]
    lengths = np.maximum(*(np.diff(starts) for _, starts in sides))
    rows = torch.cat([chunk.rows for chunk in made]).tolist()
    assert rows == sorted(range(40), key=lambda row: (-lengths[row], row))
    for side, places, parts in zip(sides, masked, (made, contexts), strict=True):
        flat, starts = side
        wanted = {row: flat[starts[row] : starts[row + 1]].tolist() for row in range(40)}
        assert _tokens_by_row(parts, made) == wanted  # type: ignore[arg-type]
        for part, chunk in zip(parts, made, strict=True):
            assert part is not None
            assert part.tokens <= budget or len(part) == 1
            assert torch.equal(part.rows, chunk.rows)
            longest = int(part.lengths.max())
            assert part.input_ids.shape[1] == min(-(-longest // 8) * 8, int(np.diff(starts).max()))
            row, column = part.masked // part.input_ids.shape[1], part.masked % part.input_ids.shape[1]
            assert (torch.from_numpy(starts)[part.rows[row]] + column == part.targets - 5000).all()
        assert sorted(torch.cat([part.targets for part in parts]).tolist()) == sorted((places + 5000).tolist())


def test_rows_are_cut_by_the_longer_side_and_each_side_is_as_wide_as_its_own_longest() -> None:
    encoder, context = (flatten([np.arange(n) for n in lengths]) for lengths in ((3, 20, 4, 9), (17, 2, 10, 3)))
    made = chunks(*encoder, 40, pad_id=9, context=TokenRows(*context))
    assert [chunk.rows.tolist() for chunk in made] == [[1, 0], [2, 3]]
    assert [tuple(chunk.input_ids.shape) for chunk in made] == [(2, 20), (2, 16)]
    assert [tuple(chunk.context.input_ids.shape) for chunk in made] == [(2, 17), (2, 16)]  # type: ignore[union-attr]
    assert [chunk.lengths.tolist() for chunk in made] == [[20, 3], [4, 9]], "sorted by the longer side"
    assert all(chunk.context.masked is None for chunk in made)  # type: ignore[union-attr]


def test_a_context_of_another_number_of_rows_is_refused() -> None:
    flat, starts = flatten([[1, 2], [3]])
    with pytest.raises(ValueError, match="a context of 2 rows for 1"):
        chunks([1], [0, 1], 5, pad_id=0, context=TokenRows(flat, starts))
    with pytest.raises(ValueError, match="belong together"):
        chunks(flat, starts, 5, pad_id=0, context=TokenRows(flat, starts, masked=[0]))


def test_moving_a_chunk_moves_everything() -> None:
    flat, starts = flatten([[1, 2, 3], [4, 5]])
    (made,) = chunks(flat, starts, 100, pad_id=0, context=TokenRows(flat, starts, [1], [7]))
    context = made.to("meta", non_blocking=True).context
    assert context is not None
    assert {value.device.type for value in vars(context).values() if isinstance(value, torch.Tensor)} == {"meta"}
    for extra in ({}, {"masked": [1], "targets": [7]}):
        (made,) = chunks(flat, starts, 100, pad_id=0, **extra)  # type: ignore[arg-type]
        moved = made.to("meta", non_blocking=True)
        assert isinstance(moved, Chunk)
        tensors = [value for value in vars(moved).values() if isinstance(value, torch.Tensor)]
        assert len(tensors) == 3 + len(extra)
        assert {tensor.device.type for tensor in tensors} == {"meta"}


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="budget"):
        chunks([1], [0, 1], 0, pad_id=0)
    with pytest.raises(ValueError, match="belong together"):
        chunks([1], [0, 1], 5, pad_id=0, masked=[0])


def test_ranges_lie_one_behind_the_other() -> None:
    assert ranges([5, 0, 9], [2, 0, 3]).tolist() == [5, 6, 9, 10, 11]
    assert ranges([], []).tolist() == []


def test_special_tokens_frame_ids_and_spans(vocabulary: Vocabulary, wordpiece: Path, tmp_path: Path) -> None:
    cls, sep = vocabulary.cls, vocabulary.sep
    assert with_special([7, 8, 9], vocabulary, 5).tolist() == [cls, 7, 8, 9, sep]
    assert with_special([7, 8, 9], vocabulary, 4).tolist() == [cls, 7, 8, sep]
    store = tokenise(["the river stone of the encoder"], wordpiece, tmp_path, sentences=False)
    tokens = store.tokens.tolist()
    flat, starts = span_rows(store, [(2, 3), (0, 1)], vocabulary)
    assert flat.tolist() == [cls, *tokens[2:5], sep, cls, tokens[0], sep]
    assert starts.tolist() == [0, 5, 8]


@pytest.mark.parametrize("length", [3, 4, 6, 9, 64])
def test_titles_stand_before_texts_and_all_is_cut_as_one(
    length: int, vocabulary: Vocabulary, wordpiece: Path, tmp_path: Path
) -> None:
    passages, headings = (
        ["the river stone", "", "of and to in is", "a the"],
        ["the of", "stone", "", "river the of and"],
    )
    texts = tokenise(passages, wordpiece, tmp_path / "texts", sentences=False)
    titles = tokenise(headings, wordpiece, tmp_path / "titles", sentences=False)
    order = [3, 0, 1, 2]
    for chosen in (titles, None):
        flat, starts = text_rows(texts, order, vocabulary, length, chosen)
        for row, a, b in zip(order, starts[:-1], starts[1:], strict=True):
            body = texts.text(row).tolist()
            if chosen is not None and len(titles.text(row)):
                body = [*titles.text(row).tolist(), vocabulary.sep, *body]
            assert flat[a:b].tolist() == with_special(body, vocabulary, length).tolist()


@pytest.mark.parametrize("budget", [1, 60, 150, 10_000])
def test_rows_that_belong_together_stay_in_one_chunk(budget: int) -> None:
    flat, starts = rows_of(seed=1, number=40)
    made = chunks(flat, starts, budget, pad_id=0, together=4)
    seen = []
    for chunk in made:
        assert chunk.tokens <= budget or len(chunk) == 4
        groups = chunk.rows.reshape(-1, 4)
        assert (groups % 4 == torch.arange(4)).all()
        assert (groups // 4 == groups[:, :1] // 4).all()
        seen += chunk.rows.tolist()
        for ids, mask, row in zip(chunk.input_ids, chunk.attention_mask, chunk.rows.tolist(), strict=True):
            assert ids[mask].tolist() == flat[starts[row] : starts[row + 1]].tolist()
    assert sorted(seen) == list(range(40))
    assert (len(made) == 1) == (budget == 10_000)
