"""The generator draws what top-k and nucleus sampling say, a query the same in whatever batch it is made."""

import importlib.util
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from small_t5 import save_small_t5
from transformers import (
    AutoModelForSeq2SeqLM,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertModel,
    T5Config,
    T5ForConditionalGeneration,
)

from condensery.errors import UserError
from condensery.models.generator import (
    Generator,
    OneDraw,
    Sampling,
    draws,
    load_generator,
    save_generator,
)
from condensery.randomness import uniforms
from condensery.tokens.tokenizer import load_tokenizer, train_wordpiece

TEXTS = ["the river is near", "a stone, known and wide", "often with some water of the river and the stone", "x"]
SAMPLING = Sampling(3, 5, 0.9, 8, 32, "query: ", 1)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words")
    train_wordpiece(TEXTS * 3, 120, folder)
    return folder


@pytest.fixture(scope="module")
def t5(words: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_t5(tmp_path_factory.mktemp("t5") / "model", words)


def by_hand(logits: np.ndarray, draw: float, top_k: int, top_p: float) -> int:
    """Top-k, nucleus and the inverse of the distribution function, one token after the other."""
    order = sorted(range(len(logits)), key=lambda token: -logits[token])
    kept = order[:top_k] if top_k else order
    weights = {token: float(np.exp(logits[token])) for token in kept}
    total, reached, nucleus = sum(weights.values()), 0.0, []
    for token in kept:
        if reached < top_p * total or not nucleus:
            nucleus.append(token)
        reached += weights[token]
    left = draw * sum(weights[token] for token in nucleus)
    for token in sorted(nucleus):
        if left < weights[token]:
            return token
        left -= weights[token]
    return max(nucleus)


def chosen(logits: torch.Tensor, drawn: torch.Tensor, top_k: int, top_p: float) -> list[int]:
    scores = OneDraw(drawn, top_k, top_p)(torch.zeros(len(logits), 1, dtype=torch.long), logits)
    assert ((scores == 0).sum(dim=1) == 1).all()
    assert ((scores == -torch.inf).sum(dim=1) == logits.shape[1] - 1).all()
    return scores.argmax(dim=1).tolist()


@pytest.mark.parametrize(("top_k", "top_p"), [(25, 0.95), (3, 1.0), (0, 0.7), (0, 1.0), (1, 0.5), (1000, 0.95)])
def test_a_draw_is_the_inverse_distribution_of_what_top_k_and_top_p_leave(top_k: int, top_p: float) -> None:
    logits = torch.from_numpy(np.random.default_rng(0).normal(0, 2, (300, 60)))
    drawn = torch.from_numpy(uniforms(1, index=np.arange(300)))[:, None]
    wanted = [by_hand(row.numpy(), float(draw), top_k, top_p) for row, draw in zip(logits, drawn, strict=True)]
    assert chosen(logits, drawn, top_k, top_p) == wanted


def test_top_k_keeps_all_tokens_that_are_as_probable_as_the_last() -> None:
    logits = torch.tensor([[0.0, 1.0, 0.0, -1.0, 0.0], [3.0, 2.0, 1.0, 0.0, -1.0]], dtype=torch.float64)
    places = torch.linspace(0, 0.999, 200, dtype=torch.float64)
    drawn = [{chosen(logits, draw.expand(2, 1), 2, 1.0)[row] for draw in places} for row in range(2)]
    assert drawn == [{0, 1, 2, 4}, {0, 1}]


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    likely = np.array([0.4, 0.0, 0.25, 0.2, 0.1, 0.05])
    number = 20_000
    logits = torch.from_numpy(np.log(likely + 1e-12)).expand(number, -1)
    drawn = torch.from_numpy(uniforms(7, "draws", index=np.arange(number)))[:, None]
    counts = np.bincount(chosen(logits, drawn, 4, 0.85), minlength=6)
    assert counts[[1, 4, 5]].sum() == 0, "top-k leaves four, the nucleus of 0.85 three of them"
    kept = likely[[0, 2, 3]] / likely[[0, 2, 3]].sum()
    assert chisquare(counts[[0, 2, 3]], kept * number).pvalue > 0.001


def test_each_place_of_a_query_has_a_draw_of_its_own() -> None:
    found = draws([4, 9], Sampling(3, 5, 0.9, 8, 32, "", 1))
    assert found.shape == (6, 8)
    assert len(np.unique(found)) == 48
    more = draws([9], Sampling(20, 5, 0.9, 16, 32, "", 1))
    assert np.array_equal(more[:3, :8], found[3:]), "the first queries are the same whatever the number"
    assert not np.array_equal(draws([4, 9], Sampling(3, 5, 0.9, 8, 32, "", 2)), found)


def test_logits_that_are_no_numbers_are_said() -> None:
    with pytest.raises(UserError, match="not finite; use precision"):
        OneDraw(torch.rand(1, 1))(torch.zeros(1, 1), torch.full((1, 4), torch.nan))


def test_a_query_does_not_depend_on_its_batch_and_follows_seed_and_row(t5: Path) -> None:
    generator = load_generator(t5, "model")
    together = generator.sample(TEXTS, [0, 1, 2, 3], SAMPLING)
    assert [generator.sample([text], [row], SAMPLING)[0] for row, text in enumerate(TEXTS)] == together
    assert generator.sample(TEXTS[::-1], [3, 2, 1, 0], SAMPLING) == together[::-1]
    assert len({query for found in together for query in found}) > 6
    again = generator.sample(TEXTS, [0, 1, 2, 3], Sampling(3, 5, 0.9, 8, 32, "query: ", 2))
    assert again != together
    assert generator.sample([TEXTS[0]], [5], SAMPLING)[0] != together[0]


def test_generation_is_that_of_step_by_step_decoding_without_cache(t5: Path) -> None:
    generator = load_generator(t5, "model")
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(t5).eval(), generator.tokenizer
    read = tokenizer(["query: " + TEXTS[0]], return_tensors="pt")
    drawn = draws([6], SAMPLING)
    wanted = []
    for number in range(3):
        ids = [model.config.decoder_start_token_id]
        for place in range(8):
            with torch.no_grad():
                logits = model(
                    input_ids=read["input_ids"],
                    attention_mask=read["attention_mask"],
                    decoder_input_ids=torch.tensor([ids]),
                ).logits[0, -1]
            ids.append(by_hand(logits.double().numpy(), float(drawn[number, place]), 5, 0.9))
            if ids[-1] == tokenizer.eos_token_id:
                break
        wanted.append(tokenizer.decode(ids, skip_special_tokens=True))
    assert generator.sample([TEXTS[0]], [6], SAMPLING) == [wanted]


def test_what_is_too_long_is_cut_and_the_prefix_is_read(t5: Path) -> None:
    generator = load_generator(t5, "model")
    long = " ".join(TEXTS[:3] * 20)
    assert generator.encode([long, "x"], 16)["input_ids"].shape == (2, 16)
    short = Sampling(3, 5, 0.9, 8, 16, "query: ", 1)
    assert generator.sample([long], [0], short) == generator.sample([long + " more"], [0], short)
    assert generator.sample([TEXTS[0]], [0], Sampling(3, 5, 0.9, 8, 32, "", 1)) != generator.sample(
        [TEXTS[0]], [0], SAMPLING
    )


def test_faults_of_the_model_are_one_line_each(t5: Path, words: Path, tmp_path: Path) -> None:
    BertModel(BertConfig(vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)).save_pretrained(
        tmp_path / "bert"
    )
    (tmp_path / "empty").mkdir()
    save_small_t5(tmp_path / "startless", words, decoder_start_token_id=None)
    save_small_t5(tmp_path / "wordless", words)
    for file in (tmp_path / "wordless").glob("*token*"):
        file.unlink()
    save_small_t5(tmp_path / "broken", words)
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"no weights")
    wanted = {
        "bert": "is a bert model, which cannot write a text from another text",
        "empty": "cannot load",
        "startless": "has no decoder_start_token_id, without which the model cannot write",
        "wordless": "lacks words or padding",
        "broken": "cannot load",
    }
    for name, words_said in wanted.items():
        with pytest.raises(UserError) as raised:
            load_generator(tmp_path / name, "stages.queries.model")
        assert str(raised.value).startswith("stages.queries.model: ")
        assert words_said in str(raised.value)
        assert "\n" not in str(raised.value)


