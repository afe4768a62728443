"""ColBERT, COIL and ME-BERT against the papers' equations in float64, and against sentence-transformers."""

import json
import string
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.multi_vector_encoder.losses import MultiVectorMultipleNegativesRankingLoss
from torch import Tensor
from transformers import BertConfig, BertModel

from condensery import Retriever
from condensery.baselines.late_interaction.model import UNUSED, Interaction, TokenEncoder, interaction_scores
from condensery.baselines.late_interaction.saving import load_token_encoder, new_token_encoder, save_token_encoder
from condensery.baselines.late_interaction.training import InteractionLoss
from condensery.baselines.late_interaction_index.index import Block
from condensery.errors import UserError
from condensery.losses.gradient_cache import backpropagate
from condensery.models.biencoder import PASSAGE, QUERY
from condensery.models.encoder import Encoder
from condensery.tokens.batches import Chunk, chunks, flatten
from condensery.tokens.tokenizer import load_tokenizer, train_wordpiece
from condensery.tokens.vocabulary import Vocabulary, with_special

QUERIES = ["read a file", "open the door of the house, please", "a file"]
PASSAGES = [
    "Read a json file. Then write it!",
    "the door (of the house) is open",
    "a house",
    "please, please read the door",
]
QUERY_LENGTH, PASSAGE_LENGTH = 12, 14
METHODS: dict[str, dict[str, Any]] = {
    "colbert": {"dimensions": 6},
    "coil": {"dimensions": 4, "whole": 12},
    "coil without cls": {"dimensions": 4},
    "me_bert": {"dimensions": 6, "first": 3},
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_wordpiece([*QUERIES, *PASSAGES] * 5, 120, folder, warn=False)
    return folder


def encoder(tokenizer: Path, label: str, dropout: float = 0.0) -> TokenEncoder:
    """A small token encoder in float64; no weight is 0."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(load_tokenizer(tokenizer)), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=32, hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout, attn_implementation="eager",
    )  # fmt: skip
    method = label.partition(" ")[0]
    about = Interaction(method, query_length=QUERY_LENGTH, passage_length=PASSAGE_LENGTH, **METHODS[label])  # type: ignore[arg-type]
    made = new_token_encoder(Encoder(BertModel(config, add_pooling_layer=False)), about, tokenizer, seed=1)
    torch.manual_seed(2)  # so that these weights do not depend on how the layers start
    for weight in made.parameters():
        torch.nn.init.normal_(weight, 0.1, 0.4)
    return made.double().eval()


def rows(tokenizer: Path, texts: Sequence[str], length: int) -> list[np.ndarray]:
    read = load_tokenizer(tokenizer)
    ends = Vocabulary.of(read)
    return [with_special(read(text, add_special_tokens=False)["input_ids"], ends, length) for text in texts]


def keyed(model: TokenEncoder, tokenizer: Path, tower: int) -> Tensor:
    """The vectors of all queries or passages, in the order of the texts."""
    texts, length = (
        (QUERIES, model.interaction.lengths[0]) if tower == QUERY else (PASSAGES, model.interaction.lengths[1])
    )
    (chunk,) = chunks(*flatten(rows(tokenizer, texts, length)), 10_000, 0, tower=tower)
    with torch.no_grad():
        vectors = model.vectors(chunk).unflatten(1, (-1, model.interaction.dimensions + 1))
    return torch.empty_like(vectors).index_copy_(0, chunk.rows, vectors)


def states(model: TokenEncoder, ids: Sequence[int]) -> Tensor:
    """The library's own states of one text, without padding."""
    with torch.no_grad():
        return model.query.model(torch.tensor([list(ids)])).last_hidden_state[0]  # type: ignore[no-any-return]


def textbook(model: TokenEncoder, tokenizer: Path) -> Tensor:
    """The scores (q, p) from the equations of the papers, with loops."""
    read, about = load_tokenizer(tokenizer), model.interaction
    layer: Any = model.query.head[0]
    weight, bias = layer.linear.weight.detach(), layer.linear.bias
    bias = torch.zeros(len(weight)) if bias is None else bias.detach()
    vocabulary = len(read)
    scores = torch.zeros(len(QUERIES), len(PASSAGES), dtype=torch.float64)
    for a, query in enumerate(QUERIES):
        for b, passage in enumerate(PASSAGES):
            q, p = (read(text, add_special_tokens=False)["input_ids"] for text in (query, passage))
            cls, sep, mask = read.cls_token_id, read.sep_token_id, read.mask_token_id
            if about.method == "colbert":  # [D] and [Q] were added to the vocabulary, in this order
                q = [cls, vocabulary + 1, *q[: QUERY_LENGTH - 3], sep]
                q += [mask] * (QUERY_LENGTH - len(q))
                p = [cls, vocabulary, *p[: PASSAGE_LENGTH - 3], sep]
                signs = {read.convert_tokens_to_ids(sign) for sign in string.punctuation} - {read.unk_token_id}
                assert signs & set(p) or b == 2
                of_query = [weight @ state for state in states(model, q)]
                of_passage = [
                    weight @ state for token, state in zip(p, states(model, p), strict=True) if token not in signs
                ]
                for one in of_query:
                    scores[a, b] += max(float(one @ other / one.norm() / other.norm()) for other in of_passage)
                continue
            q, p = [cls, *q[: QUERY_LENGTH - 2], sep], [cls, *p[: PASSAGE_LENGTH - 2], sep]
            of_query, of_passage = ([weight @ state + bias for state in states(model, text)] for text in (q, p))
            if about.method == "me_bert":
                scores[a, b] = max(float(of_query[0] @ other) for other in of_passage[: about.first])
                continue
            for token, one in list(zip(q, of_query, strict=True))[1:-1]:
                same = [float(one @ v) for other, v in list(zip(p, of_passage, strict=True))[1:-1] if other == token]
                scores[a, b] += max(same, default=0.0)
            if about.whole:
                whole: Any = model.whole[0]
                with torch.no_grad():
                    scores[a, b] += float(whole(states(model, q)[0]) @ whole(states(model, p)[0]))
    return scores


@pytest.mark.parametrize("label", METHODS)
def test_scores_are_those_of_the_paper(tokenizer: Path, label: str) -> None:
    model = encoder(tokenizer, label)
    found = interaction_scores(keyed(model, tokenizer, QUERY), keyed(model, tokenizer, PASSAGE))
    torch.testing.assert_close(found, textbook(model, tokenizer), rtol=0, atol=1e-9)


def test_the_gradient_of_the_scores_is_that_of_finite_differences() -> None:
    draw = torch.Generator().manual_seed(0)
    parts = []
    for texts, places in ((3, 4), (5, 6)):
        vectors = torch.randn(texts, places, 3, generator=draw, dtype=torch.float64)
        keys = torch.randint(0, 3, (texts, places, 1), generator=draw).double()
        keys[torch.arange(places) >= torch.randint(0, places, (texts, 1), generator=draw)] = (
            UNUSED  # some texts have none
        )
        parts += [vectors.requires_grad_(), keys]

    def scores(queries: Tensor, passages: Tensor) -> Tensor:
        return interaction_scores(torch.cat([queries, parts[1]], 2), torch.cat([passages, parts[3]], 2))

    assert 0 < (scores(parts[0], parts[2]) == 0).sum() < 15
    assert torch.autograd.gradcheck(scores, (parts[0], parts[2]))


@pytest.mark.parametrize("label", METHODS)
def test_the_loss_is_the_negative_log_likelihood_of_the_positive(tokenizer: Path, label: str) -> None:
    model, temperature = encoder(tokenizer, label), 0.7
    scores = textbook(model, tokenizer) / temperature
    positive, known = torch.tensor([0, 1, 0]), torch.zeros(3, 4, dtype=torch.bool)
    known[2, 3] = True  # left out of the softmax of the third query
    wanted = 0.0
    for query, place in enumerate(positive.tolist()):
        there = [passage for passage in range(4) if not known[query, passage]]
        wanted -= float(scores[query, place] - torch.logsumexp(scores[query, there], 0)) / 3
    loss = InteractionLoss(model.interaction.dimensions, temperature)
    queries, passages = (keyed(model, tokenizer, tower).flatten(1) for tower in (QUERY, PASSAGE))
    assert float(loss(queries, passages, positive, known)) == pytest.approx(wanted, rel=0, abs=1e-9)


@pytest.mark.parametrize("label", METHODS)
def test_the_gradient_cache_gives_the_gradient_of_the_whole_batch(tokenizer: Path, label: str) -> None:
    model, loss = encoder(tokenizer, label), InteractionLoss(METHODS[label]["dimensions"])
    texts = (
        rows(tokenizer, QUERIES, model.interaction.lengths[0]),
        rows(tokenizer, PASSAGES, model.interaction.lengths[1]),
    )
    positive = torch.tensor([0, 1, 2])

    def parts(budget: int) -> list[Chunk]:
        queries = chunks(*flatten(texts[0]), budget, 0, tower=QUERY)
        return queries + chunks(*flatten(texts[1]), budget, 0, tower=PASSAGE, rows=np.arange(3, 7))

    def gradients(budget: int) -> list[Tensor]:
        model.zero_grad()
        backpropagate(model, parts(budget), lambda vectors: loss(vectors[:3], vectors[3:], positive))
        return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]

    model.zero_grad()
    vectors = torch.empty(7, model.interaction.most * (model.interaction.dimensions + 1), dtype=torch.float64)
    for chunk in parts(10_000):
        vectors = vectors.index_copy(0, chunk.rows, model.vectors(chunk))
    loss(vectors[:3], vectors[3:], positive).backward()
    wanted = [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]
    found = gradients(1)  # one text a chunk
    assert len(parts(1)) == 7
    assert len(found) == len(wanted) > 30
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("label", METHODS)
def test_a_block_of_the_index_has_the_same_scores(tokenizer: Path, label: str) -> None:
    model = encoder(tokenizer, label).float()
    queries, passages = (keyed(model, tokenizer, tower) for tower in (QUERY, PASSAGE))
    kept = [passage[passage[:, -1] >= 0].numpy() for passage in passages]
    joined = np.concatenate(kept)
    block = Block(joined[:, :-1], joined[:, -1].astype(np.int32), np.array([len(one) for one in kept]), "cpu")
    found = np.stack([block.scores(query) for query in queries])
    np.testing.assert_allclose(found, interaction_scores(queries, passages).numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("label", METHODS)
def test_a_saved_encoder_is_loaded_as_it_was(tokenizer: Path, tmp_path: Path, label: str) -> None:
    model = encoder(tokenizer, label).float()
    save_token_encoder(model, tmp_path, tokenizer)
    again = load_token_encoder(tmp_path).eval()
    assert replace(again.interaction) == model.interaction
    for tower in (QUERY, PASSAGE):
        assert torch.equal(keyed(model, tokenizer, tower), keyed(again, tmp_path, tower))
    assert (tmp_path / "modules.json").exists() == (label == "colbert")


@pytest.mark.parametrize("label", METHODS)
def test_it_is_no_retriever_of_one_vector_a_text(tokenizer: Path, tmp_path: Path, label: str) -> None:
    save_token_encoder(encoder(tokenizer, label).float(), tmp_path, tokenizer)
    with pytest.raises(UserError, match=r"late_interaction.json: it describes an encoder of token vectors"):
        Retriever(tmp_path)


DAMAGED: dict[str, Any] = {  # name of a fault -> what the file holds in place of what was saved, and what is said
    "a list": ([1], "late_interaction.json: Input should be an object"),
    "no method": ({"method": None}, "late_interaction.json: method: Input should be 'colbert', 'coil' or 'me_bert'"),
    "another method": ({"method": "splade"}, "late_interaction.json: method: Input should be 'colbert'"),
    "a number in words": ({"dimensions": "8"}, "late_interaction.json: dimensions: Input should be a valid integer"),
    "no dimensions": (
        {"dimensions": 0},
        "late_interaction.json: dimensions: Input should be greater than or equal to 1",
    ),
    "a number for a list": ({"markers": 3}, "late_interaction.json: markers: Input should be a valid array"),
    "a word in a list": ({"left_out": [1, "x"]}, "late_interaction.json: left_out: 1: Input should be a valid integer"),
    "an id beyond the vocabulary": ({"mask": 10**9}, "late_interaction.json: its ids do not fit its method"),
    "no markers": ({"markers": []}, "late_interaction.json: its ids do not fit its method"),
    "other dimensions": ({"dimensions": 5}, "1_Dense"),
}


@pytest.mark.parametrize("fault", DAMAGED)
def test_a_damaged_file_is_one_line(tokenizer: Path, tmp_path: Path, fault: str) -> None:
    save_token_encoder(encoder(tokenizer, "colbert").float(), tmp_path, tokenizer)
    path, (damage, said) = tmp_path / "late_interaction.json", DAMAGED[fault]
    saved = json.loads(path.read_text())
    path.write_text(json.dumps({**saved, **damage} if isinstance(damage, dict) else damage))
    with pytest.raises(UserError) as caught:
        load_token_encoder(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", [None, "", '{"method": "colb'])
def test_a_file_that_is_cut_or_missing_is_one_line(tokenizer: Path, tmp_path: Path, text: str | None) -> None:
    save_token_encoder(encoder(tokenizer, "colbert").float(), tmp_path, tokenizer)
    path = tmp_path / "late_interaction.json"
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(UserError) as caught:
        load_token_encoder(tmp_path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_key_that_is_missing_is_named(tokenizer: Path, tmp_path: Path) -> None:
    save_token_encoder(encoder(tokenizer, "coil").float(), tmp_path, tokenizer)
    path = tmp_path / "late_interaction.json"
    path.write_text(json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key != "method"}))
    with pytest.raises(
        UserError, match=r"late_interaction\.json: method: Field required; .* copy the checkpoint again"
    ):
        load_token_encoder(tmp_path)


@pytest.fixture
def opened(tokenizer: Path, tmp_path: Path) -> tuple[TokenEncoder, MultiVectorEncoder]:
    """A ColBERT, and what sentence-transformers makes of its folder."""
    model = encoder(tokenizer, "colbert").float()
    save_token_encoder(model, tmp_path, tokenizer)
    return model, MultiVectorEncoder(str(tmp_path), device="cpu")


def test_sentence_transformers_opens_colbert_with_equal_scores(
    opened: tuple[TokenEncoder, MultiVectorEncoder], tokenizer: Path
) -> None:
    model, theirs = opened
    found = interaction_scores(keyed(model, tokenizer, QUERY), keyed(model, tokenizer, PASSAGE))
    wanted = theirs.similarity(theirs.encode_query(QUERIES), theirs.encode_document(PASSAGES))
    torch.testing.assert_close(found, torch.as_tensor(wanted), rtol=0, atol=1e-5)
    assert found.std() > 0.01


def test_the_loss_of_sentence_transformers_is_equal(
    opened: tuple[TokenEncoder, MultiVectorEncoder], tokenizer: Path
) -> None:
    model, theirs = opened
    theirs.eval()
    loss = MultiVectorMultipleNegativesRankingLoss(theirs, scale=1 / 0.5)
    marked = [f"[Q] {text}" for text in QUERIES], [f"[D] {text}" for text in PASSAGES[:3]]  # as its trainer does
    read = [theirs.preprocess(texts, task=task) for texts, task in zip(marked, ("query", "document"), strict=True)]
    with torch.no_grad():
        wanted = loss([{**read[0], "task": "query"}, {**read[1], "task": "document"}])
    ours = InteractionLoss(model.interaction.dimensions, temperature=0.5)
    queries, passages = (keyed(model, tokenizer, tower).flatten(1) for tower in (QUERY, PASSAGE))
    assert float(ours(queries, passages[:3], torch.arange(3))) == pytest.approx(float(wanted), abs=1e-5)
