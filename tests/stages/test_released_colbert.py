"""ColBERT that others trained: the scores of sentence-transformers, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from error_lines import names
from released_encoders import (
    ABOUT,
    PASSAGE_LENGTH,
    PASSAGES,
    QUERIES,
    QUERY_LENGTH,
    changed,
    colbert,
    hf_colbert,
    in_order,
    pylate,
    refused,
    rows,
)
from sentence_transformers import MultiVectorEncoder
from single_stage import run_stage
from torch import Tensor

from condensery.baselines.late_interaction.model import interaction_scores
from condensery.baselines.late_interaction.saving import load_token_encoder
from condensery.baselines.released.config import TokenEncoderConfig
from condensery.errors import UserError
from condensery.models.biencoder import PASSAGE, QUERY
from condensery.system.files import read_json
from condensery.tokens.tokenizer import train_wordpiece


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_wordpiece([*QUERIES, *PASSAGES] * 5, 120, folder, warn=False)
    return folder


COLBERTS: dict[str, Any] = {
    "filled, not attended": (colbert, {}),
    "filled, attended": (colbert, {"attended": True, "mask_first": True}),
    "not filled": (colbert, {"attended": None, "words": ()}),
    "ModernBERT": (colbert, {"window": 16}),
    "ModernBERT, filled and attended, in windows": (colbert, {"window": 4, "attended": True}),
    "ModernBERT, not filled, in windows": (colbert, {"window": 4, "attended": None}),
    "pylate": (pylate, {}),
    "pylate, attended": (pylate, {"attend_to_expansion_tokens": True, "skiplist_words": ["a", "!"]}),
    "pylate, not filled": (pylate, {"do_query_expansion": False}),
    "pylate's first releases": (pylate, {"old": True}),
    "its authors' code": (hf_colbert, {}),
    "its authors' code, attended": (hf_colbert, {"attend_to_mask_tokens": True, "mask_punctuation": False}),
    "its authors' code, pickled": (hf_colbert, {"pickled": True}),
    "pylate, with unused tokens": (pylate, {"markers": ("[unused1]", "[unused0]")}),
}


def our_scores(folder: Path) -> Tensor:
    model = load_token_encoder(folder).eval()
    found = []
    for texts, length, tower in zip((QUERIES, PASSAGES), model.interaction.lengths, (QUERY, PASSAGE), strict=True):
        chunk = rows(folder, texts, length, tower)
        with torch.no_grad():
            found.append(in_order(model.keyed(chunk), chunk))
    return interaction_scores(*found)


def their_scores(folder: Path) -> Tensor:
    theirs = MultiVectorEncoder(str(folder), device="cpu")
    return torch.as_tensor(theirs.similarity(theirs.encode_query(QUERIES), theirs.encode_document(PASSAGES)))


@pytest.mark.parametrize("kind", COLBERTS)
def test_a_colbert_has_the_scores_of_sentence_transformers_and_keeps_them(
    kind: str, tokenizer: Path, tmp_path: Path
) -> None:
    make, settings = COLBERTS[kind]
    folder = make(tokenizer, tmp_path / "theirs", **settings)
    lengths = {"query_length": QUERY_LENGTH, "passage_length": PASSAGE_LENGTH}
    assert run_stage("token_encoder", tmp_path / "ours", {}, folder=folder) == lengths
    assert run_stage("token_encoder", tmp_path / "again", {}, folder=tmp_path / "ours") == lengths
    wanted = their_scores(folder)
    assert wanted.std() > 0.01
    torch.testing.assert_close(our_scores(tmp_path / "ours"), wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(their_scores(tmp_path / "ours"), wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(our_scores(tmp_path / "again"), wanted, rtol=0, atol=1e-5)


def test_it_matters_whether_a_query_attends_to_what_fills_it_up(tokenizer: Path, tmp_path: Path) -> None:
    found = []
    for attended in (True, False, None):
        folder = colbert(tokenizer, tmp_path / f"{attended}", attended)
        run_stage("token_encoder", tmp_path / f"{attended}" / "ours", {}, folder=folder)
        found.append(our_scores(tmp_path / f"{attended}" / "ours"))
    assert (found[0] - found[1]).abs().max() > 0.01
    assert (found[1] - found[2]).abs().max() > 0.01


def test_only_attended_false_stands_in_the_saved_settings(tokenizer: Path, tmp_path: Path) -> None:
    """A ColBERT that the project trains has the same files as before the key."""
    for attended, saved in ((True, {}), (False, {"attended": False}), (None, {"attended": None})):
        run_stage("token_encoder", tmp_path / f"{attended}", {}, folder=colbert(tokenizer, tmp_path / "x", attended))
        about = read_json(tmp_path / f"{attended}" / "late_interaction.json")
        assert {key: value for key, value in about.items() if key == "attended"} == saved


FILLED = {"strategy": "fixed", "attend": False, "length": QUERY_LENGTH}
MASK, DENSE = "3_MultiVectorMask/config.json", "1_Dense/config.json"
TRANSFORMER = "sentence_bert_config.json"
COLBERT_FAULTS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "filled to a minimum": (TRANSFORMER, {"query_expansion": {**FILLED, "strategy": "min"}}, ["strategy is min"]),
    "filled with others": (TRANSFORMER, {"query_expansion": {**FILLED, "token": "a"}}, ["token is a"]),
    "the mean": (ABOUT, {"similarity_fn_name": "meanmaxsim"}, ["similarity_fn_name is meanmaxsim", "a ColBERT is of pylate"]),
    "queries without words": (MASK, {"skiplist_tasks": ["query", "document"]}, ["skiplist_tasks"]),
    "some tokens alone": (MASK, {"keep_only_token_ids": [3]}, ["keep_only_token_ids"]),
    "a bias": (DENSE, {"bias": True}, ["bias is True"]),
    "an activation": (DENSE, {"activation_function": "torch.nn.modules.activation.Tanh"}, ["activation is Tanh"]),
    "residual": (DENSE, {"use_residual": True}, ["use_residual"]),
    "another family": ("config.json", {"model_type": "t5"}, ["model_type", "t5"]),
    "an adapter": ("adapter_config.json", {}, ["PEFT adapters are not supported"]),
}  # fmt: skip


@pytest.mark.parametrize("fault", COLBERT_FAULTS)
def test_a_colbert_that_is_not_supported_is_one_line_before_anything_is_computed(
    tokenizer: Path, tmp_path: Path, fault: str
) -> None:
    folder, (file, values, words) = colbert(tokenizer, tmp_path), COLBERT_FAULTS[fault]
    changed(folder / file, **values)
    for message in refused(TokenEncoderConfig, folder):
        names(message, str(folder / file), *words)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"similarity": "l2"}, ["artifact.metadata", "similarity is l2"]),
        ({"dim": 7}, ["model.safetensors", "'linear.weight': (6, 16)"]),
        ({"query_token_id": "read a"}, ["'read a'", "not one token"]),
    ],
)
def test_what_is_not_supported_of_the_authors_code_is_one_line(
    tokenizer: Path, tmp_path: Path, settings: dict[str, Any], words: list[str]
) -> None:
    folder = hf_colbert(tokenizer, tmp_path / "theirs", **settings)
    with pytest.raises(UserError) as raised:
        run_stage("token_encoder", tmp_path / "ours", {}, folder=folder)
    names(str(raised.value), str(folder), *words)


@pytest.mark.parametrize(
    ("make", "changes", "words"),
    [
        (pylate, {"query_prefix": "query: "}, ["'query: '", "not one token"]),
        (pylate, {"query_prefix": ...}, ["''", "not one token"]),
        (colbert, {"prompts": {"query": "a file ", "document": "[D] "}}, ["'a file '", "not one token"]),
        (colbert, {"prompts": {}}, ["''", "not one token"]),
    ],
)
def test_a_marker_that_is_not_one_token_is_one_line(
    tokenizer: Path, tmp_path: Path, make: Any, changes: dict[str, Any], words: list[str]
) -> None:
    folder = make(tokenizer, tmp_path / "theirs")
    changed(folder / ABOUT, **changes)
    with pytest.raises(UserError) as raised:
        run_stage("token_encoder", tmp_path / "ours", {}, folder=folder)
    names(str(raised.value), str(folder), *words)


def test_a_filling_that_does_not_see_the_query_is_one_line(tokenizer: Path, tmp_path: Path) -> None:
    folder = colbert(tokenizer, tmp_path, window=4)
    with pytest.raises(UserError, match=r"token_encoder\.query_length: \[MASK\] would see less .* at most 5"):
        run_stage("token_encoder", tmp_path / "ours", {}, folder=folder)
    assert run_stage("token_encoder", tmp_path / "ours", {}, folder=folder, query_length=5)["query_length"] == 5
