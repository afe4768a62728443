"""Two processes that share their negatives give the gradient of one process with the joined batch."""

import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import textbook
import torch
from forked import run_processes
from torch import Tensor, distributed, nn

from condensery.distributed import average, gathered, share_of
from condensery.losses.cross_batch import joined_passages
from condensery.losses.gradient_cache import backpropagate
from condensery.losses.info_nce import info_nce
from condensery.losses.retrieval_loss import RetrievalLoss
from condensery.models.biencoder import QUERY, BiEncoder
from condensery.models.condenser import Condenser, CondenserShape
from condensery.models.encoder import Encoder
from condensery.models.vectors import VectorSettings
from condensery.retrieval.no_negatives import NoNegatives
from condensery.text.same_texts import SameTexts
from condensery.tokens.batches import Chunk
from condensery.training.data.span_batches import SpanBatch
from condensery.training.data.training_queries import TextQueries, TrainingQueries
from condensery.training.data.triple_batches import TripleBatch, TripleBatches
from condensery.training.modules.biencoder import BiEncoderModule
from condensery.training.modules.optimisation import TrainingModule
from condensery.training.modules.pretraining import CoCondenserModule, InverseClozeModule

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
import trainings

PROCESSES = 2
# Queries of each rank. 0 and 3 are judged for passage 2 as well, 1 has the same positive as 4.
SHARES: dict[str, list[list[int]]] = {
    "as many": [[0, 2], [3, 4]],
    "unequal": [[0, 1, 2, 5], [3, 4]],
    "one": [[4], [0, 1]],
}
SHARES["swapped"] = SHARES["unequal"][::-1]


def triples(folder: Path, negatives: int, copies: bool = False) -> TripleBatches:
    """Six queries; a passage may be a positive on one process and another's, or the same query's, on the other.

    ``copies``: passages 14 and 9 have the text of 2 and 7, queries 1 and 3 have one text, and passage 20 is query 0.
    """
    positives = [[2, 7], [9], [11, 12], [2, 14], [9], [20]]
    pools = np.array([[14, 3, 4], [11, 5, 6], [3, 8, 20], [12, 7, 3], [11, 4, 21], [9, 2, 22]], np.int32)
    starts = np.concatenate([[0], np.cumsum([len(found) for found in positives])])
    known = TrainingQueries(np.arange(6) * 2, np.concatenate(positives), starts, pools)
    if copies:
        passages, queries = SameTexts(np.array([9, 14]), np.array([7, 2])), SameTexts(np.array([6]), np.array([2]))
        of_query = {0: [2, 7, 20], 2: [2, 7], 4: [11, 12], 8: [7], 10: [20]}
        pairs = np.array([(query << 32) + passage for query, own in of_query.items() for passage in own])
        judged = {2 * at: np.array(own) for at, own in enumerate(positives)}
        known = TrainingQueries.of(judged, pools, known=NoNegatives(queries, passages, pairs))
    return trainings.triple_batches(folder, known, negatives=negatives)


OTHERS = [("biencoder", "unequal", 2, True), ("learned", "unequal", 2, True), ("learned", "as many", 0, False)]


