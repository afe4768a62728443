"""Recipes that measure what others released: rows as the checkpoints' own code would have them, on all splits of a table."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from released import ANCE, released
from sentence_transformers import SentenceTransformer, SparseEncoder
from small_runs import Done, Text, metrics_of, run_command, some_text, splits_of, write, write_beir, write_marco
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
)

from condensery.tokens.tokenizer import train_wordpiece

SHORT = some_text(documents=24, seed=5)
TEXT = Text([(name, title, f"{text} {text}", of) for name, title, text, of in SHORT.passages], SHORT.questions)
CHECKPOINTS = {  # row -> (stage, longest query, longest passage, titles)
    "ANCE": ("ance", 64, 512, False),
    "TAS-B": ("tas_b", 30, 200, False),
    "coCondenser": ("cocondenser", 32, 128, True),
    "RetroMAE": ("retromae", 32, 140, True),
    "CoT-MAE": ("cotmae", 32, 128, True),
    "SPLADE++": ("splade", 256, 256, False),
}
ONLY_MARCO = ("ANCE", "SPLADE++")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words")
    train_wordpiece([words for _, _, words, _ in TEXT.passages], 400, folder)
    return folder


@pytest.fixture(scope="module")
def folders(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small checkpoint of each shape: ANCE a RoBERTa with layers after it, TAS-B a DistilBERT, the others BERTs.

    SPLADE is a masked language model alone.
    """
    made, words = tmp_path_factory.mktemp("checkpoints"), AutoTokenizer.from_pretrained(tokenizer)
    for seed, (stage, *_) in enumerate(CHECKPOINTS.values()):
        if stage == "ance":
            made_by_the_library = {"pooling": "cls", "prompts": {}, "behind": ANCE, "family": "roberta"}
            released(made, tokenizer, **made_by_the_library, length=512, positions=540).rename(made / stage)
            continue
        torch.manual_seed(seed)
        given: dict[str, Any] = {"vocab_size": len(words), "max_position_embeddings": 512, "initializer_range": 0.3}
        shape: Any = BertForMaskedLM if stage == "splade" else BertModel
        model: Any = (
            DistilBertModel(DistilBertConfig(dim=16, n_layers=2, n_heads=2, hidden_dim=32, **given))
            if stage == "tas_b"
            else shape(
                BertConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, **given)
            )
        )
        model.save_pretrained(made / stage)
        words.save_pretrained(made / stage)
    return {row: made / stage for row, (stage, *_) in CHECKPOINTS.items()}


