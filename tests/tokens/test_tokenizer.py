"""Tokenizers are trained reproducibly, load from where they are, and are refused in one clear line."""

import json
import os
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import ByteLevelBPETokenizer, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerFast

from condensery.errors import UserError
from condensery.system.files import write_json
from condensery.tokens.coverage import coverage
from condensery.tokens.light_tokenizer import load_quick_tokenizer
from condensery.tokens.tokenizer import SPECIAL, _alphabet, load_tokenizer, normaliser, save_tokenizer, train_wordpiece
from condensery.tokens.vocabulary import Vocabulary, with_special


def test_a_trained_wordpiece_has_berts_special_tokens_and_loads_by_folder(wordpiece: Path) -> None:
    tokenizer = load_tokenizer(wordpiece)
    assert len(tokenizer) == 150
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL.values())) == [0, 1, 2, 3, 4]
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("The river, unaffable")["input_ids"])
    assert tokens[0] == "[CLS]"
    assert tokens[-1] == "[SEP]"
    assert tokenizer.unk_token_id not in tokenizer("the Zürich café")["input_ids"]


def test_lower_case_is_a_choice(tmp_path: Path) -> None:
    texts = ["Alpha beta Alpha beta"] * 3
    assert train_wordpiece(texts, 60, tmp_path / "a").tokenize("Alpha") == ["alpha"]
    assert train_wordpiece(texts, 60, tmp_path / "b", lowercase=False).tokenize("Alpha") == ["Alpha"]
    assert load_tokenizer(tmp_path / "b").tokenize("Alpha") == ["Alpha"]


@pytest.mark.slow
def test_the_same_text_gives_the_same_tokenizer_in_another_process(tmp_path: Path) -> None:
    code = (
        "import sys, random; from pathlib import Path; from condensery.tokens.tokenizer import train_wordpiece\n"
        "draw = random.Random(0)\n"  # many characters and many ties
        "texts = [''.join(chr(draw.randrange(0x3b1, 0x3c9)) if draw.random() < .8 else ' ' for _ in range(300))"
        " for _ in range(30)]\n"
        "train_wordpiece(texts, 300, Path(folder))"
    )
    other = f"folder = {str(tmp_path / 'b')!r}\n{code}"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}  # pytest's own seed is another
    subprocess.run([sys.executable, "-c", other], check=True, env=environment)
    exec(code, {"folder": str(tmp_path / "a")})
    assert (tmp_path / "a/tokenizer.json").read_bytes() == (tmp_path / "b/tokenizer.json").read_bytes()


@pytest.mark.parametrize("lowercase", [False, True])
def test_the_alphabet_is_that_of_the_normalised_text(lowercase: bool) -> None:
    normalise = BertTokenizer(do_lower_case=lowercase).backend_tokenizer.normalizer.normalize_str
    texts = ["Élan, e\u0301lan, ΣΑΣ σας", "東京 が か\u3099", "", "İSTANBUL 한국 ﬁn \ufffd\t\u200d\n😀 x" * 3]
    counts = Counter(character for character in normalise(" ".join(texts)) if not character.isspace())
    wanted = sorted(counts, key=lambda character: (-counts[character], character))
    assert _alphabet(iter([texts[:2], texts[2:]]), normalise, 4 * len(counts)) == wanted


SCRIPTS = {
    "Hindi": "मेल मल कुल कल ज़रूर",
    "Tamil": "கொடி கடி பூ பு",
    "Bengali": "কুল কল তুমি তম",
    "Thai": "ชื่อ ชอ ที่ ที",
    "Arabic": "عِلْم عَلَم مُدَرِّس",
    "Hebrew": "שָׁלוֹם סֵפֶר סַפָּר",
    "Korean": "한국 항구 값이",
    "Japanese": "かき がき ハハ パパ",
    "Russian": "мой мои ёлка елка",
    "Greek": "νόμος νομός πότε ποτέ",
    "Burmese": "မြန်မာ မန်မ",
}


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("lowercase", [True, False])
def test_marks_of_other_scripts_are_kept_and_forms_of_a_word_are_one(
    script: str, lowercase: bool, tmp_path: Path
) -> None:
    words = SCRIPTS[script].split()
    train_wordpiece([SCRIPTS[script]] * 3, 150, tmp_path, lowercase)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    ids = {word: tokenizer(word)["input_ids"] for word in words}
    assert len({tuple(row) for row in ids.values()}) == len(words)
    assert not any(tokenizer.unk_token_id in row for row in ids.values())
    quick = load_quick_tokenizer(tmp_path)
    for word, row in ids.items():
        for form in ("NFC", "NFD"):
            assert tokenizer(unicodedata.normalize(form, word))["input_ids"] == row
            assert quick(unicodedata.normalize(form, word), 99) == row


