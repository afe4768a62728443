"""A warm start writes what it names and nothing else, and CLS vectors begin near the mean of their text's tokens."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from real_text import prose, write_store
from textbook import CLS, PAD, SEP, SIZE, language_model, vocabulary
from torch import Tensor
from transformers import AutoModelForMaskedLM, PreTrainedModel, T5Config, T5ForConditionalGeneration

from condensery.models.checkpoints.backbone import masked_language_model
from condensery.models.checkpoints.config import BackboneConfig
from condensery.models.encoder import Encoder
from condensery.models.warm_start import SMOOTH, WarmStart, token_vectors, warm_up, warm_up_generator
from condensery.tokens.batches import chunks, flatten
from condensery.tokens.cooccurrence import cooccurrences, positive_pmi, truncated_svd, unigrams

FAMILIES = ["bert", "roberta"]
NOTHING = WarmStart(unigram_bias=False, near_identity=0, random_share=1, rare_tokens=0, position_scale=1)
WORDS, DIM = 600, 64
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Start:
    """What a warm start is made of: vectors and counts of tokens, and some texts of them."""

    vectors: Matrix
    counts: NDArray[np.int64]
    texts: list[list[int]]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Of 600 words of real text, the last twenty of which occur nowhere."""
    text = prose(WORDS, without=20)
    store = write_store(tmp_path_factory.mktemp("prose"), text.documents)
    decomposed = truncated_svd(positive_pmi(cooccurrences(store, WORDS, window=10)), DIM)
    texts = [words[:40] for words in text.texts if len(words) >= 8][:300]
    return Start(token_vectors(*decomposed, seed=1), unigrams(store, WORDS), texts)


def scratch(family: str = "bert", layers: int = 4, hidden: int = DIM, heads: int = 2, size: int = WORDS) -> Any:
    """A model as pre-training begins with it."""
    config = BackboneConfig(
        name=None, revision=None, tokenizer=None, vocab_size=size, family=family, layers=layers, hidden=hidden,
        heads=heads, intermediate=2 * hidden, max_positions=64, dropout=0.0, initializer_range=0.02,
    )  # fmt: skip
    return masked_language_model(config, vocabulary(size), seed=0).eval()


def warmed(start: Start, parts: WarmStart, family: str = "bert", layers: int = 4) -> Any:
    model = scratch(family, layers)
    warm_up(model, start.vectors, start.counts, vocabulary(WORDS), parts)
    return model


def cls_vectors(model: Any, texts: list[list[int]]) -> Matrix:
    """As the package encodes texts: (n, d)."""
    encoder, found = Encoder(model.base_model), torch.zeros(len(texts), DIM)
    rows = flatten([[CLS, *text, SEP] for text in texts])
    for chunk in chunks(*rows, 4096, PAD):
        with torch.no_grad():
            found[chunk.rows] = encoder.cls(chunk)
    return found.double().numpy()


def means(model: Any, start: Start, strength: float = 0.0) -> Matrix:
    """Of the normalised embeddings of each text's tokens, weighted by (a / (a + p)) ** strength: (n, d)."""
    states, share = normalised(model), start.counts / start.counts.sum()
    weight = (SMOOTH / (SMOOTH + share)) ** strength
    return np.stack([np.average(states[text], axis=0, weights=weight[text]) for text in start.texts])


def normalised(model: Any) -> Matrix:
    """What the first layer reads of each token, but for positions: (V, d)."""
    embeddings = model.base_model.embeddings
    with torch.no_grad():
        rows = embeddings.word_embeddings.weight + embeddings.token_type_embeddings.weight[0]
        return embeddings.LayerNorm(rows).double().numpy()


def cosines(vectors: Matrix) -> Matrix:
    """Of all pairs, around the mean of all: (n * (n - 1) / 2,)."""
    centred = vectors - vectors.mean(axis=0)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    return (centred @ centred.T)[np.triu_indices(len(centred), 1)]


def follows(model: Any, start: Start, strength: float = 0.0) -> float:
    """How the similarities of CLS vectors correlate with those of the means of their tokens."""
    pairs = cosines(cls_vectors(model, start.texts)), cosines(means(model, start, strength))
    return float(np.corrcoef(*pairs)[0, 1])


