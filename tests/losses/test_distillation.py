"""The losses of distillation are their formulas, alone, in chunks and in several processes; and the teacher is looked for."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import textbook
import torch
from formulas import check_formula, texts
from sentence_transformers.sentence_transformer.losses import DistillKLDivLoss, MarginMSELoss
from torch import Tensor

from condensery import RetrievalLoss, UserError, check_gradients
from condensery.losses.info_nce import info_nce
from condensery.losses.registry import check_loss, make_loss, register, takes_teacher, teaching
from condensery.models.biencoder import BiEncoder
from condensery.models.encoder import Encoder
from condensery.retrieval.pair_scores import PairScores, TeacherScores
from condensery.training.modules.biencoder import BiEncoderModule

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
import trainings

NAN = float("nan")
OPTIONS = {"temperature": 0.4, "teacher_temperature": 1.7}
LOSSES: dict[str, dict[str, Any]] = {
    "margin_mse": {"name": "margin_mse", **OPTIONS},
    "kl": {"name": "kl", **OPTIONS},
    "kl and contrast": {"name": "kl", **OPTIONS, "contrast_weight": 0.3},
}


def by_definition(
    loss: dict[str, Any], q: Tensor, p: Tensor, positive: Tensor, known: Tensor, teacher: Tensor
) -> Tensor:
    """Query by query and passage by passage."""
    student, taught = OPTIONS["temperature"], OPTIONS["teacher_temperature"]
    terms = []
    for i, row in enumerate(teacher.tolist()):
        own = int(positive[i])
        scored = [j for j, value in enumerate(row) if value == value]
        if loss["name"] == "margin_mse":
            for j in scored:
                if j != own and own in scored and not known[i, j]:
                    margin = (q[i] @ p[own] - q[i] @ p[j]) / student
                    terms.append((margin - (row[own] - row[j]) / taught) ** 2)
        elif len(scored) > 1:
            theirs = torch.tensor([np.exp(row[j] / taught) for j in scored], dtype=torch.float64)
            ours = torch.stack([torch.exp(q[i] @ p[j] / student) for j in scored])
            theirs, ours = theirs / theirs.sum(), ours / ours.sum()
            terms.append((theirs * (theirs / ours).log()).sum())
    found = torch.stack(terms).mean()
    if weight := loss.get("contrast_weight"):
        found = found + weight * info_nce(q, p, positive, known, student)
    return found


def a_batch() -> dict[str, Tensor]:
    """Five queries and nine passages; query 1 has no score, 2 none of its positive, 3 that of its positive alone."""
    draw = torch.Generator().manual_seed(5)
    teacher = torch.randn(5, 9, generator=draw, dtype=torch.float64) * 3
    teacher[torch.rand(5, 9, generator=draw) < 0.4] = NAN
    positive = torch.tensor([0, 2, 3, 6, 8])
    teacher[torch.arange(5), positive] = torch.tensor([4.0, NAN, NAN, 2.5, 1.0], dtype=torch.float64)
    teacher[1] = NAN
    teacher[3, [at for at in range(9) if at != 6]] = NAN
    known = torch.zeros(5, 9, dtype=torch.bool)
    known[torch.arange(5), positive] = True
    known[0, int((~teacher[0].isnan()).nonzero()[-1])] = True
    return {"positive": positive, "known": known, "teacher": teacher}


@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradient_are_the_formulas_alone_and_through_the_cache(name: str) -> None:
    given = a_batch()
    check_formula(make_loss(LOSSES[name]), lambda q, p: by_definition(LOSSES[name], q, p, **given), given)


def test_a_query_that_is_not_scored_changes_no_mean() -> None:
    given, queries, passages = a_batch(), texts(5, 2), texts(9, 3)
    scored = [0, 2, 4]
    for name in ("margin_mse", "kl"):
        loss = make_loss(LOSSES[name])
        kept = {key: value[scored] for key, value in given.items()}
        torch.testing.assert_close(loss(queries, passages, **given), loss(queries[scored], passages, **kept))


@pytest.mark.parametrize("name", LOSSES)
def test_a_batch_without_a_score_teaches_nothing_and_is_no_nan(name: str) -> None:
    given = {**a_batch(), "teacher": torch.full((5, 9), NAN)}
    queries, passages, loss = texts(5, 2).requires_grad_(), texts(9, 3).requires_grad_(), make_loss(LOSSES[name])
    found = loss(queries, passages, **given)
    found.backward()
    contrast = (
        0.3 * info_nce(queries, passages, given["positive"], given["known"], 0.4).item() if "and" in name else 0.0
    )
    assert found.item() == pytest.approx(contrast)
    assert queries.grad is not None
    assert queries.grad.isfinite().all()
    assert bool(queries.grad.any()) == ("and" in name)


@pytest.mark.parametrize("negatives", [1, 3])
def test_they_are_those_of_sentence_transformers(negatives: int) -> None:
    draw = torch.Generator().manual_seed(negatives)
    vectors = [torch.randn(4, 8, generator=draw) for _ in range(2 + negatives)]
    labels = torch.randn(4, 1 + negatives, generator=draw) * 3
    queries, passages = vectors[0], torch.cat(vectors[1:])
    teacher = torch.full((4, len(passages)), NAN)
    for place in range(1 + negatives):
        teacher[torch.arange(4), torch.arange(4) + 4 * place] = labels[:, place]
    model: Any = None
    given = (queries, passages, torch.arange(4), None, teacher)
    theirs = MarginMSELoss(model).compute_loss_from_embeddings(vectors, labels)
    torch.testing.assert_close(make_loss("margin_mse")(*given), theirs, rtol=1e-5, atol=1e-6)
    for own, other in ((1.0, 1.0), (2.0, 0.5)):
        options = {"student_temperature": own, "teacher_temperature": other}
        theirs = DistillKLDivLoss(model, **options).compute_loss_from_embeddings(vectors, labels)
        ours = make_loss("kl", temperature=own, teacher_temperature=other)(*given)
        torch.testing.assert_close(ours * own**2, theirs, rtol=1e-5, atol=1e-6)


def taught(folder: Path) -> Any:
    """Batches of five queries with hard negatives, of which a teacher has scored the most."""
    training = trainings.training_queries()
    rows = np.arange(30)
    random = np.random.default_rng(1)
    scores = random.normal(size=(len(training.rows), 30)).astype(np.float32)
    scores[random.random(scores.shape) < 0.3] = np.nan
    scores[1] = np.nan
    pairs = PairScores(training.rows, np.tile(rows, (len(scores), 1)), scores)
    return trainings.triple_batches(folder, replace(training, teacher=TeacherScores([pairs], training.rows)))


def module(loss: Any) -> BiEncoderModule:
    model = BiEncoder(Encoder(textbook.language_model().base_model))
    return BiEncoderModule(model, loss=loss, **trainings.optimiser())


@pytest.mark.parametrize("name", ["margin_mse", "kl and contrast"])
def test_chunks_and_processes_give_the_gradient_of_the_whole_batch(name: str, tmp_path: Path) -> None:
    report = check_gradients(module(LOSSES[name]), taught(tmp_path), processes=2, frozen=False)
    assert report, report
    assert any("2 processes" in outcome.setting for outcome in report.outcomes)


class FourArguments(RetrievalLoss):
    """As losses were before there were teachers."""

    def forward(self, queries: Tensor, passages: Tensor, positive: Tensor, known: Tensor | None = None) -> Tensor:
        return info_nce(queries, passages, positive, known)


class Taught(RetrievalLoss):
    """One of a user's own, which learns with a teacher and without."""

    def forward(
        self,
        queries: Tensor,
        passages: Tensor,
        positive: Tensor,
        known: Tensor | None = None,
        teacher: Tensor | None = None,
    ) -> Tensor:
        scores = queries @ passages.T
        return scores.mean() if teacher is None else (scores - teacher.nan_to_num()).square().mean()


