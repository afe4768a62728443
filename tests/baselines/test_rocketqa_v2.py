"""RocketQAv2: the loss of both models is the paper's, through the cache and in processes; the batches; kills; bad input."""

import copy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import textbook
import torch
from torch import Tensor

from condensery import check_gradients
from condensery.baselines.rocketqa_v2.joint import PAIR, JointBatches, JointModule, joint_loss
from condensery.losses.gradient_cache import backpropagate
from condensery.models.biencoder import PASSAGE, QUERY, BiEncoder
from condensery.models.cross_encoder import new_cross_encoder
from condensery.models.encoder import Encoder
from condensery.tokens.batches import Chunk, chunks
from condensery.tokens.pairs import PairReader
from condensery.training.data.data_module import StepDataModule
from condensery.training.data.steps import Share
from condensery.training.loop import fit

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
import trainings
from small_runs import check_refused

TEMPERATURE = 1.5


def by_definition(retriever: Tensor, reranker: Tensor, divergence: str) -> Tensor:
    """Ren et al. 2021, list by list, summed: softmaxes of both, their KL divergence, and the re-ranker's cross-entropy."""
    total = []
    for products, logits in zip(retriever, reranker, strict=True):
        de, ce = products.exp() / products.exp().sum(), logits.exp() / logits.exp().sum()
        first, second = (de, ce) if divergence == "of_retriever" else (ce, de)
        total.append(sum(p * (p / q).log() for p, q in zip(first, second, strict=True)) - ce[0].log())
    return torch.stack(total).sum()


@pytest.mark.parametrize("divergence", ["of_retriever", "of_reranker"])
def test_the_loss_is_the_papers_and_both_models_get_its_gradient(divergence: Any) -> None:
    draw = torch.Generator().manual_seed(3)
    scores = torch.randn(2, 5, 4, generator=draw, dtype=torch.float64) * 3
    found, expected = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    ours, theirs = joint_loss(*found, divergence), by_definition(*expected, divergence)
    for loss in (ours, theirs):
        loss.backward()
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    assert found.grad is not None
    assert (found.grad.abs().sum(dim=(1, 2)) > 0).all()
    torch.testing.assert_close(found.grad, expected.grad, rtol=1e-9, atol=1e-12)


def joint_batches(folder: Path) -> JointBatches:
    """5 queries a batch with a positive and 3 negatives each."""
    triples = trainings.triple_batches(folder)
    passages, queries = (reader.texts for reader in triples.readers)
    return JointBatches(triples, PairReader(queries, passages, None, textbook.vocabulary(), 7, 16))


def module(divergence: Any = "of_retriever", dropout: float = 0.0) -> JointModule:
    retriever = BiEncoder(Encoder(textbook.language_model(dropout=dropout).float().base_model))
    reranker = new_cross_encoder(textbook.language_model(dropout=dropout).float(), seed=1)
    options: Any = {"divergence": divergence, "temperature": TEMPERATURE}
    return JointModule(retriever, reranker, **options, **trainings.optimiser())


def test_both_models_read_the_same_lists(tmp_path: Path) -> None:
    batches = joint_batches(tmp_path)
    triples = batches.triples
    for step in range(3):
        epoch, chosen = triples.order(step)
        lists = np.column_stack(triples.draw(epoch, chosen))
        batch = batches.batch(step)
        assert batch.listed.shape == lists.shape
        texts: dict[int, list[int]] = {}
        towers: dict[int, int] = {}
        for chunk in batch.chunks:
            for row, ids, length in zip(chunk.rows.tolist(), chunk.input_ids, chunk.lengths, strict=True):
                assert row not in texts
                texts[row], towers[row] = ids[:length].tolist(), chunk.tower
        names, count = np.unique(lists), len(chosen)
        assert sorted(texts) == list(range(count + len(names) + lists.size))
        assert batch.tokens == sum(map(len, texts.values()))
        np.testing.assert_array_equal(names[batch.listed.numpy()], lists)
        for place, query in enumerate(triples.training.rows[chosen]):
            assert (texts[place], towers[place]) == (triples.readers[QUERY].read(np.array([query]))[0].tolist(), QUERY)
            for column, passage in enumerate(lists[place]):
                own = count + int(batch.listed[place, column])
                read, _ = triples.readers[PASSAGE].read(np.array([passage]))
                assert (texts[own], towers[own]) == (read.tolist(), PASSAGE)
                pair = count + len(names) + place * lists.shape[1] + column
                assert (texts[pair], towers[pair]) == (batches.reader.rows([query], [passage])[0].tolist(), PAIR)


