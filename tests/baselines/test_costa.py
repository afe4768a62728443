"""COSTA: the spans, the group-wise contrast of the paper alone and through the cache, kills, and the stage."""

import copy
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import textbook
import torch
from scipy.stats import beta
from torch import Tensor

from condensery.baselines.costa.pretrain_costa import CostaModule, group_contrast
from condensery.baselines.costa.spans import SpannedBatches, draw_spans
from condensery.losses.gradient_cache import backpropagate
from condensery.models.condenser import Condenser, CondenserShape
from condensery.tokens.spans import RandomWindows
from condensery.training.data.data_module import StepDataModule
from condensery.training.data.sources import SingleSpans
from condensery.training.data.steps import Share

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
import trainings
from small_runs import MODEL, check_refused, metrics_of, run_command, some_text, write_beir

GRAINS, EACH = ((1, 1), (2, 4), (6, 9)), 2
TEMPERATURE, WEIGHT = 1.7, 0.3


def batches(folder: Path, **changes: Any) -> SpannedBatches:
    """5 texts of up to 16 tokens a batch, with six spans each; texts of few words lack some."""
    spans = RandomWindows(trainings.documents(folder), length=16, seed=3, min_length=4)
    options = {"batch_size": 5, "mask_rate": 0.2, "whole_word": True, "budget": 40, "seed": 3}
    source = SingleSpans(spans, textbook.vocabulary())
    own: Any = {"granularities": GRAINS, "spans_each": EACH}
    return SpannedBatches(source, textbook.vocabulary(), **own, **{**options, **changes})


def module(dropout: float = 0.0, projector: bool = True) -> CostaModule:
    model = Condenser(textbook.language_model(dropout=dropout).float(), CondenserShape(0, 1, late_mlm=True))
    own: Any = {"projector": projector, "temperature": TEMPERATURE, "contrast_weight": WEIGHT, "mlm_weight": 0.7}
    return CostaModule(model, **own, **trainings.optimiser())


def by_definition(texts: list[Tensor], spans: list[list[Tensor]]) -> Tensor:
    """Ma et al. 2022, text by text and span by span, before the weight."""
    every = [(i, z) for i, z in enumerate(texts)] + [(i, z) for i, own in enumerate(spans) for z in own]
    total = []
    for i, text in enumerate(texts):
        others = [(j, torch.exp(text @ z / TEMPERATURE)) for place, (j, z) in enumerate(every) if place != i]
        own = [value for place, (j, value) in enumerate(others) if j == i]
        if own:
            total.append(-sum(torch.log(value / sum(other for _, other in others)) for value in own) / len(own))
    return torch.stack(total).mean()


def test_the_contrast_is_the_papers_and_so_is_its_gradient() -> None:
    draw = torch.Generator().manual_seed(3)
    texts = torch.randn(4, 5, generator=draw, dtype=torch.float64)
    spans = torch.randn(4, 3, 5, generator=draw, dtype=torch.float64)
    present = torch.tensor([[1, 1, 1], [0, 1, 0], [0, 0, 0], [1, 0, 1]]).bool()  # the third text has no span
    ours, theirs = ([one.clone().requires_grad_() for one in (texts, spans)] for _ in range(2))
    found = group_contrast(torch.cat([ours[0], ours[1].flatten(1), present.double()], dim=1), 3, TEMPERATURE)
    expected = by_definition(
        list(theirs[0]),
        [[z for z, there in zip(*row, strict=True) if there] for row in zip(theirs[1], present, strict=True)],
    )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    found.backward()
    expected.backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-12)
    none = torch.cat([texts, spans.flatten(1), torch.zeros(4, 3).double()], dim=1).requires_grad_()
    loss = group_contrast(none, 3)
    loss.backward()
    assert loss.item() == 0
    assert not none.grad.any()


def test_spans_are_whole_words_of_their_granularity_with_lengths_of_the_beta_distribution() -> None:
    words = np.array([1, 2, 5, 6, 9, 10, 11, 14, 15, 16, 17, 20])  # eleven words
    draws = np.random.default_rng(1).random((3, 4000, 2))
    found = draw_spans(words, ((1, 1), (3, 9), (12, 20)), draws).reshape(3, 4000, 2)
    assert not found[2].any(), "the text is shorter"
    for (least, most), spans in zip(((1, 1), (3, 9)), found, strict=False):
        first = np.searchsorted(words, spans[:, 0])
        size = np.searchsorted(words, spans.sum(axis=1)) - first
        assert (words[first] == spans[:, 0]).all()
        assert (words[first + size] == spans.sum(axis=1)).all()
        assert set(size.tolist()) == set(range(least, most + 1))
        for words_of, count in zip(*np.unique(size, return_counts=True), strict=True):
            edges = np.clip((np.array([words_of - 0.5, words_of + 0.5]) - least) / max(1, most - least), 0, 1)
            share = np.diff(beta(4, 2).cdf(edges))[0] if most > least else 1.0
            assert count / 4000 == pytest.approx(share, abs=0.03)
            places = first[size == words_of]
            assert set(places.tolist()) <= set(range(11 - words_of + 1))
    assert draw_spans(np.array([1, 2, 3, 4]), ((2, 9),), draws[:1])[:, 1].max() <= 3, "no longer than the text"