ENGLISH = [
    "Café, naïve and El Niño: a façade in Zürich. ❤\ufe0f 1\ufe0f\u20e3 a \u2260 b, İstanbul \u212b K\u0338",
    "\u0301begins with a mark; soft\u00adhyphen, e\u0301lan, ﬁne ǅ Ωmega 東京 σ-algebra",
]


def test_latin_text_reads_as_in_berts_uncased_models(tmp_path: Path) -> None:
    ours = train_wordpiece(ENGLISH * 3, 300, tmp_path)
    berts = BertTokenizer(vocab=ours.get_vocab())
    for text in ENGLISH:
        assert ours(text)["input_ids"] == berts(text)["input_ids"]
    for text in (*ENGLISH, *SCRIPTS.values()):
        decomposed = normaliser(strip_accents=True).normalize_str(text)
        assert decomposed == berts.backend_tokenizer.normalizer.normalize_str(text)


def test_accents_are_a_choice_of_their_own(tmp_path: Path) -> None:
    texts = ["Élan cafe café"] * 3
    kept = train_wordpiece(texts, 60, tmp_path / "kept", strip_accents=False)
    assert kept.tokenize("Café") != kept.tokenize("cafe") == ["cafe"]
    assert kept.tokenize("cafe\u0301") == kept.tokenize("caf\u00e9")
    cased = train_wordpiece(texts, 60, tmp_path / "cased", lowercase=False, strip_accents=True)
    assert cased.tokenize("café") == ["cafe"]
    assert cased.tokenize("Élan") == ["Elan"]
    opened = AutoTokenizer.from_pretrained(tmp_path / "kept")
    assert opened("Café élan")["input_ids"] == kept("Café élan")["input_ids"]


@pytest.mark.parametrize("word", ["ประเทศไทยเป็นประเทศที่ตั้งอยู่", "မြန်မာနိုင်ငံသည်", "ひらがなでかかれたぶん", "ភាសាខ្មែរ"])
def test_text_without_blanks_is_no_unknown_word(word: str, tmp_path: Path) -> None:
    text = word * 12 + "iPhone15" + word * 12
    tokenizer = train_wordpiece([text] * 2, 200, tmp_path)
    ids = AutoTokenizer.from_pretrained(tmp_path)(text)["input_ids"]
    assert tokenizer.unk_token_id not in ids
    assert tokenizer("x" * 101)["input_ids"][1:-1] == [tokenizer.unk_token_id]  # as BERT: no word is as long


def test_the_ideographs_of_a_text_are_in_the_vocabulary_as_far_as_it_holds_them(tmp_path: Path) -> None:
    ideographs = [chr(0x4E00 + number) for number in range(900)]
    text = "".join(ideographs)
    assert coverage(train_wordpiece([text], 2_000, tmp_path), [text]).unknown < 0.002
    small = train_wordpiece([text], 400, tmp_path, warn=False)
    assert len(small) <= 400
    with pytest.warns(UserWarning, match=r"unknown to the tokenizer \(\[UNK\]\); raise stage.tokenizer.vocab_size"):
        train_wordpiece([text], 400, tmp_path)


def test_a_vocabulary_too_small_for_the_alphabet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"vocab_size=20 is too small for this text; give at least 57"):
        train_wordpiece(["the quick brown fox jumps over the lazy dog"], 20, tmp_path)
    assert len(train_wordpiece(["the quick brown fox jumps over the lazy dog"], 57, tmp_path)) == 57