class NeedsOne(Taught):
    needs_teacher = True


def value(made: BiEncoderModule, batch: Any) -> float:
    _, contrast = made.objective(batch)
    rows = len(batch.positive) + len(batch.passages)
    assert contrast is not None
    return float(contrast(torch.randn(rows, 16, generator=torch.Generator().manual_seed(0))))


def test_a_users_loss_of_four_arguments_is_trained_without_a_teacher_and_refused_with_one(tmp_path: Path) -> None:
    made, batch = module(FourArguments()), taught(tmp_path).batch(0)
    assert value(made, trainings.triple_batches(tmp_path / "plain").batch(0)) > 0
    for loss in (made, module("info_nce"), module("learning_to_rank")):
        with pytest.raises(UserError, match=r"but the forward of the loss \w+ has no argument `teacher`"):
            loss.objective(batch)


def test_a_users_loss_may_learn_from_a_teacher(tmp_path: Path) -> None:
    batch = taught(tmp_path).batch(0)
    made = module(Taught())
    assert value(made, batch) != value(made, replace(batch, teacher=None))
    for loss in (NeedsOne(), "margin_mse", "kl"):
        assert value(module(loss), batch) > 0
        with pytest.raises(UserError, match=r"needs a teacher's scores; give TripleData"):
            module(loss).objective(replace(batch, teacher=None))


def test_what_a_loss_does_with_a_teacher_is_known_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condensery.losses.registry._LOSSES", {})
    for name, made in {"four": FourArguments, "taught": Taught, "needs": NeedsOne, "made": lambda: Taught()}.items():
        register(name)(made)
    found = {name: teaching(name) for name in ("info_nce", "kl", "margin_mse", "four", "taught", "needs", "made")}
    nothing, may, must = (False, False), (True, False), (True, True)
    assert found == {
        "info_nce": nothing, "kl": must, "margin_mse": must, "four": nothing, "taught": may, "needs": must, "made": may
    }  # fmt: skip
    assert takes_teacher(Taught())


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ({"name": "kl", "teacher_temperature": 0}, "kl: teacher_temperature must be a number > 0, not 0"),
        ({"name": "margin_mse", "temperature": -1}, "margin_mse: temperature must be a number > 0, not -1"),
        ({"name": "kl", "contrast_weight": "x"}, "kl: contrast_weight must be a number >= 0, not 'x'"),
        ({"name": "margin_mse", "contrast_weight": 1}, "margin_mse has no option 'contrast_weight'"),
    ],
)
def test_options_out_of_range_are_named(loss: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_loss(loss)
    with pytest.raises(UserError, match=said):
        make_loss(loss)


def test_a_loss_that_is_called_without_its_teacher_says_so() -> None:
    for name in ("kl", "margin_mse"):
        with pytest.raises(UserError, match=f"{name} needs a teacher's scores; pass them as the argument teacher"):
            make_loss(name)(texts(2, 1), texts(2, 2), torch.arange(2))
