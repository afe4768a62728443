"""What is saved comes back whole, and other libraries read the same retriever from it."""

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, BertConfig, BertForMaskedLM, RobertaConfig, RobertaForMaskedLM

from condensery.errors import UserError
from condensery.models.biencoder import PASSAGE, QUERY, BiEncoder
from condensery.models.checkpoints.pretraining import (
    load_condenser,
    load_masked_autoencoder,
    save_pretraining_model,
)
from condensery.models.checkpoints.retrievers import (
    QUERY_ENCODER,
    SavedRetriever,
    load_biencoder,
    load_retriever,
    save_retriever,
)
from condensery.models.condenser import Condenser, CondenserShape
from condensery.models.encoder import Encoder
from condensery.models.masked_autoencoder import DecoderShape, MaskedAutoEncoder, decoder_shape
from condensery.tokens.batches import chunks, flatten
from condensery.tokens.tokenizer import load_tokenizer
from condensery.tokens.vocabulary import Vocabulary, with_special

LENGTH, QUERY_LENGTH = 14, 9  # shorter than some of the texts


def _language_model(words: Vocabulary, family: str = "bert", seed: int = 0) -> BertForMaskedLM | RobertaForMaskedLM:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
    shared = {
        "vocab_size": words.size,
        "pad_token_id": words.pad,
        "initializer_range": 0.3,
        "max_position_embeddings": 40,
    }
    if family == "bert":
        return BertForMaskedLM(BertConfig(**sizes, **shared, attn_implementation="eager"))
    return RobertaForMaskedLM(RobertaConfig(**sizes, **shared, type_vocab_size=1, attn_implementation="eager"))


def _retriever(words: Vocabulary, separate: bool) -> SavedRetriever:
    towers = [Encoder(_language_model(words, seed=seed).base_model) for seed in range(1 + separate)]
    return SavedRetriever(BiEncoder(*towers).eval(), QUERY_LENGTH, LENGTH)


@torch.no_grad()
def _vectors(model: BiEncoder, texts: list[str], tokenizer: Path, words: Vocabulary, tower: int, length: int) -> Tensor:
    """(n, d) by our own path: ids, chunks, CLS."""
    read = load_tokenizer(tokenizer)
    ids = [with_special(read(text, add_special_tokens=False)["input_ids"], words, length) for text in texts]
    result = torch.empty(len(texts), model.passage.model.config.hidden_size)
    for chunk in chunks(*flatten(ids), 2 * length, words.pad, tower=tower):
        result[chunk.rows] = model.vectors(chunk)
    return result


@torch.no_grad()
def _by_transformers(folder: Path, texts: list[str], length: int) -> Tensor:
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(texts, padding=True, truncation=True, max_length=length, return_tensors="pt")
    return model(**inputs).last_hidden_state[:, 0]


def _by_sentence_transformers(folder: Path, texts: list[str]) -> Tensor:
    library = pytest.importorskip("sentence_transformers")
    model = library.SentenceTransformer(str(folder), device="cpu")
    assert model.similarity_fn_name == "dot"
    return torch.from_numpy(model.encode(texts))


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_condenser_comes_back_with_identical_weights_and_head(
    family: str, words: Vocabulary, wordpiece: Path, tmp_path: Path
) -> None:
    model = Condenser(_language_model(words, family), CondenserShape(2, 1, True))
    save_pretraining_model(model, tmp_path, wordpiece, LENGTH)
    again = load_condenser(tmp_path, words, 2, 1, True, None)
    before, after = model.state_dict(), again.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert again.layers_loaded
    anew = load_condenser(tmp_path, words, 2, 1, True, None, new_head=True)
    assert not anew.layers_loaded
    other = {name for name, value in anew.state_dict().items() if not torch.equal(value, after[name])}
    assert any(name.startswith("head.0.") for name in other)
    assert all(name.startswith("head.") for name in other), "the backbone is the checkpoint's"
    words_in, words_out = again.language_model.get_input_embeddings(), again.language_model.get_output_embeddings()
    assert words_in.weight is words_out.weight, "the decoder is no longer tied"
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".bin", ".pkl", ".tmp")]


def test_a_model_without_head_starts_a_condenser_with_a_new_one_and_the_other_way_round(
    words: Vocabulary, wordpiece: Path, tmp_path: Path
) -> None:
    plain = Condenser(_language_model(words), CondenserShape(0, 1, True))
    save_pretraining_model(plain, tmp_path / "mlm", wordpiece, LENGTH)
    started = load_condenser(tmp_path / "mlm", words, 2, None, True, None)
    assert len(started.head) == 2
    assert not started.layers_loaded
    save_pretraining_model(
        Condenser(_language_model(words), CondenserShape(1, 1, True)), tmp_path / "condenser", wordpiece, LENGTH
    )
    assert len(load_condenser(tmp_path / "condenser", words, 0, None, True, None).head) == 0