@pytest.mark.parametrize("texts", [[], ["", "  "]])
def test_no_text_is_refused(texts: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no text to train the tokenizer on"):
        train_wordpiece(texts, 100, tmp_path)


@pytest.mark.parametrize("name", ["/nowhere/tokenizer", "./nowhere", "../a/b", "a/b/c", "~/nowhere-at-all", ""])
def test_a_missing_folder_is_named(name: str) -> None:
    with pytest.raises(UserError, match="no such folder; give a tokenizer's folder"):
        load_tokenizer(name)


def test_a_name_that_the_hub_does_not_give_is_named_with_a_way_out() -> None:
    with pytest.raises(UserError, match=r"'nobody/none': no such folder, and not available .* download it") as caught:
        load_tokenizer("nobody/none")
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no tokenizer in this folder can be read") as caught:
        load_tokenizer(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "there is no tokenizer.json" in str(caught.value)
    assert "SentencePiece" not in str(caught.value)


@pytest.mark.parametrize("missing", ["pad", "cls", "sep", "mask"])
def test_a_tokenizer_without_a_special_token_is_refused(missing: str, bytelevel: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(bytelevel)
    setattr(tokenizer, f"{missing}_token", None)
    tokenizer.save_pretrained(str(tmp_path))
    with pytest.raises(UserError, match=f"has no {missing} token"):
        load_tokenizer(tmp_path)


def test_ids_far_beyond_the_number_of_tokens_are_refused_before_memory_is_taken_for_them(
    bytelevel: Path, tmp_path: Path
) -> None:
    load_tokenizer(bytelevel).save_pretrained(str(tmp_path))
    whole = json.loads((tmp_path / "tokenizer.json").read_text())
    word = next(word for word, number in whole["model"]["vocab"].items() if number > 300)
    whole["model"]["vocab"][word] = 2**31
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole))
    with pytest.raises(UserError, match=r"tokens, but .* has the id 2147483648; its tokenizer.json is damaged"):
        load_tokenizer(tmp_path)


def test_a_longest_input_that_is_no_number_is_said_when_it_is_loaded(bytelevel: Path, tmp_path: Path) -> None:
    load_tokenizer(bytelevel).save_pretrained(str(tmp_path))
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "model_max_length": "long"}))
    with pytest.raises(UserError, match="is 'long'; give a number"):
        load_tokenizer(tmp_path)


def test_an_unknown_token_that_is_none_of_its_tokens_is_said(bytelevel: Path, tmp_path: Path) -> None:
    load_tokenizer(bytelevel).save_pretrained(str(tmp_path))
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "unk_token": ""}))
    with pytest.raises(UserError, match=r"unk_token in tokenizer_config\.json is '', which is not in its vocabulary"):
        load_tokenizer(tmp_path)


