"""Where the backbone comes from: from scratch in both families, or a folder with its tokenizer; titles on and off."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from error_lines import names
from slow import slow_except
from small_runs import Text, run_command, some_text, write_beir

from condensery.system.files import read_json

TEXT = some_text(documents=20, seed=3)


def texts_of(text: Text) -> list[str]:
    return [words for _, _, words, _ in text.passages]


def bert_folder(folder: Path) -> Path:
    """A small BERT with its WordPiece, as somebody might have saved it."""
    from transformers import BertConfig, BertForMaskedLM

    from condensery.tokens.tokenizer import train_wordpiece

    tokenizer = train_wordpiece(texts_of(TEXT), 400, folder)
    sizes: Any = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **sizes)).save_pretrained(folder)
    return folder


def roberta_folder(folder: Path) -> Path:
    """A small RoBERTa with a byte-level BPE."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import RobertaConfig, RobertaForMaskedLM, RobertaTokenizerFast

    folder.mkdir()
    trained = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator(texts_of(TEXT), vocab_size=400, special_tokens=special, show_progress=False)
    trained.save_model(str(folder))
    tokenizer = RobertaTokenizerFast(vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"))
    tokenizer.save_pretrained(folder)
    sizes: Any = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = RobertaConfig(vocab_size=len(tokenizer), max_position_embeddings=66, type_vocab_size=1, **sizes)
    RobertaForMaskedLM(config).save_pretrained(folder)
    return folder


def modernbert_folder(folder: Path) -> Path:
    """A small ModernBERT with local attention to eight tokens on either side and a WordPiece."""
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    from condensery.tokens.tokenizer import train_wordpiece

    tokenizer = train_wordpiece(texts_of(TEXT), 400, folder)
    sizes: Any = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 48}
    ends = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
    config = ModernBertConfig(vocab_size=len(tokenizer), local_attention=16, **sizes, **ends)
    ModernBertForMaskedLM(config).save_pretrained(folder)
    return folder


