"""A tokenizer that does not know the words of a collection is refused or said; one that does is not spoken of."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_lines import names
from single_stage import inputs, run_stage
from small_runs import Text
from transformers import BertConfig, BertForMaskedLM

from condensery.errors import UserError
from condensery.system.files import write_json
from condensery.tokens import store as token_store
from condensery.tokens.store import TokenStore, tokenise
from condensery.tokens.tokenizer import load_tokenizer, train_wordpiece

FOREIGN = Text(
    [(f"p{number}", "река", "Большая река течёт далеко; known stone.", f"d{number}") for number in range(8)],
    [(f"q{number}", "где течёт река", f"p{number}") for number in range(6)],
)


def test_a_checkpoint_without_its_tokenizers_files_is_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertForMaskedLM(BertConfig(vocab_size=60, **sizes)).save_pretrained(tmp_path)
    with pytest.raises(
        UserError, match=r"knows 5 special tokens and not one word, so its files \(tokenizer\.json"
    ) as one:
        load_tokenizer(tmp_path)
    assert str(tmp_path) in str(one.value)
    assert "\n" not in str(one.value)


def test_more_than_five_percent_of_unknown_tokens_are_a_warning_of_the_artifact(tmp_path: Path) -> None:
    made = inputs(tmp_path / "in", FOREIGN)
    train_wordpiece(["known stones and rivers of the sea"] * 3, 100, tmp_path / "english")
    made["tokenizer"] = tmp_path / "english"
    tokens = run_stage("tokens", tmp_path / "tokens", made, titles=True, workers=1)["warnings"]
    assert [line.split(" are unknown")[0].split("tokens of ")[1] for line in tokens] == [
        "passages",
        "queries",
        "titles",
    ]
    assert all("% of the " in line and "backbone.tokenizer" in line for line in tokens)
    passages = run_stage("passages", tmp_path / "passages", made, length=48, workers=1)
    assert [line.split(" are unknown")[0].split("tokens of ")[1] for line in passages["warnings"]] == [
        "texts",
        "titles",
    ]


def test_what_the_stage_tokenizer_has_said_is_not_repeated(tmp_path: Path) -> None:
    made = inputs(tmp_path / "in", FOREIGN)
    train_wordpiece(["known stones and rivers of the sea"] * 3, 100, tmp_path / "english")
    how: dict[str, Any] = {"name": str(tmp_path / "english"), "vocab_size": 100}
    made["tokenizer"] = tmp_path / "tokenizer"
    found = run_stage("tokenizer", made["tokenizer"], {"corpus": made["corpus"]}, **how)
    assert ["[UNK]" in line and "backbone.tokenizer" in line for line in found["warnings"]] == [True]
    for said, share in ((True, found["unknown_share"]), (False, 0.02)):
        write_json(made["tokenizer"] / "manifest.json", {"config": how, "metrics": {"unknown_share": share}})
        tokens = run_stage("tokens", tmp_path / f"tokens{said}", made, titles=True, workers=1)
        passages = run_stage("passages", tmp_path / f"passages{said}", made, length=48, workers=1)
        assert ["warnings" in one for one in (tokens, passages)] == [not said] * 2


def test_the_unknown_words_are_named_and_no_key_where_the_tokenizer_was_trained_here(tmp_path: Path) -> None:
    passages = [(f"p{number}", "", "known stones and rivers of the sea", f"d{number}") for number in range(8)]
    made = inputs(tmp_path / "in", Text(passages, [(f"q{number}", "known sea?", f"p{number}") for number in range(6)]))
    how: dict[str, Any] = {"titles": False, "workers": 1}
    (line,) = run_stage("tokens", tmp_path / "tokens", made, **how)["warnings"]
    names(line, "backbone.tokenizer", "tokens of queries", "([UNK]), most often '?'; choose a tokenizer for")
    write_json(made["tokenizer"] / "manifest.json", {"config": {"name": None}})
    (line,) = run_stage("tokens", tmp_path / "again", made, **how)["warnings"]
    assert "most often '?'; it was trained on the passages of this collection" in line
    assert "backbone" not in line


def test_a_tokenizer_that_knows_the_words_is_not_spoken_of(tmp_path: Path) -> None:
    made = inputs(tmp_path / "in")
    assert "warnings" not in run_stage("tokens", tmp_path / "tokens", made, titles=True, workers=1)
    assert "warnings" not in run_stage("passages", tmp_path / "passages", made, length=48, workers=1)


def test_the_share_of_a_token_is_that_of_all_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_wordpiece(["river stone sea"] * 3, 100, tmp_path / "words")
    made = tokenise(["river 海 stone", "海", "", "sea river"], tmp_path / "words", tmp_path / "store", sentences=False)
    unknown = load_tokenizer(tmp_path / "words").unk_token_id
    wanted = float(np.mean(np.asarray(made.tokens) == unknown))
    assert wanted > 0
    for block in (1, 3, 1 << 22):
        monkeypatch.setattr(token_store, "_BLOCK", block)
        assert TokenStore(made.folder).share_of(unknown) == wanted
    empty = tokenise([""], tmp_path / "words", tmp_path / "empty", sentences=False)
    assert empty.share_of(unknown) == 0


HINDI = Text(
    [(f"p{number}", "मेल", "मेल और मल, कुल और कल, सेब और सब।", f"d{number}") for number in range(4)],
    [("q0", "सेब", "p0")],
)


def test_the_stage_tokenizer_measures_what_is_lost_and_names_the_key(tmp_path: Path) -> None:
    made = {"corpus": inputs(tmp_path / "in", HINDI)["corpus"]}
    how: dict[str, Any] = {"name": None, "vocab_size": 100}
    found = run_stage("tokenizer", tmp_path / "ours", made, **how)
    assert (found["unknown_share"], found["merged_share"]) == (0, 0)
    assert "warnings" not in found
    found = run_stage("tokenizer", tmp_path / "stripped", made, **how, strip_accents=True)
    assert found["merged_share"] == round(6 / 7, 6)
    assert [line.partition("; ")[2] for line in found["warnings"]] == [
        "set stage.tokenizer.strip_accents=false to keep accents and other marks"
    ]
    found = run_stage("tokenizer", tmp_path / "named", made, **{**how, "name": str(tmp_path / "stripped")})
    assert found["merged_share"] == round(6 / 7, 6)
    assert "backbone.tokenizer" in found["warnings"][0]
    files = [(tmp_path / which / "tokenizer.json").read_bytes() for which in ("stripped", "named")]
    assert files[0] == files[1]
    train_wordpiece(["known stones and rivers of the sea"] * 3, 100, tmp_path / "english")
    found = run_stage("tokenizer", tmp_path / "foreign", made, **{**how, "name": str(tmp_path / "english")})
    assert found["unknown_share"] > 0.5
    assert ["[UNK]" in line and "backbone.tokenizer" in line for line in found["warnings"]] == [True]


@pytest.mark.parametrize("titles", [True, False])
def test_titles_that_encoders_do_not_read_are_reported(
    titles: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_stage("tokens", tmp_path / "tokens", inputs(tmp_path), titles=titles, workers=1)
    said = "[tokens] encoders do not read the passages' titles (stage.tokens.titles=false)"
    assert (said in capsys.readouterr().out) == (not titles)