@pytest.mark.parametrize("divergence", ["of_retriever", "of_reranker"])
def test_through_the_cache_the_gradient_is_that_of_every_text_by_itself(divergence: Any, tmp_path: Path) -> None:
    batches, cached = joint_batches(tmp_path), module(divergence).double().eval()
    plain, triples = copy.deepcopy(cached), batches.triples
    epoch, chosen = triples.order(0)
    lists = np.column_stack(triples.draw(epoch, chosen))

    def alone(flat: np.ndarray, tower: int, second: int | None = None) -> Chunk:
        (chunk,) = chunks(flat, [0, len(flat)], 1000, textbook.PAD, tower=tower)
        return (
            chunk
            if second is None
            else Chunk(chunk.input_ids, chunk.lengths, chunk.rows, second=torch.tensor([second]))
        )

    products, logits = [], []
    for query, passages in zip(triples.training.rows[chosen], lists, strict=True):
        q = plain.model.vectors(alone(triples.readers[QUERY].read(np.array([query]))[0], QUERY))[0]
        read = [triples.readers[PASSAGE].read(np.array([passage]))[0] for passage in passages]
        products.append(torch.stack([q @ plain.model.vectors(alone(one, PASSAGE))[0] / TEMPERATURE for one in read]))
        pairs = [batches.reader.rows([query], [passage]) for passage in passages]
        logits.append(torch.cat([plain.reranker.scores(alone(flat, 0, int(second[0]))) for flat, _, second in pairs]))
    expected = by_definition(torch.stack(products), torch.stack(logits), divergence) / len(chosen)
    expected.backward()
    batch = batches.batch(0)
    found = backpropagate(cached.objective(batch)[0], batch.chunks, cached.objective(batch)[1])
    torch.testing.assert_close(found["contrast"], expected.detach(), rtol=1e-9, atol=1e-12)
    for (name, one), other in zip(cached.named_parameters(), plain.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        if one.grad is not None and other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-12)


def test_chunks_and_processes_give_the_gradient_of_the_whole_batch(tmp_path: Path) -> None:
    report = check_gradients(module(dropout=0.1), joint_batches(tmp_path), processes=2, frozen=False)
    assert report, report
    assert any("2 processes" in outcome.setting for outcome in report.outcomes)
    parts = [joint_batches(tmp_path).batch(0, Share(rank, 2)) for rank in range(2)]
    assert [len(part.listed) for part in parts] == [3, 2], "processes have lists of unequal number"


@pytest.mark.slow
def test_both_learn_the_positives_and_to_agree(tmp_path: Path) -> None:
    def loss(steps: int, folder: str) -> float:
        settings = trainings.loop(steps=steps, checkpoint_every=0, validate_every=0)
        made = module()
        made.learning_rate = 5e-3
        return fit(made, StepDataModule(joint_batches(tmp_path)), settings, tmp_path / folder, "x")["train/contrast"]

    assert loss(60, "many") < 0.8 * loss(1, "one")


@pytest.mark.slow
def test_a_run_stopped_after_a_checkpoint_ends_bit_identical(tmp_path: Path) -> None:
    trainings.check_stopped_run(lambda: (module(dropout=0.1), StepDataModule(joint_batches(tmp_path))), tmp_path)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("stages.reranker.trained=round1", "trained: round1 has no re-ranker; name a stage of kind train_jointly"),
        ("stages.joint.init_reranker=round1", "init_reranker"),
        ("++stages.joint.divergence=both", "divergence"),
        ("++stages.joint.length=24", "query_length=24 leaves no room for a passage in length=24"),
    ],
)
def test_what_cannot_be_is_one_line_before_any_work(given: str, said: str, tmp_path: Path) -> None:
    check_refused(tmp_path, said, "experiment=rocketqa_v2", given)