@pytest.mark.parametrize("family", FAMILIES)
def test_cls_vectors_follow_the_mean_of_their_tokens_and_those_of_random_weights_do_not(
    family: str, start: Start
) -> None:
    plain = WarmStart(rare_tokens=0)
    assert follows(warmed(start, plain, family), start) > 0.95
    assert follows(scratch(family), start) < 0.75
    assert follows(warmed(start, replace(plain, near_identity=0), family), start) < 0.93, "the identity does something"
    assert follows(warmed(start, replace(plain, position_scale=1), family), start) < 0.85, "so do small positions"


@pytest.mark.parametrize("family", FAMILIES)
def test_with_rare_tokens_a_layer_follows_the_mean_weighted_by_inverse_frequency(family: str, start: Start) -> None:
    one = warmed(start, WarmStart(rare_tokens=0.5), family, layers=1)
    assert follows(one, start, 0.5) > follows(one, start) + 0.05
    plain, four = (warmed(start, WarmStart(rare_tokens=strength), family) for strength in (0, 0.5))
    assert follows(four, start, 0.5) > follows(plain, start, 0.5) + 0.05, "more layers draw towards it"
    assert follows(four, start) < follows(plain, start) - 0.05


@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_layer_attends_to_tokens_by_the_weight_that_is_nearest_to_theirs(family: str, start: Start) -> None:
    strength = 0.5
    model = warmed(start, WarmStart(rare_tokens=strength), family)
    attention, states = model.base_model.encoder.layer[0].attention.self, normalised(model)
    with torch.no_grad():
        keys = attention.key(torch.from_numpy(states).float()).double().numpy()[:, ::32]
        bias = attention.query.bias.numpy()
    assert bias.nonzero()[0].tolist() == [0, 32], "one dimension of each of the two heads"
    scores = keys * bias[::32] / 32**0.5  # for a query that is 0 but for its bias
    np.testing.assert_allclose(scores[:, 0], scores[:, 1], rtol=1e-6)
    share = start.counts / start.counts.sum()
    wanted = strength * np.log(SMOOTH / (SMOOTH + share))
    ordinary = np.flatnonzero((start.counts > 0) & ~vocabulary(WORDS).is_special)
    weights = share[ordinary] / share[ordinary].sum()
    columns = np.stack([scores[ordinary, 0], wanted[ordinary]])
    covariance = np.cov(columns, aweights=weights)
    assert covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1]) > 0.6
    assert 0.6 < covariance[0, 1] / covariance[0, 0] < 1.4, "the scale is that of the log weights"
    typical = float(np.average(scores[ordinary, 0], weights=weights))
    assert (scores[[CLS, SEP], 0] < typical - 0.3).all(), "special tokens say nothing"


WRITTEN = {  # the part: the weights that it changes, of both families
    "unigram_bias": {"output bias"},
    "near_identity": {
        f"encoder.layer.{layer}.attention.{name}.weight"
        for layer in range(3)
        for name in ("self.value", "output.dense")
    },
    "rare_tokens": {"encoder.layer.0.attention.self.key.weight", "encoder.layer.0.attention.self.query.bias"},
    "position_scale": {"embeddings.position_embeddings.weight", "embeddings.token_type_embeddings.weight"},
    "vectors": {"embeddings.word_embeddings.weight"},
}
ON: dict[str, Any] = {"unigram_bias": True, "near_identity": 1.0, "rare_tokens": 0.5, "position_scale": 0.1}


def weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """Each weight once, copied, by its name in the backbone."""
    names = {name.removeprefix(f"{model.base_model_prefix}."): value for name, value in model.named_parameters()}
    output: Any = model.get_output_embeddings()
    return {("output bias" if one is output.bias else name): one.detach().clone() for name, one in names.items()}


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name, value in before.items() if not torch.equal(value, after[name])}