class Words(nn.Module):
    """The sum of a text's word vectors: in float32 it rounds by less than a Transformer, so that 1e-6 can be asked of it."""

    settings = VectorSettings()

    def __init__(self) -> None:
        super().__init__()
        self.words, self.hidden_size = nn.Embedding(textbook.SIZE, 8), 8

    def vectors(self, chunk: Chunk) -> Tensor:
        return (self.words(chunk.input_ids) * chunk.attention_mask[:, :, None]).sum(dim=1)

    def encode(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        return self.vectors(chunk), {}


class Learned(RetrievalLoss):
    """A loss with weights of its own, one of which ``features`` reads as well, that also looks at the encoder's."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.log_scale, self.bias = nn.Parameter(torch.tensor(-2.0)), nn.Parameter(torch.tensor(0.3))
        self.head = nn.Linear(8, 8)
        self.others = [encoder]  # in a list it is no submodule

    def features(self, vectors: Tensor, tower: int) -> Tensor:
        return self.head(vectors)

    def forward(self, queries: Tensor, passages: Tensor, positive: Tensor, known: Tensor | None = None) -> Tensor:
        scores = self.head(queries) @ passages.T * self.log_scale.exp()
        scores = torch.cat([scores, self.bias.expand(len(scores), 1)], dim=1)
        return nn.functional.cross_entropy(scores, positive) + sum((w * w).mean() for w in self.others[0].parameters())


def module_of(kind: str, masked: bool = True) -> TrainingModule:
    """A small model without dropout, the same in every process: ``words`` in float32, the others in float64."""
    torch.manual_seed(1)
    if kind == "words":
        return BiEncoderModule(Words(), mask_known_positives=masked, temperature=9.0, **trainings.optimiser())  # type: ignore[arg-type]
    if kind == "learned":
        words: Any = Words().double()
        return BiEncoderModule(words, loss=Learned(words).double(), **trainings.optimiser())
    language_model = textbook.language_model()
    if kind == "cocondenser":
        condenser = Condenser(language_model, CondenserShape(1, 1, True)).double()
        return CoCondenserModule(
            condenser, mlm_weight=0.7, temperature=0.9, contrast_weight=0.8, **trainings.optimiser()
        )
    model = BiEncoder(Encoder(language_model.base_model))
    if kind == "separate":
        towers = BiEncoder.from_encoder(model.passage, separate=True)
        return BiEncoderModule(towers, train_passages=False, temperature=0.5, **trainings.optimiser())
    if kind == "ict":
        return InverseClozeModule(model, **trainings.optimiser())
    return BiEncoderModule(model, mask_known_positives=masked, temperature=0.5, **trainings.optimiser())


def gradient_of(module: TrainingModule, batch: SpanBatch | TripleBatch) -> tuple[dict[str, float], Tensor]:
    """The losses, and the gradient of all weights in one row."""
    encoder, contrast = module.objective(batch)
    losses = backpropagate(encoder, batch.chunks, contrast)
    parts = [torch.zeros_like(w) if w.grad is None else w.grad for w in module.parameters()]
    return {name: float(loss) for name, loss in losses.items()}, nn.utils.parameters_to_vector(parts)


def _of(module: TrainingModule, batch: Any) -> tuple[Any, Any, Any]:
    encoder, contrast = module.objective(batch)
    return encoder, batch.chunks, contrast


def cases(folder: Path) -> Iterator[tuple[str, TrainingModule, list[Any], Any]]:
    """Name, module, batch of each process, joined batch."""
    settings = [("words", *one) for one in product(SHARES, (0, 2), (True, False))]
    for kind, name, negatives, masked in [*settings, *OTHERS]:
        batches, shares = triples(folder, negatives), SHARES[name]
        own = [batches.batch_of(0, np.array(share)) for share in shares]
        joined = batches.batch_of(0, np.concatenate(shares))
        yield f"{kind}, {name}, {negatives}, {masked}", module_of(kind, masked), own, joined
    for name, negatives in (("unequal", 0), ("swapped", 2)):
        batches, shares = triples(folder, negatives, copies=True), SHARES[name]
        own = [batches.batch_of(0, np.array(share)) for share in shares]
        yield f"words, copies, {name}", module_of("words"), own, batches.batch_of(0, np.concatenate(shares))
    batches = triples(folder, 2, copies=True)
    batches.text_queries = TextQueries(
        batches.readers[QUERY].texts, np.array([1, 3, 5, 7]), np.array([4, 14, 9, 20]), 4
    )
    parts, texts = SHARES["unequal"], [np.array([0, 3]), np.array([1, 2])]
    for vectors in (None, np.random.default_rng(3).normal(size=(30, 16)).astype("f").__getitem__):
        batches.vectors = vectors
        own = [batches.batch_of(0, np.array(share), text) for share, text in zip(parts, texts, strict=True)]
        joined = batches.batch_of(0, np.concatenate(parts), np.concatenate(texts))
        yield f"queries of the text, {vectors is None}", module_of("separate"), own, joined
    for kind, make in (("cocondenser", trainings.span_batches), ("ict", trainings.sentence_batches)):
        parts = [np.array([1, 4, 6]), np.array([0, 2])]
        own, joined = [spans(folder, make, part) for part in parts], spans(folder, make, np.concatenate(parts))
        yield kind, module_of(kind), own, joined


def spans(folder: Path, make: Callable[..., Any], chosen: np.ndarray) -> SpanBatch:
    """The batch of these items of a source."""
    batches = make(folder, batch_size=len(chosen))
    batches.source = _Chosen(batches.source, chosen)
    batch: SpanBatch = batches.batch(0)
    return batch


class _Chosen:
    """The items that a test wants, as the only step of an epoch."""

    def __init__(self, source: Any, chosen: np.ndarray) -> None:
        self.source, self.chosen, self.items = source, chosen, len(chosen)

    def rows(self, step: int, epoch: int, chosen: np.ndarray) -> Any:
        return self.source.rows(step, epoch, self.chosen)


def child(rank: int, folder: str) -> None:
    """One of the processes: what it back-propagates in every case, averaged as DDP does, and what it gathers."""
    distributed.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=PROCESSES)
    found: dict[str, Any] = {}
    for name, module, own, _ in cases(Path(folder)):
        losses, gradient = gradient_of(module, own[rank])
        distributed.all_reduce(gradient)
        found[name] = losses, gradient / PROCESSES
    for sizes in ((1, 3), (2, 0)):
        rows = torch.arange(sizes[rank] * 2.0).view(-1, 2) + 10 * rank
        rows.requires_grad_()
        together = gathered(rows)
        (together * together).sum().backward()
        found[f"gathered {sizes}"] = together.detach(), rows.grad
    narrow, wide = torch.ones(2, dtype=torch.bfloat16), torch.ones(3)  # weights of a model in bf16, and of its loss
    narrow.grad, wide.grad = torch.full_like(narrow, rank), None if rank else torch.full_like(wide, 1.5)
    means = average([narrow, wide], {"loss": torch.tensor(4.0 * rank)})
    found["averaged"] = narrow.grad, wide.grad, means["loss"]
    found["share"] = share_of([3, 8][rank])
    torch.save(found, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """What each process saved."""
    folder = tmp_path_factory.mktemp("processes")
    list(cases(folder))  # the stores are written once
    run_processes(PROCESSES, child, str(folder))
    return folder, [torch.load(folder / f"{rank}.pt") for rank in range(PROCESSES)]


def test_the_mean_over_processes_is_the_gradient_of_the_joined_batch(found: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, ranks = found
    names = []
    for name, module, own, joined in cases(folder):
        names.append(name)
        rounding = 1e-6 if name.startswith("words") else 1e-11
        losses, gradient = gradient_of(module, joined)
        for rank in ranks:
            assert float((rank[name][1] - gradient).norm() / gradient.norm()) < rounding, name
            assert rank[name][0]["contrast"] == pytest.approx(losses["contrast"], rel=rounding), name
        for loss in losses.keys() - {"contrast"}:
            assert np.mean([rank[name][0][loss] for rank in ranks]) == pytest.approx(losses[loss], rel=1e-11), name
        module.zero_grad()
        gradient_of(module, own[0])
        alone = gradient_of(module, own[1])[1] / PROCESSES  # adds to it
        assert float((alone - gradient).norm() / gradient.norm()) > 1e-2, "sharing makes no difference"
    assert len(names) == 25


def test_the_cases_have_what_is_easily_got_wrong(tmp_path: Path) -> None:
    batches = triples(tmp_path, negatives=2)
    first, second = (batches.batch_of(0, np.array(share)) for share in SHARES["unequal"])
    assert len(first.passages) != len(second.passages)
    assert set(first.passages.tolist()) & set(second.passages.tolist()), "a passage of both"
    elsewhere = {(int(q), int(p)) for q, p in first.judged if p in second.passages and p not in first.passages}
    assert elsewhere, "a query's other positive is a passage of the other process alone"


@pytest.mark.parametrize("fault", ["labels of the other rank", "no shift of the judgements", "no mask"])
def test_faults_of_one_rank_would_show(fault: str, found: tuple[Path, list[dict[str, Any]]]) -> None:
    batches = triples(found[0], negatives=2)
    own = [batches.batch_of(0, np.array(share)) for share in SHARES["unequal"]]
    joined = batches.batch_of(0, np.concatenate(SHARES["unequal"]))
    positive, known = joined.positive.clone(), joined.known.clone()
    if fault == "labels of the other rank":
        positive = torch.cat([joined.positive[-2:], joined.positive[:-2]])
    elif fault == "no shift of the judgements":
        known[:] = False
        for part in own:
            for query, passage in part.judged:
                known[query, torch.searchsorted(joined.passages, passage)] |= passage in joined.passages
    else:
        known[:] = False
    words, number = Words(), len(positive)
    words.load_state_dict(module_of("words").model.state_dict())
    backpropagate(words, joined.chunks, lambda v: info_nce(v[:number], v[number:], positive, known, 9.0))
    assert words.words.weight.grad is not None
    wrong, right = words.words.weight.grad.flatten(), found[1][0]["words, unequal, 2, True"][1]
    assert float((wrong - right).norm() / right.norm()) > 1e-3


def test_rows_are_gathered_in_the_order_of_the_ranks_and_only_own_ones_have_a_gradient(
    found: tuple[Path, list[dict[str, Any]]],
) -> None:
    for sizes in ((1, 3), (2, 0)):
        expected = torch.cat([torch.arange(size * 2.0).view(-1, 2) + 10 * rank for rank, size in enumerate(sizes)])
        for rank, part in enumerate(found[1]):
            together, gradient = part[f"gathered {sizes}"]
            assert torch.equal(together, expected)
            own = torch.arange(sizes[rank] * 2.0).view(-1, 2) + 10 * rank
            assert torch.equal(gradient, PROCESSES * 2 * own), "the mean over the processes is the gradient of the sum"
    assert [part["share"] for part in found[1]] == [5.5, 5.5]


def test_gradients_of_several_precisions_are_averaged_in_one_exchange(
    found: tuple[Path, list[dict[str, Any]]],
) -> None:
    for part in found[1]:
        narrow, wide, loss = part["averaged"]
        assert narrow.dtype == torch.bfloat16
        assert narrow.tolist() == [0.5, 0.5]
        assert wide.tolist() == [0.75, 0.75, 0.75]
        assert loss == 2.0


def test_one_process_shares_nothing(tmp_path: Path) -> None:
    rows = torch.ones(2, 3, requires_grad=True)
    assert gathered(rows) is rows
    assert share_of(7) == 7
    batch = triples(tmp_path, 2).batch_of(0, np.array([0, 2, 3]))
    vectors = torch.randn(len(batch.passages), 4)
    passages, positive, known = joined_passages(vectors, batch.passages, batch.positive, batch.judged)
    assert torch.equal(passages, vectors)
    assert torch.equal(positive, batch.positive)
    assert torch.equal(known, batch.known)