FOLDERS = {"bert": bert_folder, "roberta": roberta_folder, "modernbert": modernbert_folder}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The recipe ``short`` on 20 articles; all tests here share what they can."""
    folder = tmp_path_factory.mktemp("backbones")
    root = write_beir(folder / "in", TEXT)
    steps = [f"stage.{kind}.steps=3" for kind in ("pretrain_condenser", "pretrain_cocondenser", "finetune")]
    return ["experiment=short", "data=beir", f"data.root={root}", *steps, f"output_root={folder / 'out'}"]


def architectures(run: Path) -> set[str]:
    names = ("condenser", "cocondenser", "round1")
    return {read_json(run / "stages" / name / "config.json")["model_type"] for name in names}


@pytest.mark.parametrize("family", slow_except(["roberta", "distilbert", "modernbert"], "modernbert"))
def test_other_families_from_scratch_with_a_wordpiece(family: str, small: list[str]) -> None:
    done = run_command(*small, f"backbone.family={family}").sound()
    assert architectures(done.folder) == {family}
    asked = run_command(*small, f"backbone.family={family}", "ask=what is known").sound()
    assert not asked.computed


@pytest.mark.slow
@pytest.mark.parametrize("family", FOLDERS)
def test_a_checkpoint_in_a_folder_with_and_without_titles(family: str, small: list[str], tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    folder = FOLDERS[family](tmp_path / "checkpoint")
    named = [f"backbone.name={folder}", f"backbone.tokenizer={folder}", "stage.finetune.passage_length=64"]
    with_titles = run_command(*small, *named).sound()
    without = run_command(*small, *named, "stage.tokens.titles=false").sound()
    assert architectures(with_titles.folder) == {family}
    tokens = [run.folder / "stages" / "tokens" / "titles" for run in (with_titles, without)]
    assert [path.is_dir() for path in tokens] == [True, False]
    vectors = [run.folder / "stages" / "round1.index" / "passages" / "00000.npy" for run in (with_titles, without)]
    assert vectors[0].read_bytes() != vectors[1].read_bytes(), "the title is read"
    start, tuned = (
        load_file(folder / "model.safetensors"),
        load_file(with_titles.folder / "stages/round1/model.safetensors"),
    )
    (word,) = (name for name in start if name.endswith(("embeddings.word_embeddings.weight", "tok_embeddings.weight")))
    found = tuned.get(word, tuned.get(word.partition(".")[2]))
    assert 0 < abs(found - start[word]).max() < 0.1, "training went on from the checkpoint's weights"


def test_a_length_of_null_needs_a_checkpoint_that_records_its_own(small: list[str], tmp_path: Path) -> None:
    folder = bert_folder(tmp_path / "checkpoint")
    named = [f"backbone.name={folder}", f"backbone.tokenizer={folder}", "stages.round1.init=backbone"]
    done = run_command(*small, *named, "stages.round1.passage_length=null")
    assert done.code == 1
    names(done.err, "stages.round1.passage_length", "does not record it", "give a number")


def test_the_same_checkpoint_elsewhere_is_the_same(small: list[str], tmp_path: Path) -> None:
    import shutil

    folder = bert_folder(tmp_path / "here")
    shutil.copytree(folder, tmp_path / "there")
    named = ["backbone.name={0}", "backbone.tokenizer={0}"]
    run_command(*small, *(one.format(folder) for one in named)).sound()
    assert run_command(*small, *(one.format(tmp_path / "there") for one in named)).sound().computed == []


@pytest.mark.slow
def test_a_new_head_on_a_checkpoint_is_drawn_from_the_seed(small: list[str], tmp_path: Path) -> None:
    folder = bert_folder(tmp_path / "checkpoint")
    named = [f"backbone.name={folder}", f"backbone.tokenizer={folder}"]
    first = run_command(*small, *named).sound()
    head = first.folder / "stages" / "condenser" / "condenser_head.safetensors"
    before = head.read_bytes()
    assert run_command(*small, *named, "force=[condenser]").sound().computed == ["condenser"]
    assert head.read_bytes() == before


def test_a_checkpoint_with_too_few_positions_is_refused_before_training(small: list[str], tmp_path: Path) -> None:
    for make in (bert_folder, roberta_folder):
        folder = make(tmp_path / make.__name__)
        named = [f"backbone.name={folder}", f"backbone.tokenizer={folder}"]
        done = run_command(*small, *named, "stages.condenser.length=65", "stages.condenser.min_length=8")
        names(done.err, "stages.condenser.length", "65 is too large", "64 positions")


def test_a_checkpoint_without_a_head_is_told_in_the_artifact_and_below_the_table(
    small: list[str], tmp_path: Path
) -> None:
    """A Condenser of our own has a head; the same checkpoint without it is what the hub has of the papers' Condenser."""
    start = bert_folder(tmp_path / "checkpoint")
    named = [f"backbone.tokenizer={start}", "stage.finetune.passage_length=64", "stages.cocondenser.init=backbone"]
    first = run_command(*small, *named, f"backbone.name={start}").sound()
    words = f"{start} has no Condenser head"
    warnings = {
        name: read_json(first.folder / "stages" / name / "manifest.json")["metrics"].get("warnings", [])
        for name in ("condenser", "cocondenser")
    }
    assert not warnings["condenser"], "BERT has none, and this stage gives it one"
    assert [line.partition(", so")[0] for line in warnings["cocondenser"]] == [f"stages.cocondenser: {words}"]
    assert "set head_steps to train only it first" in warnings["cocondenser"][0]
    assert words in (first.folder / "table.md").read_text(encoding="utf-8")
    own = first.folder / "stages" / "condenser"
    second = run_command(*small, *named, f"stages.cocondenser.backbone.name={own}", f"backbone.name={start}").sound()
    assert "has no Condenser head" not in second.out
    assert "has no Condenser head" not in (second.folder / "table.md").read_text(encoding="utf-8")
    headless = tmp_path / "condenser"
    headless.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(own / name, headless)
    steps = ["stages.condenser.head_steps=2", f"stages.condenser.backbone.name={headless}"]
    third = run_command(*small, *named, *steps, f"backbone.name={start}").sound()
    (line,) = read_json(third.folder / "stages/condenser/manifest.json")["metrics"]["warnings"]
    assert line.startswith(f"stages.condenser: {headless} has no Condenser head")
    assert line.endswith("the first 2 steps train only this head")
    assert "[condenser] the first 2 steps train only the new head" in third.out
    assert third.out.count("[condenser] warning: ") == 1, "it is said before the first step, and not again at the end"