@cache
def toy() -> tuple[Matrix, NDArray[np.int64]]:
    """Vectors and counts of 60 tokens; specials and the last ten have none, and the last two are not counted."""
    random = np.random.default_rng(0)
    vectors = random.standard_normal((SIZE, 16))
    vectors[:5], vectors[50:] = 0, 0
    counts = random.integers(1, 1000, SIZE)
    counts[:5], counts[-2:] = 0, 0
    return vectors, counts


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("part", WRITTEN)
def test_each_part_changes_what_it_names_and_nothing_else(part: str, family: str) -> None:
    model, (vectors, counts) = language_model(family), toy()
    before = weights(model)
    parts = NOTHING if part == "vectors" else replace(NOTHING, **{part: ON[part]})
    warm_up(model, vectors if part == "vectors" else None, counts, vocabulary(), parts)
    assert changed(before, weights(model)) == WRITTEN[part]


def test_without_any_part_nothing_changes() -> None:
    model = language_model()
    before = weights(model)
    warm_up(model, None, toy()[1], vocabulary(), NOTHING)
    assert not changed(before, weights(model))


@pytest.mark.parametrize("family", FAMILIES)
def test_all_parts_together_are_what_each_writes(family: str, tmp_path: Path) -> None:
    model, (vectors, counts) = language_model(family), toy()
    before = weights(model)
    warm_up(model, vectors, counts, vocabulary(), WarmStart())
    after = weights(model)
    assert changed(before, after) == set().union(*WRITTEN.values())
    assert all(torch.isfinite(value).all() for value in after.values())
    model.save_pretrained(tmp_path)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert not changed(after, weights(loaded)), "what is saved is what was written, the tied bias too"


def test_tokens_without_vectors_keep_their_random_rows_and_the_others_are_as_large() -> None:
    model, (vectors, counts) = language_model(), toy()
    before = weights(model)["embeddings.word_embeddings.weight"]
    warm_up(model, vectors, counts, vocabulary(), NOTHING)
    after = weights(model)["embeddings.word_embeddings.weight"]
    assert torch.equal(after[:5], before[:5])
    assert torch.equal(after[50:], before[50:])
    known = after[5:50].numpy()
    assert known.std() == pytest.approx(float(before.std()))
    np.testing.assert_allclose(known / np.linalg.norm(known), vectors[5:50] / np.linalg.norm(vectors[5:50]))


def test_without_any_associations_all_rows_stay_random_and_the_rest_is_written() -> None:
    model, counts = language_model(), np.zeros(SIZE, np.int64)
    counts[7] = 1  # a collection of one token
    before = weights(model)
    vectors = token_vectors(*truncated_svd(positive_pmi(_no_pairs()), 16), seed=1)
    warm_up(model, vectors, counts, vocabulary(), WarmStart())
    after = weights(model)
    assert changed(before, after) == set().union(*WRITTEN.values()) - WRITTEN["vectors"]
    assert all(torch.isfinite(value).all() for value in after.values())


def _no_pairs() -> Any:
    from scipy import sparse

    return sparse.csr_array((SIZE, SIZE))


def test_projections_are_a_share_of_their_random_weights_and_so_many_identities() -> None:
    model = language_model()
    before = weights(model)
    warm_up(model, None, toy()[1], vocabulary(), replace(NOTHING, near_identity=0.8, random_share=0.25))
    after = weights(model)
    for name in WRITTEN["near_identity"]:
        torch.testing.assert_close(after[name], 0.25 * before[name] + 0.8 * torch.eye(16, dtype=torch.float64))


def test_positions_are_scaled() -> None:
    model = language_model()
    before = weights(model)
    warm_up(model, None, toy()[1], vocabulary(), replace(NOTHING, position_scale=0.1))
    after = weights(model)
    for name in WRITTEN["position_scale"]:
        torch.testing.assert_close(after[name], 0.1 * before[name])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_bias_is_the_log_of_unigrams_of_which_each_counts_once_more(family: str) -> None:
    model, (_, counts) = language_model(family), toy()
    warm_up(model, None, counts, vocabulary(), replace(NOTHING, unigram_bias=True))
    bias = weights(model)["output bias"].numpy()
    np.testing.assert_allclose(bias, [np.log((count + 1) / (counts.sum() + SIZE)) for count in counts], rtol=1e-12)
    assert np.exp(bias).sum() == pytest.approx(1.0)


