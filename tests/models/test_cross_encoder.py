"""A cross-encoder gives the scores that other libraries read from its checkpoint."""

from pathlib import Path

import pytest
import sentence_transformers
import torch
from torch import Tensor
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    RobertaConfig,
    RobertaForMaskedLM,
)

from condensery.errors import UserError
from condensery.models.biencoder import BiEncoder
from condensery.models.checkpoints.metadata import check_files
from condensery.models.checkpoints.retrievers import SavedRetriever, load_any_retriever, save_retriever
from condensery.models.cross_encoder import (
    CrossEncoder,
    Reranker,
    load_cross_encoder,
    load_reranker,
    new_cross_encoder,
    pair_separators,
    save_cross_encoder,
)
from condensery.models.encoder import Encoder
from condensery.models.precision import with_cast_weights
from condensery.tokens.pairs import PairReader
from condensery.tokens.store import TokenStore, tokenise
from condensery.tokens.tokenizer import load_tokenizer
from condensery.tokens.vocabulary import Vocabulary

QUERIES = ["what carries stones", "vectors", "who reads the passages there"]
TITLES = ["Rivers", "", "The sea"]
LENGTHS = {"query_length": 10, "length": 22}
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def language_model(words: Vocabulary, family: str = "bert") -> BertForMaskedLM | RobertaForMaskedLM:
    torch.manual_seed(0)
    shared = {"vocab_size": words.size, "pad_token_id": words.pad, "initializer_range": 0.3, **SIZES}
    if family == "bert":
        return BertForMaskedLM(BertConfig(**shared, max_position_embeddings=40, attn_implementation="eager"))
    config = RobertaConfig(**shared, max_position_embeddings=40, type_vocab_size=1, attn_implementation="eager")
    return RobertaForMaskedLM(config)


def reader(folder: Path, texts: list[str], wordpiece: Path, words: Vocabulary, titles: bool) -> PairReader:
    stores: dict[str, TokenStore] = {
        name: tokenise(column, wordpiece, folder / name, sentences=False, workers=1)
        for name, column in (("queries", QUERIES), ("passages", texts), ("titles", TITLES))
    }
    heads = stores["titles"] if titles else None
    return PairReader(stores["queries"], stores["passages"], heads, words, **LENGTHS)


@torch.no_grad()
def our_scores(model: CrossEncoder, pairs: PairReader, budget: int = 50) -> Tensor:
    """(9,) of every query with every passage."""
    found = torch.empty(9)
    for chunk in pairs.chunks([0, 0, 0, 1, 1, 1, 2, 2, 2], [0, 1, 2] * 3, budget):
        found[chunk.rows] = model.eval().scores(chunk)
    return found


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("titles", [False, True])
def test_the_checkpoint_gives_other_libraries_the_same_scores(
    family: str, titles: bool, texts: list[str], wordpiece: Path, words: Vocabulary, tmp_path: Path
) -> None:
    from sentence_transformers import CrossEncoder as TheirCrossEncoder

    pairs = reader(tmp_path, texts, wordpiece, words, titles)
    model = new_cross_encoder(language_model(words, family), seed=1)
    ours = our_scores(model, pairs)
    assert ours.std() > 0.01
    save_cross_encoder(Reranker(model, **LENGTHS, separators=1), tmp_path / "saved", wordpiece)

    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved").eval()
    assert loaded.config.num_labels == 1
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "saved")
    shown = [f"{title} [SEP] {text}" if titles and title else text for title, text in zip(TITLES, texts, strict=True)]
    asked = [(query, text) for query in QUERIES for text in shown]
    limit = {"truncation": "only_second", "max_length": 22}
    read = tokenizer(*map(list, zip(*asked, strict=True)), padding=True, return_tensors="pt", **limit)
    with torch.no_grad():
        theirs = loaded(**read).logits[:, 0]
    assert torch.allclose(ours, theirs, atol=1e-6)

    plain = TheirCrossEncoder(str(tmp_path / "saved"), device="cpu")
    assert plain.max_length == 22
    assert torch.allclose(ours, torch.from_numpy(plain.predict(asked)), atol=1e-5)
    again = load_reranker(tmp_path / "saved")
    assert (again.query_length, again.length, again.separators) == (10, 22, 1)
    assert torch.allclose(our_scores(again.model, pairs), ours, atol=1e-6)


def test_no_chunking_changes_a_score(texts: list[str], wordpiece: Path, words: Vocabulary, tmp_path: Path) -> None:
    model, pairs = new_cross_encoder(language_model(words), 1), reader(tmp_path, texts, wordpiece, words, True)
    assert torch.allclose(our_scores(model, pairs, budget=1), our_scores(model, pairs, budget=10_000), atol=1e-6)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_scores_in_bf16_are_no_coarser_than_in_fp32(
    family: str, texts: list[str], wordpiece: Path, words: Vocabulary, tmp_path: Path
) -> None:
    """A logit in bf16 has three digits, so pairs would be tied (sentence-transformers #3894)."""
    model, pairs = new_cross_encoder(language_model(words, family), 1), reader(tmp_path, texts, wordpiece, words, True)
    with torch.autocast("cpu", torch.bfloat16):
        scores = our_scores(model, pairs)
    assert (scores.bfloat16().float() != scores).sum() > 6
    assert torch.allclose(scores, our_scores(model, pairs), atol=0.1)
    with torch.autocast("cpu", torch.bfloat16):  # as in a stage, which casts the weights once
        assert torch.equal(our_scores(with_cast_weights(model.eval(), "bf16"), pairs), our_scores(model, pairs))