def test_spans_are_a_function_of_the_text_and_the_epoch_in_any_share_and_chunk(tmp_path: Path) -> None:
    def spans(data: SpannedBatches, step: int, share: Share = Share()) -> dict[int, tuple[Any, Any]]:  # noqa: B008
        return {
            int(row): (ids[:length].tolist(), own.tolist())
            for chunk in data.batch(step, share).chunks
            for row, ids, length, own in zip(chunk.rows, chunk.input_ids, chunk.lengths, chunk.spans, strict=True)
        }

    whole = batches(tmp_path)
    continues = textbook.vocabulary().continues
    for step in range(3):
        alone = spans(whole, step)
        assert spans(batches(tmp_path, budget=1), step) == alone
        assert spans(pickle.loads(pickle.dumps(whole)), step) == alone
        parts = [spans(whole, step, Share(rank, 2)) for rank in range(2)]
        assert sorted(str(one) for part in parts for one in part.values()) == sorted(map(str, alone.values()))
    for chunk in whole.batch(0).chunks:
        ids = chunk.input_ids.clone()
        ids.view(-1)[chunk.masked] = chunk.targets
        for row, length, own in zip(ids, chunk.lengths.tolist(), chunk.spans.tolist(), strict=True):
            for first, size in (one for one in own if one[1]):
                assert 1 <= first < first + size <= length - 1, "neither [CLS] nor [SEP]"
                assert first == 1 or not continues[row[first]]
                assert first + size == length - 1 or not continues[row[first + size]]
    epoch = whole.steps_an_epoch()
    assert [one for step in range(epoch) for one in spans(whole, step).values()] != [
        one for step in range(epoch) for one in spans(whole, step + epoch).values()
    ]


@pytest.mark.parametrize("projector", [True, False])
def test_losses_and_gradients_through_the_cache_equal_the_papers(projector: bool, tmp_path: Path) -> None:
    made, batch = module(projector=projector).double(), batches(tmp_path, budget=20).batch(0)
    plain = copy.deepcopy(made)
    losses = backpropagate(made.objective(batch)[0], batch.chunks, made.objective(batch)[1])
    assert len(batch.chunks) > 2
    texts: dict[int, Tensor] = {}
    spans: dict[int, list[Tensor]] = {}
    late, model = [], plain.model.language_model
    for chunk in batch.chunks:
        states = model.base_model(chunk.input_ids, attention_mask=chunk.attention_mask.long()).last_hidden_state
        predicted = model.cls(states.flatten(0, 1)[chunk.masked])
        late.append(torch.nn.functional.cross_entropy(predicted, chunk.targets, reduction="sum"))
        for row, own, given in zip(chunk.rows.tolist(), states, chunk.spans.tolist(), strict=True):
            texts[row] = plain.projector(own[0])
            spans[row] = [own[first : first + size].mean(dim=0) for first, size in given if size]
    assert len({len(own) for own in spans.values()}) > 1, "some texts lack spans"
    order = sorted(texts)
    contrast = WEIGHT * by_definition([texts[row] for row in order], [spans[row] for row in order])
    mlm = 0.7 * sum(late) / batch.masked
    assert float(losses["contrast"]) == pytest.approx(float(contrast.detach()), rel=1e-11)
    assert float(losses["mlm_late"]) == pytest.approx(float(mlm.detach()), rel=1e-11)
    (contrast + mlm).backward()
    assert textbook.worst(textbook.gradients(made), textbook.gradients(plain)) < 1e-9


def test_chunks_and_processes_give_the_gradient_of_the_whole_batch(tmp_path: Path) -> None:
    trainings.check_gradients_of_two_processes(module(dropout=0.2), batches(tmp_path), frozen=False)


@pytest.mark.slow
def test_a_run_stopped_after_a_checkpoint_ends_bit_identical(tmp_path: Path) -> None:
    trainings.check_stopped_run(lambda: (module(dropout=0.1), StepDataModule(batches(tmp_path))), tmp_path)


TRAINED = ("pretrain_mlm", "pretrain_costa", "finetune")
FEW = [f"++stage.{kind}.{key}" for kind in TRAINED for key in ("steps=2", "batch_size=6")]


@pytest.mark.slow
def test_the_recipe_runs_to_its_table(tmp_path: Path) -> None:
    root = write_beir(tmp_path / "beir", some_text(documents=24, seed=5))
    given = ["data=squad", f"data.root={root}", f"output_root={tmp_path / 'out'}", "logger=csv", *MODEL, *FEW]
    done = run_command("experiment=costa", *given).sound()
    found = metrics_of(done.folder)
    assert list(found) == ["BM25", "warm start", "MLM", "COSTA"]
    assert all(0 < value <= 1 for row in found.values() for value in row.values())
    assert "projector" not in str(list((done.folder / "stages" / "costa").resolve().iterdir()))
    assert run_command("experiment=costa", *given).sound().computed == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("++stages.costa.phrase=[9,3]", "give the least number of words first"),
        ("++stages.costa.phrase=[0,3]", "phrase"),
        ("++stages.costa.spans_each=0", "spans_each"),
        ("++stages.costa.temperature=0", "temperature"),
    ],
)
def test_what_cannot_be_is_one_line_before_any_work(given: str, said: str, tmp_path: Path) -> None:
    check_refused(tmp_path, said, "experiment=costa", given)