def test_skip_from_is_half_of_the_backbone_unless_given(words: Vocabulary, wordpiece: Path, tmp_path: Path) -> None:
    save_pretraining_model(Condenser(_language_model(words), CondenserShape(1, 2, True)), tmp_path, wordpiece, LENGTH)
    assert load_condenser(tmp_path, words, 1, None, True, None).shape.skip_from == 1
    assert load_condenser(tmp_path, words, 1, 2, False, None).shape == CondenserShape(1, 2, False)


def test_a_head_of_another_shape_is_one_line(words: Vocabulary, wordpiece: Path, tmp_path: Path) -> None:
    save_pretraining_model(Condenser(_language_model(words), CondenserShape(2, 1, True)), tmp_path, wordpiece, LENGTH)
    for head_layers in (1, 3):
        with pytest.raises(UserError, match=r"head of another shape; set head_layers .*'head_layers': 2") as raised:
            load_condenser(tmp_path, words, head_layers, 1, True, None)
        assert "\n" not in str(raised.value)


def test_a_damaged_head_is_one_line(words: Vocabulary, wordpiece: Path, tmp_path: Path) -> None:
    save_pretraining_model(Condenser(_language_model(words), CondenserShape(1, 1, True)), tmp_path, wordpiece, LENGTH)
    head = tmp_path / "condenser_head.safetensors"
    head.write_bytes(head.read_bytes()[:100])
    with pytest.raises(UserError, match=r"condenser_head\.safetensors") as raised:
        load_condenser(tmp_path, words, 1, 1, True, None)
    assert "\n" not in str(raised.value)
    head.unlink()
    os.mkfifo(head)  # whoever opened it would wait for ever
    with pytest.raises(UserError, match=r"condenser_head\.safetensors: a pipe"):
        load_condenser(tmp_path, words, 1, 1, True, None)


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("shape", [DecoderShape("causal", 2), DecoderShape("enhanced", 1, 0.6)])
def test_an_autoencoder_comes_back_with_identical_weights_and_decoder(
    family: str, shape: DecoderShape, words: Vocabulary, wordpiece: Path, tmp_path: Path
) -> None:
    model = MaskedAutoEncoder(_language_model(words, family), shape)
    save_pretraining_model(model, tmp_path, wordpiece, LENGTH)
    again = load_masked_autoencoder(tmp_path, words, shape, "last", None)
    assert again.shape == shape
    before, after = model.state_dict(), again.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    words_in, words_out = again.language_model.get_input_embeddings(), again.language_model.get_output_embeddings()
    assert words_in.weight is words_out.weight, "the projection is no longer tied"


def test_a_condenser_starts_an_autoencoder_and_the_other_way_round_without_the_others_layers(
    words: Vocabulary, wordpiece: Path, tmp_path: Path
) -> None:
    condenser = Condenser(_language_model(words), CondenserShape(2, 1, True))
    save_pretraining_model(condenser, tmp_path / "condenser", wordpiece, LENGTH)
    shape = decoder_shape("masked")
    started = load_masked_autoencoder(tmp_path / "condenser", words, shape, "last", None)
    save_pretraining_model(started, tmp_path / "autoencoder", wordpiece, LENGTH)
    again = load_condenser(tmp_path / "autoencoder", words, 2, 1, True, None)
    saved = condenser.language_model.state_dict()
    for model in (started, again):
        loaded = model.language_model.state_dict()
        assert all(torch.equal(value, loaded[name]) for name, value in saved.items())
    last = condenser.encoder.model.encoder.layer[1:].state_dict()
    for name, value in started.decoder.state_dict().items():
        assert torch.equal(value, last[name]), "the decoder is not the backbone's last layers"
    for layers in (condenser.head, started.decoder):
        assert not torch.equal(again.head[0].output.dense.weight, layers[0].output.dense.weight)
    assert not (tmp_path / "autoencoder" / "condenser_head.safetensors").exists()