def bare_t5(folder: Path, pieces: bytes, vocabulary: int) -> Path:
    """Save a T5 as castorini's are: its tokenizer is only the SentencePiece model ``pieces``."""
    shape = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    config = T5Config(vocab_size=vocabulary, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, **shape)
    torch.manual_seed(1)
    T5ForConditionalGeneration(config).save_pretrained(folder)
    (folder / "spiece.model").write_bytes(pieces)
    return folder


def test_a_t5_whose_tokenizer_is_only_a_sentencepiece_model_writes(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    model, sentences = io.BytesIO(), [*TEXTS, "seven quick brown foxes jump over lazy dogs"] * 3
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    trainer = sentencepiece.SentencePieceTrainer
    trainer.train(sentence_iterator=iter(sentences), model_writer=model, vocab_size=40, minloglevel=2, **ids)
    generator = load_generator(bare_t5(tmp_path / "t5", model.getvalue(), 150), "model")
    own = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    assert len(generator.tokenizer) == 40 + 100, "T5 has a hundred more, which stand for gaps"
    for text in TEXTS:
        assert generator.encode([text], 64)["input_ids"].tolist() == [[*own.encode(text), own.eos_id()]]
    assert len(generator.sample(TEXTS, [0, 1, 2, 3], Sampling(2, 5, 0.9, 8, 32, "", 1))) == 4


def test_a_sentencepiece_model_that_cannot_be_read_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, find_spec = bare_t5(tmp_path / "t5", b"no pieces", 150), importlib.util.find_spec
    for here, said in (
        (None, "such as spiece.model: pip install sentencepiece)"),
        ("here", "spiece.model, is broken)"),
    ):
        monkeypatch.setattr(
            "condensery.tokens.tokenizer.find_spec",
            lambda name, here=here: here if name == "sentencepiece" else find_spec(name),
        )
        for load in (lambda: load_generator(folder, "stages.queries.model"), lambda: load_tokenizer(folder)):
            with pytest.raises(UserError) as raised:
                load()
            assert said in str(raised.value)
            assert "tiktoken" not in str(raised.value)
            assert "\n" not in str(raised.value)


def test_the_dropout_is_that_of_the_family(t5: Path, tmp_path: Path) -> None:
    """A T5 has one entry for it, a BART two."""
    tokenizer = load_generator(t5, "model").tokenizer
    sizes: dict[str, Any] = {
        f"{side}_{name}": 1 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")
    }
    config = BartConfig(
        vocab_size=len(tokenizer),
        d_model=16,
        **sizes,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.eos_token_id,
    )
    save_generator(Generator(BartForConditionalGeneration(config), tokenizer), tmp_path)
    bart = load_generator(tmp_path, "model", dropout=0.25).model
    assert (bart.config.dropout, bart.config.attention_dropout) == (0.25, 0.25)
    assert (bart.model.decoder.layers[0].dropout, bart.model.encoder.layers[0].self_attn.dropout) == (0.25, 0.25)
    assert load_generator(t5, "model", dropout=0.25).model.config.dropout_rate == 0.25
    assert load_generator(t5, "model").model.config.dropout_rate == 0.0