def test_a_folder_with_berts_vocabulary_file_alone_is_a_tokenizer(tmp_path: Path) -> None:
    lines = [*SPECIAL.values(), "river", "##s", "un"]
    (tmp_path / "vocab.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert load_tokenizer(tmp_path).tokenize("Rivers") == ["river", "##s"]
    (tmp_path / "vocab.txt").write_text("\n".join([*lines, "River"]) + "\n", encoding="utf-8")
    assert load_tokenizer(tmp_path).tokenize("Rivers") == ["River", "##s"]
    odd = [
        *SPECIAL.values(),
        "\u2028",
        "\x85",
        "\x1c",
        "\u3000",
        "水",
    ]  # the line of a token is its id, whatever the token
    (tmp_path / "vocab.txt").write_bytes("\r\n".join([*odd, ""]).encode())
    assert load_tokenizer(tmp_path)("水", add_special_tokens=False)["input_ids"] == [odd.index("水")]


def test_a_tokenizer_has_the_parts_of_its_file_whatever_class_its_config_names(tmp_path: Path) -> None:
    """transformers 5 builds tokenizers of a class from the vocabulary alone, released ones wrongly (mteb #5377)."""
    pieces = {"unk": "<unk>", "pad": "<pad>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
    unigram = Tokenizer(models.Unigram([(piece, -1.0) for piece in [*pieces.values(), "▁ri", "ver", "▁12"]], unk_id=0))
    unigram.normalizer = normalizers.NFKC()
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    words = [*SPECIAL.values(), "ü", "1", "2", "12"]
    digits = Tokenizer(models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    digits.normalizer = normalizers.NFKC()
    digits.pre_tokenizer = pre_tokenizers.Digits(individual_digits=True)
    for backend, special, text, wanted, named in [
        (unigram, pieces, "river １２", ["▁ri", "ver", "▁12"], {}),  # paraphrase-multilingual-MiniLM-L12-v2: no class
        (unigram, pieces, "river １２", ["▁ri", "ver", "▁12"], {"tokenizer_class": "RobertaTokenizer"}),
        (unigram, pieces, "river １２", ["▁ri", "ver", "▁12"], {"tokenizer_class": "XLMRobertaTokenizerFast"}),
        (digits, SPECIAL, "１２", ["1", "2"], {"tokenizer_class": "BertTokenizerFast"}),
    ]:
        write_json(tmp_path / "config.json", {"model_type": "bert"})
        write_json(tmp_path / "tokenizer_config.json", {f"{name}_token": one for name, one in special.items()} | named)
        backend.save(str(tmp_path / "tokenizer.json"))
        load_tokenizer(tmp_path).save_pretrained(str(tmp_path / "saved"))
        for folder in (tmp_path, tmp_path / "saved"):
            assert load_tokenizer(folder).tokenize(text) == wanted
        assert AutoTokenizer.from_pretrained(tmp_path / "saved").tokenize(text) == wanted


@pytest.mark.parametrize("kind", ["BertTokenizer", "DPRQuestionEncoderTokenizer", "DPRContextEncoderTokenizerFast"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_the_config_decides_on_lower_case(kind: str, lowercase: bool, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL.values(), "uganda", "Uganda", ""]))
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": kind, "do_lower_case": lowercase})
    for folder in (tmp_path, tmp_path / "saved"):
        assert load_tokenizer(folder).tokenize("Uganda") == ["uganda" if lowercase else "Uganda"]
        load_tokenizer(folder).save_pretrained(str(tmp_path / "saved"))


def test_wordpiece_words_go_on_with_hashes(vocabulary: Vocabulary, wordpiece: Path) -> None:
    tokens = load_tokenizer(wordpiece).convert_ids_to_tokens(list(range(vocabulary.size)))
    ideographs = [any("一" <= character <= "鿿" for character in token) for token in tokens]
    assert vocabulary.continues.tolist() == [
        token.startswith("##") and not ideograph for token, ideograph in zip(tokens, ideographs, strict=True)
    ]
    assert vocabulary.special.tolist() == [0, 1, 2, 3, 4]
    assert not set(vocabulary.ordinary) & set(vocabulary.special)


def test_byte_level_words_begin_with_a_blank(bytelevel: Path) -> None:
    tokenizer = load_tokenizer(bytelevel)
    vocabulary = Vocabulary.of(tokenizer)
    ids = tokenizer("of Zürich, 東京 of\nthe", add_special_tokens=False)["input_ids"]
    words: list[list[int]] = []
    for number in ids:
        if words and vocabulary.continues[number]:
            words[-1].append(number)
        else:
            words.append([number])
    assert [str(tokenizer.decode(word)).strip() for word in words] == ["of", "Zürich,", "東京", "of", "the"]
    assert not vocabulary.continues[vocabulary.special].any()


def test_each_token_of_a_script_without_blanks_is_a_word_of_a_byte_level_tokenizer() -> None:
    backend = ByteLevelBPETokenizer()
    backend.train_from_iterator(
        ["東京", "abc abc"] * 9, 300, special_tokens=list(SPECIAL.values()), show_progress=False
    )
    names = {f"{name}_token": token for name, token in SPECIAL.items()}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend._tokenizer, **names)
    vocabulary = Vocabulary.of(tokenizer)
    kinds = {tokenizer.decode(number): int(vocabulary.continues[number]) for number in range(vocabulary.size)}
    assert (kinds["東京"], kinds["abc"], kinds[" abc"]) == (2, 1, 0)


def _checkpoint(folder: Path, backend: Tokenizer, family: str, **config: Any) -> Path:
    """A folder with ``tokenizer.json``, the family of a model, and settings of its tokenizer."""
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
@pytest.mark.parametrize("named", ["BertTokenizer", "RobertaTokenizerFast", "XLMRobertaTokenizer", None])
def test_a_tokenizer_is_that_of_its_file_whatever_class_is_named(
    tmp_path: Path, named: str | None, family: str
) -> None:
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "▁ri", "ver", "▁the", "▁", "T"]
    backend = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=3))
    backend.normalizer = normalizers.Replace("River", "river")
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    special = {
        "cls_token": "<s>",
        "pad_token": "<pad>",
        "sep_token": "</s>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
    }
    folder = _checkpoint(tmp_path / "one", backend, family, **special, **({"tokenizer_class": named} if named else {}))
    wanted = backend.encode("the River T").ids
    read = load_tokenizer(folder)
    save_tokenizer(read, tmp_path / "two")
    for tokenizer in (read, load_tokenizer(tmp_path / "two"), AutoTokenizer.from_pretrained(tmp_path / "two")):
        assert tokenizer("the River T", add_special_tokens=False)["input_ids"] == wanted == [7, 5, 6, 8, 9]
        assert tokenizer.convert_tokens_to_ids([*special.values()]) == [0, 1, 2, 3, 4]


