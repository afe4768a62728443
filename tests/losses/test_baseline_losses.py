"""The losses of PAIR, LED, TAS-Balanced and TCT-ColBERT are the equations of their papers, alone, in chunks, in processes."""

import math
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
from condensery.losses.registry import check_loss, make_loss, register, teaching, twice_taught
from condensery.models.biencoder import BiEncoder
from condensery.models.encoder import Encoder
from condensery.retrieval.pair_scores import PairScores, TeacherScores
from condensery.training.data.steps import Share
from condensery.training.data.training_queries import TextQueries
from condensery.training.data.triple_batches import TripleBatches
from condensery.training.modules.biencoder import BiEncoderModule

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
import trainings

NAN = float("nan")
LOSSES: dict[str, dict[str, Any]] = {
    "pair": {"name": "passage_centric", "alpha": 0.3, "temperature": 0.7},
    "led": {"name": "rank_consistent", "weight": 1.2, "contrast_weight": 0.5, "temperature": 0.7},
    "tas": {
        "name": "dual_supervision",
        "temperature": 0.7,
        "teacher_temperature": 1.7,
        "in_batch_temperature": 2.5,
        "in_batch_weight": 0.75,
    },
}


def negatives_of(i: int, passages: int, positive: Tensor, known: Tensor) -> list[int]:
    """The passages of the batch that are not known to be relevant to query i."""
    return [j for j in range(passages) if j != int(positive[i]) and not known[i, j]]


def log_share(first: Tensor, others: list[Tensor]) -> Tensor:
    """-log (exp first / (exp first + the sum of exp others))."""
    return -(first.exp() / (first.exp() + sum(other.exp() for other in others))).log()


def pair(q: Tensor, p: Tensor, given: dict[str, Tensor]) -> Tensor:
    """Ren et al. 2021: the query-centric and the passage-centric loss, query by query."""
    total = []
    for i, own in enumerate(given["positive"].tolist()):
        near = (q[i] @ p[own]) / 0.7
        others = negatives_of(i, len(p), given["positive"], given["known"])
        of_query = log_share(near, [q[i] @ p[j] / 0.7 for j in others])
        of_passage = log_share(near, [p[own] @ p[j] / 0.7 for j in others])
        total.append(0.7 * of_query + 0.3 * of_passage)
    return torch.stack(total).mean()


def led(q: Tensor, p: Tensor, given: dict[str, Tensor]) -> Tensor:
    """Zhang et al. 2023: contrast, and every pair of passages that the student orders otherwise than the teacher."""
    contrast, pairs = [], []
    for i, own in enumerate(given["positive"].tolist()):
        others = negatives_of(i, len(p), given["positive"], given["known"])
        contrast.append(log_share(q[i] @ p[own] / 0.7, [q[i] @ p[j] / 0.7 for j in others]))
        row = given["teacher"][i].tolist()
        for better in range(len(p)):
            for worse in range(len(p)):
                if row[better] > row[worse]:  # False where one has no score
                    pairs.append(torch.relu(q[i] @ p[worse] / 0.7 - q[i] @ p[better] / 0.7))
    return 0.5 * torch.stack(contrast).mean() + 1.2 * torch.stack(pairs).mean()


def tas(q: Tensor, p: Tensor, given: dict[str, Tensor]) -> Tensor:
    """Hofstätter et al. 2021: the margins of the pairwise teacher, and of the in-batch teacher for both kinds of passages."""
    pairwise, of_negatives, of_positives = [], [], []
    relevant = set(given["positive"].tolist())
    for i, own in enumerate(given["positive"].tolist()):
        of_pairs, of_batch = given["teacher"][i].tolist(), given["in_batch"][i].tolist()
        for j in range(len(p)):
            margin = q[i] @ p[own] / 0.7 - q[i] @ p[j] / 0.7
            wanted = (of_pairs[own] - of_pairs[j]) / 1.7
            if j != own and not given["known"][i, j] and not math.isnan(wanted):
                pairwise.append((margin - wanted) ** 2)
            wanted = (of_batch[own] - of_batch[j]) / 2.5
            if j != own and not math.isnan(wanted):
                (of_positives if j in relevant else of_negatives).append((margin - wanted) ** 2)
    in_batch = (torch.stack(of_negatives).mean() + torch.stack(of_positives).mean()) / 2
    return torch.stack(pairwise).mean() + 0.75 * in_batch


DEFINITIONS = {"pair": pair, "led": led, "tas": tas}


def a_batch(name: str) -> dict[str, Tensor]:
    """Five queries and nine passages, the first two queries with the same positive; a teacher that has scored the most."""
    draw = torch.Generator().manual_seed(5)
    positive = torch.tensor([0, 0, 3, 6, 8])
    known = torch.zeros(5, 9, dtype=torch.bool)
    known[torch.arange(5), positive] = True
    known[2, 7] = True
    given = {"positive": positive, "known": known}
    teacher = (torch.randn(5, 9, generator=draw, dtype=torch.float64) * 3).round(decimals=1)
    teacher[3, 2] = teacher[3, 5]  # a tie
    teacher[torch.rand(5, 9, generator=draw) < 0.3] = NAN
    teacher[torch.arange(4), positive[:4]] = 4.0  # the last query's positive has no score
    if name != "pair":
        given["teacher"] = teacher
    if name == "tas":
        given["in_batch"] = torch.randn(5, 9, generator=draw, dtype=torch.float64) * 2
        given["in_batch"][4] = NAN  # a query that was built from a passage
    return given