@pytest.fixture(scope="module")
def recipe(tokenizer: Path, folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    marco = write_marco(tmp_path_factory.mktemp("marco"), TEXT, trec=True)
    titles = (f"{name}\t{title if int(name) % 5 else '-'}" for name, title, *_ in TEXT.passages)
    write(marco / "para.title.txt", titles)
    return [
        "experiment=released_msmarco",
        *(f"stages.{CHECKPOINTS[row][0]}.folder={folder}" for row, folder in folders.items()),
        *(
            f"data.root={marco}",
            f"backbone.tokenizer={tokenizer}",
            "trainer=cpu",
            "trainer.precision=fp32",
            "logger=csv",
        ),
        f"output_root={tmp_path_factory.mktemp('out')}",
    ]


@pytest.fixture(scope="module")
def done(recipe: list[str]) -> Done:
    return run_command("-m", *recipe, "table.split=test,dl19,dl20", "table=msmarco").sound()


@pytest.fixture(scope="module")
def on_dev(recipe: list[str], done: Done) -> Done:
    """The recipe on the split test alone, whose artifacts are there."""
    return run_command(*recipe).sound()


def run_of(done: Done, stage: str) -> dict[str, list[tuple[str, float]]]:
    """The ranking of each query, as (passage, score)."""
    found: dict[str, list[tuple[str, float]]] = {}
    with gzip.open(done.folder / "stages" / f"{stage}.evaluation" / "run.trec.gz", "rt") as stream:
        for line in stream:
            query, _, passage, _, score, _ = line.split()
            found.setdefault(query, []).append((passage, float(score)))
    return found


@pytest.mark.parametrize("row", CHECKPOINTS)
def test_a_row_ranks_by_the_inner_products_of_the_states_of_cls(
    row: str, on_dev: Done, folders: dict[str, Path]
) -> None:
    stage, query_length, passage_length, titles = CHECKPOINTS[row]
    tokenizer, model = AutoTokenizer.from_pretrained(folders[row]), AutoModel.from_pretrained(folders[row]).eval()

    theirs = {"ance": SentenceTransformer, "splade": SparseEncoder}.get(stage)
    layers: Any = theirs(str(folders[row]), device="cpu") if theirs else None

    def vector(text: str, length: int) -> np.ndarray:
        if layers is not None:
            layers.max_seq_length = length
            return np.asarray(torch.as_tensor(layers.encode([text])).to_dense()[0])
        read = tokenizer(text, truncation=True, max_length=length, return_tensors="pt", return_token_type_ids=False)
        with torch.inference_mode():
            return model(**read).last_hidden_state[0, 0].numpy()

    passages = {
        name: vector(f"{title} [SEP] {text}" if titles and int(name) % 5 else text, passage_length)
        for name, title, text, _ in TEXT.passages
    }
    lengths = [len(tokenizer(text)["input_ids"]) for _, _, text, _ in TEXT.passages]
    assert max(lengths) > 200, "some passages are cut"
    found = run_of(on_dev, stage if titles else f"{stage}_index")
    for query, text, _ in splits_of(TEXT)["test"]:
        asked = vector(text, query_length)
        wanted = np.array([asked @ passages[name] for name, _ in found[query]])
        rtol = (
            2e-6 if stage == "splade" else 1e-7
        )  # its scores are hundreds here, so atol would be below fp32's rounding
        np.testing.assert_allclose([score for _, score in found[query]], wanted, atol=2e-4, rtol=rtol)
        assert found[query][0][1] == pytest.approx(max(asked @ one for one in passages.values()), abs=2e-4, rel=rtol)


def test_all_splits_stand_beside_the_papers_numbers(done: Done) -> None:
    table = next(done.folder.glob("table.md")).read_text()
    columns = [cell.strip() for cell in table.splitlines()[2].split("|")]
    for row in CHECKPOINTS:
        lines = [line for line in table.splitlines() if line.startswith(f"| {row} ")]
        assert len(lines) >= 1, table
        assert any("*" in line for line in lines), "with the published number"
    assert {"MRR@10", "R@1000", "DL19 NDCG@10", "DL20 NDCG@10"} <= set(columns)


def test_another_systems_run_stands_beside_them(recipe: list[str], done: Done, tmp_path: Path) -> None:
    ids = [name for name, *_ in TEXT.passages]
    lines = [
        f"{query} Q0 {ids[rank]} {rank + 1} {1 / (rank + 1)} SimLM"
        for query, _, _ in splits_of(TEXT)["test"]
        for rank in range(20)
    ]
    run = f"stages.simlm={{stage: read_run, file: {write(tmp_path / 'simlm.trec', lines)}}}"
    again = run_command(*recipe, run, "+table.rows.SimLM=simlm").sound()
    assert set(again.computed) <= {"simlm", "simlm.evaluation"}, "the rest is there"
    assert list(metrics_of(again.folder)) == ["BM25", *CHECKPOINTS, "SimLM"]


def test_the_recipe_on_beir_runs_to_its_table(tokenizer: Path, folders: dict[str, Path], tmp_path: Path) -> None:
    data = [
        "data=beir",
        f"data.root={write_beir(tmp_path / 'beir', TEXT)}",
        "data.splits={train: null, dev: null, test: test}",
    ]
    done = run_command(
        "experiment=released_beir_by_name",
        *data,
        *(f"stages.{CHECKPOINTS[row][0]}.folder={folder}" for row, folder in folders.items() if row not in ONLY_MARCO),
        *(f"backbone.tokenizer={tokenizer}", "trainer=cpu", "trainer.precision=fp32", "logger=csv"),
        f"output_root={tmp_path / 'out'}",
    ).sound()
    assert list(metrics_of(done.folder)) == ["BM25", "coCondenser", "TAS-B", "RetroMAE", "CoT-MAE"]
    assert "retriever" not in done.computed


def test_tas_b_as_sentence_transformers_saves_it_is_read_the_same(tokenizer: Path, tmp_path: Path) -> None:
    saved = released(tmp_path, tokenizer, pooling="cls", prompts={}, length=40, language_model=True)
    marco = write_marco(tmp_path / "marco", TEXT)
    done = run_command(
        "experiment=released_msmarco", f"data.root={marco}", "data.titles=null", f"backbone.tokenizer={tokenizer}",
        *(f"stages.{name}.folder={saved}" for name in ("ance", "tas_b", "cocondenser", "retromae", "cotmae")),
        *(f"stages.{name}.{key}_length=40" for name in ("ance", "tas_b", "retromae") for key in ("passage",)),
        *("stages.ance.query_length=40", f"stages.splade.folder={tmp_path / 'backbone'}"),
        *("stages.splade.query_length=40", "stages.splade.passage_length=40"),
        *("stage.retriever.passage_length=40", "trainer=cpu", "trainer.precision=fp32", "logger=csv"),
        *("stage.retriever.query_length=30", f"output_root={tmp_path / 'out'}"),
    ).sound()  # fmt: skip
    rows = metrics_of(done.folder)
    assert rows["TAS-B"] == rows["RetroMAE"] == rows["CoT-MAE"]