def test_a_class_without_a_fast_tokenizer_is_named_as_such(tmp_path: Path) -> None:
    folder = _checkpoint(tmp_path / "one", Tokenizer(models.Unigram([("<unk>", -1.0)], unk_id=0)), "bert")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "CanineTokenizer"}')
    with pytest.raises(UserError, match="has no fast tokenizer"):
        load_tokenizer(folder)


def test_a_class_that_needs_a_python_library_is_refused_without_advice_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "fugashi", None)  # not installed
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n蜂\n")
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab"}'
    )
    with pytest.raises(UserError, match=r"\(its class splits words with a Python library; only fast tokenizers"):
        load_tokenizer(tmp_path)


def test_settings_of_the_class_beside_a_tokenizers_file_are_kept(tmp_path: Path, wordpiece: Path) -> None:
    words = load_tokenizer(wordpiece).get_vocab()
    cased = BertTokenizer(vocab={**words, "The": len(words)}, do_lower_case=False).backend_tokenizer
    for lower, wanted in ((True, words["the"]), (False, len(words))):
        folder = _checkpoint(tmp_path / str(lower), cased, "bert", tokenizer_class="BertTokenizer", do_lower_case=lower)
        assert load_tokenizer(folder)("The", add_special_tokens=False)["input_ids"] == [wanted]


def test_saved_tokenizers_have_the_names_that_release_4_of_transformers_knows(tmp_path: Path, wordpiece: Path) -> None:
    tokenizer = load_tokenizer(wordpiece)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[Q]"]})
    save_tokenizer(tokenizer, tmp_path)
    for folder in (wordpiece, tmp_path):
        about = json.loads((folder / "tokenizer_config.json").read_text())
        assert about["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert about["additional_special_tokens"] == ["[Q]"]
    assert "extra_special_tokens" not in about
    assert load_tokenizer(tmp_path).tokenize("the [Q]") == ["the", "[Q]"]


def test_sentencepiece_words_begin_with_its_bar(tmp_path: Path) -> None:
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "▁ri", "ver", "▁the", "▁蜜", "蜂", "跳舞", "མེ་"]
    backend = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=3))
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    backend.decoder = decoders.Metaspace()
    names = ("cls_token", "pad_token", "sep_token", "unk_token", "mask_token")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **dict(zip(names, pieces, strict=False)))
    assert Vocabulary.of(tokenizer).continues.tolist() == [0] * 6 + [1, 0, 0, 2, 2, 2], (
        "each token of Chinese is a word"
    )


def test_words_begin_with_the_bar_that_a_normaliser_puts_for_a_space(tmp_path: Path) -> None:
    """The tokenizers of Gemma and Llama, which mmBERT and others use, have no pre-tokenizer that does this."""
    pieces = ["<bos>", "<pad>", "<eos>", "<unk>", "<mask>", "▁the", "▁ri", "ver", "川"]
    backend = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, [], unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    names = ("cls_token", "pad_token", "sep_token", "unk_token", "mask_token")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **dict(zip(names, pieces, strict=False)))
    assert Vocabulary.of(tokenizer).continues.tolist() == [0] * 7 + [1, 2]


