"""SPLADE that others trained: the vectors of sentence-transformers, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from error_lines import names
from released_encoders import PASSAGES, QUERIES, changed, in_order, refused, rows, splade
from sentence_transformers import SparseEncoder as TheirSplade
from single_stage import run_stage
from textbook import language_model

from condensery.baselines.released.config import SparseEncoderConfig
from condensery.baselines.splade.model import load_sparse_encoder
from condensery.errors import UserError
from condensery.models.biencoder import PASSAGE
from condensery.system.files import read_json, write_json
from condensery.tokens.tokenizer import load_tokenizer, train_wordpiece


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_wordpiece([*QUERIES, *PASSAGES] * 5, 120, folder, warn=False)
    return folder


def older(folder: Path) -> None:
    """The names of release 5.1."""
    kinds = read_json(folder / "modules.json")
    for kind, name in zip(kinds, ("MLMTransformer", "SpladePooling"), strict=True):
        kind["type"] = f"sentence_transformers.sparse_encoder.models.{name}"
    write_json(folder / "modules.json", kinds)
    changed(folder / "sentence_bert_config.json", transformer_task=...)


@pytest.mark.parametrize(
    ("family", "activation", "kind"),
    [
        ("bert", "relu", "saved"),
        ("bert", "log1p_relu", "saved"),
        ("distilbert", "relu", "older"),
        ("roberta", "relu", "saved"),
        ("bert", "relu", "plain"),
    ],
)
def test_a_splade_has_the_vectors_of_sentence_transformers_and_keeps_them(
    tokenizer: Path, tmp_path: Path, family: str, activation: str, kind: str
) -> None:
    folder, lengths = splade(tokenizer, tmp_path, family, activation), {}
    if kind == "plain":
        folder, lengths = tmp_path / "plain", {"query_length": 7, "passage_length": 7}
    if kind == "older":
        older(folder)
    assert run_stage("sparse_encoder", tmp_path / "ours", {}, folder=folder, **lengths) == {
        "query_length": 7,
        "passage_length": 7,
    }
    model, query_length, passage_length = load_sparse_encoder(tmp_path / "ours")
    assert (query_length, passage_length) == (7, 7)
    chunk = rows(tmp_path / "ours", PASSAGES, passage_length, PASSAGE)
    with torch.no_grad():
        found = in_order(model.eval().vectors(chunk), chunk)
    assert (found > 0).float().mean() > 0.1
    for saved in (folder, tmp_path / "ours"):
        theirs = TheirSplade(str(saved), device="cpu")
        theirs.max_seq_length = 7  # of the plain language model
        wanted = torch.as_tensor(theirs.encode_document(PASSAGES, convert_to_sparse_tensor=False))
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def test_a_splade_of_this_project_keeps_both_lengths(tokenizer: Path, tmp_path: Path) -> None:
    lengths = {"query_length": 5, "passage_length": 7}
    assert run_stage("sparse_encoder", tmp_path / "made", {}, folder=splade(tokenizer, tmp_path), **lengths) == lengths
    assert run_stage("sparse_encoder", tmp_path / "again", {}, folder=tmp_path / "made") == lengths


POOLING = "1_SpladePooling/config.json"
SPLADE_FAULTS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "the sum": (POOLING, {"pooling_strategy": "sum"}, ["pooling_strategy is sum", "SpladePooling with max"]),
    "another activation": (POOLING, {"activation_function": "gelu"}, ["activation_function is gelu"]),
    "states, not logits": ("sentence_bert_config.json", {"transformer_task": "feature-extraction"}, ["transformer_task"]),
    "prompts": ("config_sentence_transformers.json", {"prompts": {"query": "query: "}}, ["prompts is {'query': 'query: '}"]),
    "no default prompt": ("config_sentence_transformers.json", {"default_prompt_name": "x"}, ["prompt_name is 'x'"]),
    "few terms": ("config_sentence_transformers.json", {"max_active_dims": 64}, ["max_active_dims is 64"]),
    "cosines": ("config_sentence_transformers.json", {"similarity_fn_name": "cosine"}, ["similarity_fn_name is cosine"]),
    "another family": ("config.json", {"model_type": "t5"}, ["model_type", "t5", "distilbert"]),
    "an adapter": ("adapter_config.json", {}, ["PEFT adapters are not supported"]),
}  # fmt: skip


@pytest.mark.parametrize("fault", SPLADE_FAULTS)
def test_a_splade_that_is_not_supported_is_one_line_before_anything_is_computed(
    tokenizer: Path, tmp_path: Path, fault: str
) -> None:
    folder, (file, values, words) = splade(tokenizer, tmp_path), SPLADE_FAULTS[fault]
    changed(folder / file, **values)
    for message in refused(SparseEncoderConfig, folder):
        names(message, str(folder / file), *words)


def test_a_folder_without_an_mlm_head_a_cut_file_and_a_missing_folder_are_one_line(
    tokenizer: Path, tmp_path: Path
) -> None:
    splade(tokenizer, tmp_path)
    headless, lengths = tmp_path / "headless", {"query_length": 7, "passage_length": 7}
    model: Any = language_model(size=len(load_tokenizer(tokenizer)))
    model.base_model.save_pretrained(headless)
    load_tokenizer(tokenizer).save_pretrained(headless)
    with pytest.raises(UserError, match="headless has no MLM head; a SPLADE is a masked language model"):
        run_stage("sparse_encoder", tmp_path / "ours", {}, folder=headless, **lengths)
    with pytest.raises(UserError, match=r"does not record its lengths; set stages\.sparse_encoder\.query_length and"):
        run_stage("sparse_encoder", tmp_path / "ours", {}, folder=tmp_path / "plain", query_length=7)
    config = SparseEncoderConfig(folder=tmp_path / "plain", query_length=7)
    assert config.input_error({}) == ("passage_length", f"{tmp_path / 'plain'} does not record how many tokens it reads; set"
        " query_length and passage_length")  # fmt: skip
    assert SparseEncoderConfig(folder="owner/name").identity() == ["hub owner/name"]
    assert SparseEncoderConfig(folder="owner/name").input_error({}) is None
    with pytest.raises(
        UserError, match=r"stage\.sparse_encoder\.folder: \./there: no such folder; name a trained SPLADE"
    ):
        SparseEncoderConfig(folder="./there").identity()
    weights = tmp_path / "saved" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(UserError, match=r"model\.safetensors"):
        SparseEncoderConfig(folder=tmp_path / "saved").identity()