@pytest.mark.parametrize("other", [DecoderShape("masked", 1), DecoderShape("masked", 3), DecoderShape("causal", 2)])
def test_a_decoder_of_another_shape_is_one_line(
    other: DecoderShape, words: Vocabulary, wordpiece: Path, tmp_path: Path
) -> None:
    model = MaskedAutoEncoder(_language_model(words), DecoderShape("masked", 2))
    save_pretraining_model(model, tmp_path, wordpiece, LENGTH)
    with pytest.raises(UserError, match=r"decoder of another shape; .*'kind': 'masked', 'layers': 2") as raised:
        load_masked_autoencoder(tmp_path, words, other, "random", None)
    assert "\n" not in str(raised.value)
    load_masked_autoencoder(tmp_path, words, DecoderShape("masked", 2, mask_rate=0.9), "random", None)


def _check_saved(encoder: Encoder, folder: Path, texts: list[str], wordpiece: Path, words: Vocabulary) -> Tensor:
    """Check that a folder of pre-training is a retriever with the vectors of ``encoder``; return these vectors."""
    ours = _vectors(BiEncoder(encoder), texts, wordpiece, words, PASSAGE, LENGTH)
    loaded = load_retriever(folder)
    assert (loaded.query_length, loaded.passage_length) == (LENGTH, LENGTH)
    again = _vectors(loaded.model.eval(), texts, wordpiece, words, QUERY, LENGTH)
    torch.testing.assert_close(again, ours, rtol=0, atol=1e-6)
    torch.testing.assert_close(_by_transformers(folder, texts, LENGTH), ours, rtol=0, atol=1e-5)
    return ours


def test_an_autoencoders_artifact_is_a_retriever(
    words: Vocabulary, wordpiece: Path, tmp_path: Path, texts: list[str]
) -> None:
    model = MaskedAutoEncoder(_language_model(words), decoder_shape("masked")).eval()
    save_pretraining_model(model, tmp_path, wordpiece, LENGTH)
    _check_saved(model.encoder, tmp_path, texts, wordpiece, words)


def test_other_libraries_give_a_pretrained_artifacts_vectors(
    words: Vocabulary, wordpiece: Path, tmp_path: Path, texts: list[str]
) -> None:
    model = Condenser(_language_model(words), CondenserShape(2, 1, True)).eval()
    save_pretraining_model(model, tmp_path, wordpiece, LENGTH)
    ours = _check_saved(model.encoder, tmp_path, texts, wordpiece, words)
    torch.testing.assert_close(_by_sentence_transformers(tmp_path, texts), ours, rtol=0, atol=1e-5)


@pytest.mark.parametrize("separate", [False, True], ids=["shared towers", "separate towers"])
def test_other_libraries_give_a_fine_tuned_artifacts_vectors(
    separate: bool, words: Vocabulary, wordpiece: Path, tmp_path: Path, texts: list[str]
) -> None:
    retriever = _retriever(words, separate)
    save_retriever(retriever, tmp_path, wordpiece)
    passages = _vectors(retriever.model, texts, wordpiece, words, PASSAGE, LENGTH)
    queries = _vectors(retriever.model, texts, wordpiece, words, QUERY, QUERY_LENGTH)
    loaded = load_retriever(tmp_path)
    assert (loaded.query_length, loaded.passage_length, loaded.model.shared) == (QUERY_LENGTH, LENGTH, not separate)
    for tower, length, expected in ((PASSAGE, LENGTH, passages), (QUERY, QUERY_LENGTH, queries)):
        again = _vectors(loaded.model.eval(), texts, wordpiece, words, tower, length)
        torch.testing.assert_close(again, expected, rtol=0, atol=1e-6)
    assert (tmp_path / QUERY_ENCODER).is_dir() == separate
    sides = [(tmp_path, LENGTH, passages)] + [(tmp_path / QUERY_ENCODER, QUERY_LENGTH, queries)] * separate
    for folder, length, expected in sides:
        torch.testing.assert_close(_by_transformers(folder, texts, length), expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(_by_sentence_transformers(folder, texts), expected, rtol=0, atol=1e-5)


def test_a_retriever_starts_two_towers_from_one_checkpoint_and_keeps_two_apart(
    words: Vocabulary, wordpiece: Path, tmp_path: Path
) -> None:
    save_retriever(_retriever(words, separate=False), tmp_path / "one", wordpiece)
    towers = load_biencoder(tmp_path / "one", separate=True)
    assert not towers.shared
    assert all(map(torch.equal, towers.query.parameters(), towers.passage.parameters()))
    save_retriever(_retriever(words, separate=True), tmp_path / "two", wordpiece)
    again = load_biencoder(tmp_path / "two")
    assert not again.shared
    assert not all(map(torch.equal, again.query.parameters(), again.passage.parameters()))


def test_a_folder_that_holds_no_retriever_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        load_retriever(tmp_path)
    assert "\n" not in str(raised.value)