def test_types_tell_the_two_texts_apart(texts: list[str], wordpiece: Path, words: Vocabulary, tmp_path: Path) -> None:
    from dataclasses import replace

    model, pairs = new_cross_encoder(language_model(words), 1).eval(), reader(tmp_path, texts, wordpiece, words, False)
    (chunk,) = pairs.chunks([0], [0], 100)
    with torch.no_grad():
        assert not torch.allclose(model.scores(chunk), model.scores(replace(chunk, second=None)), atol=1e-4)


def test_it_starts_from_any_checkpoint_and_keeps_a_head_of_one_label(
    words: Vocabulary, wordpiece: Path, tmp_path: Path
) -> None:
    backbone = language_model(words)
    encoder = Encoder(backbone.base_model)
    save_retriever(SavedRetriever(BiEncoder(encoder), 9, 12), tmp_path / "retriever", wordpiece)
    backbone.save_pretrained(tmp_path / "masked")
    for source in (tmp_path / "retriever", tmp_path / "masked", str(tmp_path / "masked")):
        model, same = load_cross_encoder(source, seed=3), load_cross_encoder(source, seed=3)
        weights = dict(model.encoder.model.named_parameters())
        assert all(
            torch.equal(weights[name], value)
            for name, value in encoder.model.named_parameters()
            if not name.startswith("pooler.")
        )
        assert torch.equal(model.classifier.classifier.weight, same.classifier.classifier.weight)
    other = load_cross_encoder(tmp_path / "masked", seed=4)
    assert not torch.equal(model.classifier.classifier.weight, other.classifier.classifier.weight)
    model.classifier.save_pretrained(tmp_path / "classifier")
    kept = load_cross_encoder(tmp_path / "classifier", seed=4, dropout=0.25)
    assert torch.equal(kept.classifier.classifier.weight, model.classifier.classifier.weight)
    assert kept.classifier.config.hidden_dropout_prob == 0.25


def test_what_cannot_be_a_cross_encoder_is_one_line(words: Vocabulary, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be loaded .*; give a complete checkpoint"):
        load_cross_encoder(tmp_path)
    config = BertConfig(vocab_size=words.size, num_labels=2, **SIZES)
    BertForSequenceClassification(config).save_pretrained(tmp_path / "two")
    with pytest.raises(UserError, match=r"two: .*classifier\.weight 2x16 instead of 1x16"):
        load_cross_encoder(tmp_path / "two")


def test_pairs_are_written_as_the_tokenizer_writes_them(
    texts: list[str], wordpiece: Path, words: Vocabulary, tmp_path: Path
) -> None:
    from dataclasses import replace

    assert pair_separators(wordpiece) == 1
    pairs, tokenizer = reader(tmp_path, texts, wordpiece, words, False), load_tokenizer(wordpiece)
    flat, starts, second = pairs.rows([1, 2], [0, 2])
    for row, (query, passage) in enumerate([(1, 0), (2, 2)]):
        ids = flat[starts[row] : starts[row + 1]].tolist()
        wanted = tokenizer(QUERIES[query], texts[passage], truncation="only_second", max_length=22)
        assert ids == wanted["input_ids"]
        assert second[row] == wanted["token_type_ids"].index(1)
    double = replace(pairs, separators=2)  # as RoBERTa's: <s> query </s></s> passage </s>
    flat, starts, second = double.rows([1], [0])
    place = int(second[0])
    assert flat[place - 2 : place].tolist() == [words.sep, words.sep]
    assert flat[:1].tolist() + flat[-1:].tolist() == [words.cls, words.sep]
    assert int((flat == words.sep).sum()) == 3


def test_a_cross_encoder_is_no_retriever(words: Vocabulary, wordpiece: Path, tmp_path: Path) -> None:
    scorer = new_cross_encoder(language_model(words), seed=0)
    save_cross_encoder(Reranker(scorer, **LENGTHS, separators=1), tmp_path, wordpiece)
    with pytest.raises(UserError, match=r"config.json: architectures names a classifier"):
        load_any_retriever(tmp_path)
    with pytest.raises(UserError, match=r"config.json: architectures names a classifier"):
        check_files(tmp_path)  # of the stage `retriever`, before a run
    folder = tmp_path / "by sentence-transformers"
    sentence_transformers.CrossEncoder(str(tmp_path), device="cpu").save_pretrained(str(folder))
    with pytest.raises(UserError, match=r'config_sentence_transformers.json: model_type is "CrossEncoder"'):
        load_any_retriever(folder)