@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradient_are_the_equations_alone_and_through_the_cache(name: str) -> None:
    given = a_batch(name)
    check_formula(make_loss(LOSSES[name]), lambda q, p: DEFINITIONS[name](q, p, given), given)


def test_the_loss_of_tct_colbert_is_kl_with_contrast_times_a_number() -> None:
    gamma, tau = 0.1, 0.25  # Lin et al. 2020: gamma CE + (1 - gamma) KL, with the teacher's scores divided by tau
    given = {key: value for key, value in a_batch("tas").items() if key != "teacher"}
    q, p, teacher = texts(5, 2), texts(9, 3), given["in_batch"][:4]
    options = {"name": "kl", "teacher_temperature": tau, "contrast_weight": gamma / (1 - gamma)}
    four = {"positive": given["positive"][:4], "known": given["known"][:4], "teacher": teacher}
    terms = []
    for i, own in enumerate(four["positive"].tolist()):
        others = negatives_of(i, 9, four["positive"], four["known"])
        ours, theirs = [torch.softmax(scores, 0) for scores in (q[i] @ p.T, teacher[i] / tau)]
        divergence = (theirs * (theirs / ours).log()).sum()
        terms.append(gamma * log_share(q[i] @ p[own], [q[i] @ p[j] for j in others]) + (1 - gamma) * divergence)
    found = make_loss(options)(q[:4], p, **four)
    torch.testing.assert_close((1 - gamma) * found, torch.stack(terms).mean(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("negatives", [1, 3])
def test_what_sentence_transformers_has_of_them_is_the_same(negatives: int) -> None:
    draw = torch.Generator().manual_seed(negatives)
    vectors = [torch.randn(4, 8, generator=draw) for _ in range(2 + negatives)]
    labels = torch.randn(4, 1 + negatives, generator=draw) * 3
    queries, passages, positive = vectors[0], torch.cat(vectors[1:]), torch.arange(4)
    teacher = torch.full((4, len(passages)), NAN)
    for place in range(1 + negatives):
        teacher[torch.arange(4), torch.arange(4) + 4 * place] = labels[:, place]
    model: Any = None
    pairwise = make_loss("dual_supervision", in_batch_weight=0.0)
    theirs = MarginMSELoss(model).compute_loss_from_embeddings(vectors, labels)
    found = pairwise(queries, passages, positive, None, teacher, torch.randn(4, len(passages), generator=draw))
    torch.testing.assert_close(found, theirs, rtol=1e-5, atol=1e-6)
    in_batch = torch.randn(4, len(passages), generator=draw)  # each query's candidates are all passages of the batch
    columns = [queries, *(passages[j].expand(4, -1) for j in range(len(passages)))]
    theirs = DistillKLDivLoss(model).compute_loss_from_embeddings(columns, in_batch)
    torch.testing.assert_close(
        make_loss("kl")(queries, passages, positive, None, in_batch), theirs, rtol=1e-5, atol=1e-6
    )


def test_pair_without_its_passage_centric_part_is_info_nce() -> None:
    given, q, p = a_batch("pair"), texts(5, 2), texts(9, 3)
    ours, plain = make_loss({"name": "passage_centric", "alpha": 0.0}), make_loss("info_nce")
    torch.testing.assert_close(ours(q, p, **given), plain(q, p, **given), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["led", "tas"])
def test_a_batch_without_a_score_teaches_nothing_and_is_no_nan(name: str) -> None:
    given = a_batch(name)
    given |= {key: torch.full((5, 9), NAN) for key in ("teacher", "in_batch") if key in given}
    queries, passages = texts(5, 2).requires_grad_(), texts(9, 3).requires_grad_()
    loss = make_loss(LOSSES[name] | ({"contrast_weight": 0.0} if name == "led" else {}))
    found = loss(queries, passages, **given)
    found.backward()
    assert found.item() == 0
    assert queries.grad is not None
    assert not queries.grad.any()


def score(queries: np.ndarray, passages: np.ndarray) -> np.ndarray:
    """An in-batch teacher of whom nothing is known but a number for each pair of rows."""
    return np.sin(queries[:, None] * 1.3 + passages * 0.7).astype(np.float32)


def batches(folder: Path, teacher: bool, in_batch: bool, **changes: Any) -> TripleBatches:
    training, random = trainings.training_queries(), np.random.default_rng(1)
    scores = random.normal(size=(len(training.rows), 30)).astype(np.float32)
    scores[random.random(scores.shape) < 0.3] = np.nan
    pairs = PairScores(training.rows, np.tile(np.arange(30), (len(scores), 1)), scores)
    taught = replace(training, teacher=TeacherScores([pairs], training.rows)) if teacher else training
    made = trainings.triple_batches(folder, taught, **changes)
    made.in_batch_teacher = score if in_batch else None
    return made


def module(loss: Any) -> BiEncoderModule:
    return BiEncoderModule(BiEncoder(Encoder(textbook.language_model().base_model)), loss=loss, **trainings.optimiser())


@pytest.mark.parametrize(
    ("loss", "teacher", "in_batch"),
    [(LOSSES["pair"], False, False), (LOSSES["led"], True, False), (LOSSES["tas"], True, True), ("kl", False, True)],
    ids=["pair", "led", "tas", "tct"],
)
def test_chunks_and_processes_give_the_gradient_of_the_whole_batch(
    loss: Any, teacher: bool, in_batch: bool, tmp_path: Path
) -> None:
    report = check_gradients(module(loss), batches(tmp_path, teacher, in_batch), processes=2, frozen=False)
    assert report, report
    assert any("2 processes" in outcome.setting for outcome in report.outcomes)


def test_an_in_batch_teacher_scores_the_passages_of_all_processes(tmp_path: Path) -> None:
    titles = trainings.store(tmp_path / "titles", [3 + n % 4 for n in range(12)], seed=4)
    made = batches(
        tmp_path, teacher=False, in_batch=True, text_queries=TextQueries(titles, np.arange(12), np.arange(12) * 2, 3)
    )
    for step in range(2):
        whole = made.batch(step)
        assert whole.in_batch is not None
        rows = made.training.rows[made.order(step)[1]]
        judged = whole.in_batch[: len(rows)].numpy()
        np.testing.assert_array_equal(judged, score(rows, np.tile(whole.passages.numpy(), (len(rows), 1))))
        assert whole.in_batch[len(rows) :].isnan().all(), "nobody scores the queries that were built from passages"
        parts = [made.batch(step, Share(rank, 2)) for rank in range(2)]
        assert all(part.in_batch.shape[1] == len(whole.passages) for part in parts)
        found = [part.in_batch[~part.in_batch.isnan().any(dim=1)].numpy() for part in parts]
        np.testing.assert_array_equal(np.concatenate(found), judged)


def test_a_loss_of_one_teacher_takes_either_and_is_refused_both(tmp_path: Path) -> None:
    both = batches(tmp_path, teacher=True, in_batch=True).batch(0)
    vectors = torch.randn(len(both.positive) + len(both.passages), 16, generator=torch.Generator().manual_seed(0))

    def value(loss: Any, batch: Any) -> float:
        _, contrast = module(loss).objective(batch)
        assert contrast is not None
        return float(contrast(vectors))

    of_batch = value("kl", replace(both, teacher=None, scored=None, scores=None))
    assert of_batch == value("kl", replace(both, teacher=both.in_batch, in_batch=None))
    assert of_batch != value("kl", replace(both, in_batch=None))
    with pytest.raises(UserError, match="KLDivergence takes only one teacher; give the data `teacher` or `in_batch"):
        value("kl", both)
    assert value("dual_supervision", both) > 0
    for one in (replace(both, in_batch=None), replace(both, teacher=None)):
        with pytest.raises(UserError, match="learns from a teacher and from an in-batch teacher, and one is missing"):
            value("dual_supervision", one)
    with pytest.raises(UserError, match="the forward of the loss PassageCentric has no argument"):
        value("passage_centric", replace(both, teacher=None, scored=None, scores=None))


class BothTeachers(RetrievalLoss):
    """One of a user's own, which takes two teachers."""

    def forward(
        self,
        queries: Tensor,
        passages: Tensor,
        positive: Tensor,
        known: Tensor | None = None,
        teacher: Tensor | None = None,
        in_batch: Tensor | None = None,
    ) -> Tensor:
        return (queries @ passages.T).mean()


def test_how_many_teachers_a_loss_has_is_known_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condensery.losses.registry._LOSSES", {})
    register("both")(BothTeachers)
    names = ("passage_centric", "rank_consistent", "kl", "dual_supervision", "both")
    no, may, must = (False, False), (True, False), (True, True)
    assert [teaching(name) for name in names] == [no, must, must, must, may]
    assert [twice_taught(name) for name in names] == [no, no, no, must, may]


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ({"name": "passage_centric", "alpha": 2}, "passage_centric: alpha must be a number >= 0 and <= 1, not 2"),
        ({"name": "rank_consistent", "weight": -1}, "rank_consistent: weight must be a number >= 0, not -1"),
        ({"name": "dual_supervision", "temperature": 0}, "dual_supervision: temperature must be a number > 0, not 0"),
    ],
)
def test_options_out_of_range_are_named(loss: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_loss(loss)
    with pytest.raises(UserError, match=said):
        make_loss(loss)


def test_a_lexical_loss_without_its_teacher_says_so() -> None:
    with pytest.raises(UserError, match="rank_consistent needs a teacher's scores; pass them as the argument teacher"):
        make_loss("rank_consistent")(texts(2, 1), texts(2, 2), torch.arange(2))