def test_a_checkpoint_with_more_rows_than_tokens_has_no_bias_for_them() -> None:
    model, (vectors, counts) = language_model(size=SIZE + 4), toy()
    before = weights(model)
    warm_up(model, vectors, counts, vocabulary(), WarmStart())
    after = weights(model)
    for name in ("output bias", "embeddings.word_embeddings.weight"):
        assert torch.equal(after[name][SIZE:], before[name][SIZE:])


@pytest.mark.parametrize(("hidden", "heads", "layers"), [(15, 3, 1), (33, 1, 2), (90, 9, 1)])
def test_odd_sizes_and_more_dimensions_than_tokens(hidden: int, heads: int, layers: int, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    documents = [[random.integers(5, SIZE, 40).tolist() for _ in range(3)] for _ in range(4)]
    store = write_store(tmp_path, documents)
    decomposed = truncated_svd(positive_pmi(cooccurrences(store, SIZE, window=4)), hidden)
    model, vectors = language_model(layers=layers, hidden=hidden, heads=heads), token_vectors(*decomposed, seed=1)
    assert vectors.shape == (SIZE, hidden)
    np.testing.assert_allclose(np.linalg.norm(vectors[5:], axis=1), 1.0)
    warm_up(model, vectors, unigrams(store, SIZE), vocabulary(), WarmStart())
    assert all(torch.isfinite(value).all() for value in weights(model).values())
    key = weights(model)["encoder.layer.0.attention.self.key.weight"][:: hidden // heads]
    assert key.shape[0] == heads
    assert (key == key[0]).all()


def small_t5(layers: int = 2) -> Any:
    """As ``models.generator.small_generator`` makes it, of the words of ``start``."""
    torch.manual_seed(1)
    config = T5Config(
        vocab_size=WORDS, d_model=DIM, d_kv=DIM // 2, d_ff=2 * DIM, num_layers=layers, num_heads=2, pad_token_id=PAD
    )
    return T5ForConditionalGeneration(config).eval()


def test_a_warm_generator_begins_with_words_of_what_it_reads(start: Start) -> None:
    cold, warm = small_t5(), small_t5()
    warm_up_generator(warm, start.vectors)
    found = {}
    for name, model in (("cold", cold), ("warm", warm)):
        higher = []
        for text in start.texts[:100]:
            with torch.no_grad():
                (logits,) = model(input_ids=torch.tensor([text]), decoder_input_ids=torch.full((1, 1), PAD)).logits[0]
            read = torch.zeros(WORDS, dtype=torch.bool)
            read[text] = True
            higher.append(float((logits[read][:, None] > logits[~read]).float().mean()))
        found[name] = np.mean(higher)
    assert found["cold"] == pytest.approx(0.5, abs=0.1), "of a word that was read and one that was not, the likelier"
    assert found["warm"] > 0.8


def test_a_warm_generator_is_random_but_for_embeddings_and_what_is_read(start: Start) -> None:
    cold, warm = small_t5(), small_t5()
    warm_up_generator(warm, start.vectors, WarmStart(near_identity=0.5, random_share=0.25))
    theirs = cold.state_dict()
    for name, weight in warm.state_dict().items():
        if ".EncDecAttention." in name and name.endswith(("v.weight", "o.weight")):
            assert torch.allclose(weight, 0.25 * theirs[name] + 0.5 * torch.eye(DIM)), name
        elif name.endswith(("SelfAttention.o.weight", "wo.weight")):
            assert torch.allclose(weight, 0.25 * theirs[name]), name
        elif weight.shape == (WORDS, DIM):
            known = torch.from_numpy(start.vectors.any(axis=1))
            assert torch.equal(weight[~known], theirs[name][~known])
            ours = weight[known] / weight[known].norm(dim=1, keepdim=True)
            assert torch.allclose(ours, torch.from_numpy(start.vectors).float()[known], atol=1e-5)
        else:
            assert torch.equal(weight, theirs[name]), name