@pytest.mark.parametrize("named", [("<cls>", "<sep>"), ("<s>", "</s>")])
def test_a_text_is_read_between_the_tokens_that_the_tokenizer_itself_puts(
    named: tuple[str, str], tmp_path: Path
) -> None:
    """A tokenizer of Llama's class puts <s> and </s>, whatever its files name."""
    special = dict(zip(("pad", "unk", "mask", "cls", "sep"), ("<pad>", "<unk>", "<mask>", *named), strict=True))
    backend = _whole_words("<pad>", "<unk>", "<mask>", "<cls>", "<sep>", "<s>", "</s>", "蜂", "花")
    backend.post_processor = processors.TemplateProcessing("<s> $A </s>", None, [("<s>", 5), ("</s>", 6)])
    backend.save(str(tmp_path / "tokenizer.json"))
    write_json(tmp_path / "tokenizer_config.json", {f"{key}_token": one for key, one in special.items()})
    tokenizer = load_tokenizer(tmp_path)
    save_tokenizer(tokenizer, tmp_path / "saved")
    read = with_special(tokenizer("蜂 花", add_special_tokens=False)["input_ids"], Vocabulary.of(tokenizer), 9).tolist()
    assert read == AutoTokenizer.from_pretrained(tmp_path)("蜂 花")["input_ids"] == [5, 7, 8, 6]
    assert read == AutoTokenizer.from_pretrained(tmp_path / "saved")("蜂 花")["input_ids"]
    assert read == load_quick_tokenizer(tmp_path / "saved")("蜂 花", 9)


@pytest.mark.parametrize("direction", ["left", "right"])
def test_a_tokenizer_whose_file_orders_padding_and_truncation_is_read(
    direction: str, wordpiece: Path, tmp_path: Path
) -> None:
    """As in sentence-transformers/all-MiniLM-L6-v2."""
    load_tokenizer(wordpiece).save_pretrained(str(tmp_path))
    backend = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    backend.enable_padding(direction=direction, length=16)
    backend.enable_truncation(16)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert (load_tokenizer(tmp_path).cls_token, load_tokenizer(tmp_path).sep_token) == ("[CLS]", "[SEP]")


def test_a_tokenizer_that_puts_no_tokens_is_saved_as_one_that_does(tmp_path: Path) -> None:
    backend = _whole_words(*SPECIAL.values(), "bee", "hive")
    names = {f"{name}_token": token for name, token in SPECIAL.items()}
    PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(str(tmp_path))
    save_tokenizer(load_tokenizer(tmp_path), tmp_path / "saved")
    saved = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert saved("bee hive")["input_ids"] == [2, 5, 6, 3]
    assert saved("bee", "hive")["input_ids"] == [2, 5, 3, 6, 3]


@pytest.mark.parametrize(
    ("template", "said"), [("[CLS] $A", "[CLS] before a text and nothing"), ("$A [SEP]", "nothing before")]
)
def test_a_tokenizer_that_puts_a_token_on_one_side_is_refused(template: str, said: str, tmp_path: Path) -> None:
    backend = _whole_words(*SPECIAL.values(), "bee")
    backend.post_processor = processors.TemplateProcessing(template, None, [("[CLS]", 2), ("[SEP]", 3)])
    names = {f"{name}_token": token for name, token in SPECIAL.items()}
    PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(str(tmp_path))
    with pytest.raises(UserError, match=f"(?s)tokenizer .*: puts {re.escape(said)}.*one token before and one after"):
        load_tokenizer(tmp_path)


def _whole_words(*words: str) -> Tokenizer:
    """A tokenizer whose tokens are these words, without special tokens at the ends of a text."""
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[1]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend


def test_artifacts_from_before_a_rule_for_a_script_changed_still_agree(vocabulary: Vocabulary) -> None:
    flags = np.random.default_rng(1).integers(0, 2, 1000, dtype=np.uint8)
    now = replace(vocabulary, size=1000, continues=flags)
    for number, agrees in ((3, True), (40, False)):
        before = flags.astype(bool)
        before[-number:] ^= True  # as of an older version, which saved them as bool
        assert now.agrees_with(replace(now, continues=before)) == agrees


def test_a_vocabulary_survives_saving(vocabulary: Vocabulary, tmp_path: Path) -> None:
    vocabulary.save(tmp_path)
    loaded = Vocabulary.load(tmp_path)
    for name in ("size", "pad", "cls", "sep", "mask", "unk"):
        assert getattr(loaded, name) == getattr(vocabulary, name)
    assert np.array_equal(loaded.special, vocabulary.special)
    assert np.array_equal(loaded.continues, vocabulary.continues)
    np.save(tmp_path / "vocabulary.npy", vocabulary.continues[:-1])
    with pytest.raises(UserError, match=r"vocabulary\.npy has 149 entries"):
        Vocabulary.load(tmp_path)
    (tmp_path / "vocabulary.json").write_text('{"size": 3}')
    with pytest.raises(UserError, match="not a vocabulary"):
        Vocabulary.load(tmp_path)
