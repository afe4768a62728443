"""Training in the vectors that a released retriever is searched with: the contrast of pairs, and a tower of queries."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import textbook
import torch
import trainings
from error_lines import names
from released import released
from transformers import AutoModelForMaskedLM

from condensery.errors import UserError
from condensery.losses.gradient_cache import backpropagate
from condensery.models.biencoder import PASSAGE, QUERY, BiEncoder
from condensery.models.encoder import Encoder
from condensery.models.pretraining import PooledLanguageModel
from condensery.models.vectors import VectorSettings
from condensery.retrieval.searchers.retriever import Retriever
from condensery.tokens.batches import chunks
from condensery.tokens.prefixes import Prefixes
from condensery.tokens.tokenizer import train_wordpiece
from condensery.training.data.passage_queries import PassageQueryDataModule
from condensery.training.data.sources import prefixed
from condensery.training.data.spans import SpanPairDataModule
from condensery.training.learning_rate import layer_shares
from condensery.training.modules.biencoder import BiEncoderModule
from condensery.training.modules.contrastive import COLDEST, ContrastiveModule
from condensery.training.modules.query_tower import QueryTowerModule


def encoder() -> Encoder:
    return Encoder(textbook.language_model(dropout=0.0).base_model, VectorSettings("mean", normalise=True)).double()


def gradients(module: Any) -> list[torch.Tensor]:
    return [weight.grad.clone() for weight in module.parameters() if weight.grad is not None]


@pytest.mark.parametrize("learned", [False, True])
def test_the_contrast_is_that_of_cosines_over_the_temperature_whatever_the_chunks(
    tmp_path: Path, learned: bool
) -> None:
    module = ContrastiveModule(BiEncoder(encoder()), temperature=0.1, learn_temperature=learned).double()
    found = []
    for budget in (20, 10_000):
        batch = trainings.span_batches(tmp_path, mask_rate=None, budget=budget).batch(0)
        module.zero_grad()
        losses = backpropagate(*[module.objective(batch)[0], batch.chunks, module.objective(batch)[1]])
        found.append((losses["contrast"], gradients(module)))
    rows = sorted(
        (int(row), vector)
        for chunk in batch.chunks
        for row, vector in zip(chunk.rows, module.vectors(chunk), strict=True)
    )
    vectors = torch.stack([vector for _, vector in rows])
    scores = (vectors @ vectors.T / 0.1).fill_diagonal_(-torch.inf)
    right = -torch.stack([scores[i].log_softmax(0)[i ^ 1] for i in range(len(scores))]).mean()
    for loss, _ in found:
        assert loss.item() == pytest.approx(right.item(), abs=1e-7)
    for one, other in zip(*(each for _, each in found), strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-7)
    assert (module.log_temperature.grad is not None) if learned else not hasattr(module, "log_temperature")


POOLINGS = ["cls", "mean", "last", "max"]


def with_head(pooling: str, dropout: float = 0.0) -> tuple[Any, ContrastiveModule]:
    """A language model, and the module that trains its backbone with MLM of weight .7 beside the contrast."""
    model = textbook.language_model(dropout=dropout)
    module = ContrastiveModule(BiEncoder(Encoder(model.base_model, VectorSettings(pooling, normalise=True))))  # type: ignore[arg-type]
    module.mlm, module.mlm_weight = PooledLanguageModel(model, module.model.passage), 0.7
    return model, module.double()


@pytest.mark.parametrize("pooling", POOLINGS)
def test_mlm_beside_the_contrast_is_the_textbook_one_whatever_the_chunks(tmp_path: Path, pooling: str) -> None:
    model, module = with_head(pooling)
    found: list[tuple[dict[str, torch.Tensor], list[torch.Tensor]]] = []
    for budget in (20, 10_000):
        batch = trainings.span_batches(tmp_path, budget=budget).batch(0)
        module.zero_grad()
        encoder, contrast = module.objective(batch)
        losses = backpropagate(encoder, batch.chunks, contrast)
        found.append((losses, gradients(module)))
    module.zero_grad()
    (chunk,) = batch.chunks
    assert chunk.masked is not None
    assert chunk.targets is not None
    labels = torch.full_like(chunk.input_ids, -100)
    labels.view(-1)[chunk.masked] = chunk.targets
    mask = chunk.attention_mask
    states = model.base_model(input_ids=chunk.input_ids, attention_mask=mask).last_hidden_state
    pooled = {
        "cls": states[:, 0],
        "mean": (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True),
        "last": states[torch.arange(len(chunk)), chunk.lengths - 1],
        "max": states.masked_fill(~mask[..., None], -torch.inf).amax(1),
    }[pooling]
    vectors = torch.nn.functional.normalize(pooled, dim=1)[chunk.rows.argsort()]
    scores = (vectors @ vectors.T / 0.05).masked_fill(torch.eye(len(vectors), dtype=torch.bool), -torch.inf)
    right = torch.nn.functional.cross_entropy(scores, torch.arange(len(vectors)) ^ 1)
    mlm = model(input_ids=chunk.input_ids, attention_mask=mask, labels=labels).loss
    (right + 0.7 * mlm).backward()
    for losses, gradient in found:
        assert losses["contrast"].item() == pytest.approx(right.item(), abs=1e-6)
        assert losses["mlm_late"].item() == pytest.approx(0.7 * mlm.item(), abs=1e-9)
        for one, other in zip(gradient, gradients(module), strict=True):
            torch.testing.assert_close(one, other, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_vectors_of_both_passes_have_the_same_dropout(tmp_path: Path, pooling: str) -> None:
    _, module = with_head(pooling, dropout=0.3)
    (chunk,) = trainings.span_batches(tmp_path, budget=10_000).batch(0).chunks
    assert module.mlm is not None
    torch.manual_seed(5)
    alone = module.mlm.vectors(chunk)
    torch.manual_seed(5)
    beside, _ = module.mlm.encode(chunk)
    torch.testing.assert_close(alone, beside, rtol=0, atol=0)
    assert not torch.equal(alone, module.mlm.vectors(chunk)), "dropout is off"


def test_a_head_is_trained_and_saved_where_there_is_one_and_said_where_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "a text of several words that is long enough. And a second sentence of it, which is longer."
    train_wordpiece([words], 60, tmp_path / "words")
    quiet: Any = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    given: Any = {"tokenizer": tmp_path / "words", "length": 16, "min_length": 2, "batch_size": 2}
    given |= {"query_prefix": "", "passage_prefix": ""}
    kind: Any = {"prompts": {}, "similarity": "cosine"}
    folder = released(tmp_path / "with", tmp_path / "words", language_model=True, **kind)
    AutoModelForMaskedLM.from_pretrained(folder.parent / "backbone").save_pretrained(
        folder
    )  # that library saves no head
    module = ContrastiveModule(folder, mlm_weight=0.5, learning_rate=1e-2)
    assert module.mlm is not None
    before = AutoModelForMaskedLM.from_pretrained(folder)
    start = {name: value.clone() for name, value in module.mlm.language_model.state_dict().items()}
    assert start.keys() == before.state_dict().keys()
    assert all(torch.equal(value, before.state_dict()[name]) for name, value in start.items())
    pl.Trainer(max_steps=3, **quiet).fit(module, SpanPairDataModule([words] * 6, **given))
    module.save_pretrained(tmp_path / "saved")
    after, info = AutoModelForMaskedLM.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not info["missing_keys"]
    moved = [name for name, value in after.state_dict().items() if not torch.equal(value, before.state_dict()[name])]
    assert any("cls.predictions" in name for name in moved)
    assert any("encoder.layer.0" in name for name in moved)
    found = Retriever(tmp_path / "saved", device="cpu", precision="fp32").encode_passages([words])
    np.testing.assert_allclose(module.model.eval().passage.dimensions, found.shape[1])
    theirs = pytest.importorskip("sentence_transformers").SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    np.testing.assert_allclose(found, theirs.encode([words], normalize_embeddings=True), atol=1e-6)
    again = ContrastiveModule(tmp_path / "saved", mlm_weight=0.5)
    assert again.mlm is not None, "training goes on with the head"

    with pytest.raises(UserError, match="give the data module a mask_rate"):
        pl.Trainer(max_steps=1, **quiet).fit(again, SpanPairDataModule([words] * 6, mask_rate=None, **given))
    capsys.readouterr()
    without = released(tmp_path / "without", tmp_path / "words", **kind)
    plain = ContrastiveModule(without, mlm_weight=0.5, learning_rate=1e-2)
    assert capsys.readouterr().out == f"{without}: has no MLM head, so mlm_weight has no effect\n"
    assert plain.mlm is None
    assert ContrastiveModule(folder).mlm is None, "a weight of 0 loads no head"
    whole = SpanPairDataModule([words] * 6, mask_rate=None, **given)
    pl.Trainer(max_steps=1, **quiet).fit(plain, whole)


def test_a_learned_temperature_moves_and_ends_at_the_coldest(tmp_path: Path) -> None:
    assert ContrastiveModule(BiEncoder(encoder()), temperature=0.1).reached == 0.1
    module = ContrastiveModule(BiEncoder(encoder()), temperature=0.1, learn_temperature=True)
    assert module.reached == pytest.approx(0.1)
    with torch.no_grad():
        module.log_temperature -= 9
    assert module.reached == pytest.approx(COLDEST)
    with pytest.raises(UserError, match="with learn_temperature it must be 0\\.01 or more"):
        ContrastiveModule(BiEncoder(encoder()), temperature=0.001, learn_temperature=True)


def test_what_does_not_fit_is_one_line(tmp_path: Path) -> None:
    one = encoder()
    with pytest.raises(UserError, match="this retriever has two"):
        ContrastiveModule(BiEncoder.from_encoder(one, separate=True))
    with pytest.raises(UserError, match="towers='separate'"):
        QueryTowerModule(BiEncoder(one))
    for wrong in ({"temperature": 0}, {"layer_decay": 0}, {"layer_decay": 1.5}):
        with pytest.raises(UserError) as error:
            ContrastiveModule(BiEncoder(one), **wrong)
        names(str(error.value), *wrong)


def test_layers_get_less_of_the_rate_the_lower_they_stand() -> None:
    one = encoder()
    shares = layer_shares(BiEncoder(one), 0.5)
    layers = list(one.layers)
    for at, layer in enumerate(layers):
        assert {shares[weight] for weight in layer.parameters()} == {0.5 ** (len(layers) - 1 - at)}
    assert {shares[weight] for weight in one.model.embeddings.parameters()} == {0.5 ** len(layers)}
    module = ContrastiveModule(BiEncoder(one), learn_temperature=True, layer_decay=0.5, learning_rate=1e-3)
    groups = module._groups()
    assert groups[0]["lr"] == 1e-3, "what is logged as the rate"
    rates = {weight: group["lr"] for group in groups for weight in group["params"]}
    assert len(rates) == sum(len(group["params"]) for group in groups) == len(list(module.parameters()))
    assert rates[next(layers[0].parameters())] == 1e-3 * 0.5 ** (len(layers) - 1)
    assert rates[module.log_temperature] == 0.1
    assert {group["lr"] for group in ContrastiveModule(BiEncoder(one), learning_rate=1e-3)._groups()} == {1e-3}


def test_prefixes_stand_behind_cls_of_each_row(tmp_path: Path) -> None:
    source = trainings.mixed_batches(tmp_path, share=0.0).source
    plain = source.rows(0, 0, np.arange(4))
    before = Prefixes(np.array([7, 8]), np.array([9]))
    for queries, of_second in ((True, [7, 8]), (False, [9])):
        rows = prefixed(source, before, queries).rows(0, 0, np.arange(4))
        for row, (begin, end) in enumerate(zip(rows.starts[:-1], rows.starts[1:], strict=True)):
            text = plain.flat[plain.starts[row] : plain.starts[row + 1]].tolist()
            added = of_second if row % 2 else [9]
            assert rows.flat[begin:end].tolist() == [text[0], *added, *text[1:]]
        np.testing.assert_array_equal(rows.names, plain.names)
    assert prefixed(source, Prefixes(), True) is source


def test_passages_in_the_place_of_queries_have_no_prefix_of_queries() -> None:
    for query, passage, share in (("query: ", "passage: ", 0.5), ("query: ", "", 1.0)):
        given: Any = {"mixed_context": share, "query_prefix": query, "passage_prefix": passage}
        with pytest.raises(UserError, match="mixed_context uses passages as queries"):
            PassageQueryDataModule([{"text": "a b", "queries": ["a"]}], "nowhere", **given)
    PassageQueryDataModule([{"text": "a b", "queries": ["a"]}], "nowhere", query_prefix="query: ")


def test_masked_texts_are_refused(tmp_path: Path) -> None:
    words = "a text of several words that is long enough. And a second sentence of it, which is longer."
    train_wordpiece([words], 60, tmp_path / "tokenizer")
    data = SpanPairDataModule([words] * 6, tmp_path / "tokenizer", length=16, min_length=2, batch_size=2)
    with pytest.raises(UserError, match="mask_rate=None"):
        pl.Trainer(max_steps=1, logger=False, accelerator="cpu").fit(ContrastiveModule(BiEncoder(encoder())), data)


def test_the_divergence_is_the_textbook_one_and_passages_stand_still(tmp_path: Path) -> None:
    batches = trainings.ranking_batches(tmp_path)
    batch = batches.batch(1)
    assert batch.teacher.shape == (5, len(batch.passages))
    chosen = batches.batch(0), batches.batch(1), batches.batch(2), batches.batch(3)
    assert sum(len(chunk) for one in chosen for chunk in one.chunks) == 20, "each query once an epoch"
    assert ((batch.teacher == 1).sum(dim=1) == 1).all(), "the best of each query"
    module = QueryTowerModule(
        BiEncoder.from_encoder(encoder(), separate=True), temperature=0.2, teacher_temperature=0.3
    ).double()
    before = [weight.clone() for weight in module.model.passage.parameters()]
    model, contrast = module.objective(batch)
    loss = backpropagate(model, batch.chunks, contrast)["contrast"]
    rows = sorted(
        (int(row), vector)
        for chunk in batch.chunks
        for row, vector in zip(chunk.rows, module.vectors(chunk), strict=True)
    )
    scores = torch.stack([vector for _, vector in rows]) @ batch.passages.double().T / 0.2
    theirs = (batch.teacher.double() / 0.3).softmax(dim=1)
    right = (theirs * (theirs.log() - scores.softmax(dim=1).log())).sum() / 5
    assert loss.item() == pytest.approx(right.item(), abs=1e-9)
    assert all(weight.grad is None for weight in module.model.passage.parameters())
    assert all(torch.equal(one, other) for one, other in zip(before, module.model.passage.parameters(), strict=True))
    assert gradients(module.model.query)


@pytest.mark.parametrize("loss", ["info_nce", {"name": "matryoshka", "dims": [16, 8], "loss": "info_nce"}])
def test_passages_that_stand_still_give_the_gradient_of_those_that_are_encoded_and_not_trained(
    loss: Any, tmp_path: Path
) -> None:
    def module() -> BiEncoderModule:
        towers = BiEncoder.from_encoder(encoder(), separate=True)
        return BiEncoderModule(towers, loss=loss, temperature=0.2, train_passages=False).double()

    encoded = trainings.triple_batches(tmp_path)
    first, second = module(), module()
    vectors = np.zeros((30, 16))
    with torch.no_grad():
        for row in range(30):
            (chunk,) = chunks(*encoded.readers[PASSAGE].read(np.array([row])), 60, 0, tower=PASSAGE)
            vectors[row] = first.vectors(chunk)[0].numpy()
    standing = trainings.triple_batches(tmp_path, vectors=vectors.__getitem__)
    whole, queries = encoded.batch(1), standing.batch(1)
    assert {chunk.tower for chunk in queries.chunks} == {QUERY}
    assert queries.tokens < whole.tokens
    assert torch.equal(queries.passages, whole.passages)
    losses = [
        backpropagate(model, batch.chunks, contrast)["contrast"].item()
        for batch, (model, contrast) in ((whole, first.objective(whole)), (queries, second.objective(queries)))
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-9)
    assert all(weight.grad is None for one in (first, second) for weight in one.model.passage.parameters())
    for one, other in zip(gradients(first.model.query), gradients(second.model.query), strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-7)
