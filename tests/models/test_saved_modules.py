"""Retrievers that others release load as sentence-transformers makes them, and open there again with equal scores."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import released
import torch
from error_lines import names
from released import ANCE, KINDS, SEVERAL, library_scores, two_towers
from safetensors.torch import load_file
from slow import slow_except
from transformers import AutoModel

from condensery.errors import UserError
from condensery.models.checkpoints.config import BackboneConfig
from condensery.models.checkpoints.metadata import longest_inputs, made_for_search, vector_settings
from condensery.models.checkpoints.retrievers import (
    SavedRetriever,
    load_any_retriever,
    load_biencoder,
    load_retriever,
    save_retriever,
)
from condensery.models.checkpoints.sentence_transformers import write_modules
from condensery.models.generator import load_generator
from condensery.models.vectors import POOLED, DenseShape, VectorSettings
from condensery.retrieval.searchers.retriever import Retriever
from condensery.tokens.tokenizer import load_tokenizer
from condensery.training.modules.biencoder import BiEncoderModule
from condensery.training.modules.pretraining import CondenserModule

QUESTIONS = ["what does a river carry", "stones", "who reads passages and queries at sea, and why would anybody"]


@pytest.mark.parametrize(
    ("file", "ordered", "said"),
    [
        (
            "sentence_bert_config.json",
            {"tokenizer_args": {"do_lower_case": True}},
            "tokenizer_args.do_lower_case is 'True'",
        ),
        (
            "sentence_bert_config.json",
            {"config_kwargs": {"num_hidden_layers": 1}},
            "config_kwargs.num_hidden_layers is '1'",
        ),
        (
            "sentence_bert_config.json",
            {"processing_kwargs": {"text": {"add_special_tokens": False, "padding": "longest"}}},
            "processing_kwargs.text.add_special_tokens is 'False'",
        ),
        (
            "tokenizer_config.json",
            {"truncation_side": "left"},
            "truncation_side is 'left', but here long texts lose their end",
        ),
    ],
)
def test_what_a_transformers_files_order_and_is_not_done_here_is_refused(
    file: str, ordered: dict[str, Any], said: str, wordpiece: Path, tmp_path: Path
) -> None:
    folder = released.released(tmp_path, wordpiece)
    about = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**about, "model_args": {"torch_dtype": "float16"}, "tokenizer_args": {}}))
    load_biencoder(folder)
    (folder / file).write_text(json.dumps({**about, **ordered}))
    with pytest.raises(UserError) as raised:
        load_biencoder(folder)
    names(str(raised.value), f"{folder / file}: {said}")


def test_a_retriever_with_fewer_tokens_than_its_tokenizer_is_refused(wordpiece: Path, tmp_path: Path) -> None:
    folder = released.released(tmp_path, wordpiece)
    tokenizer = load_tokenizer(folder)
    tokenizer.add_tokens(["bee", "hive"])
    tokenizer.save_pretrained(str(folder))
    with pytest.raises(UserError, match=r"the model knows \d+ tokens, but the tokenizer has"):
        Retriever(folder, device="cpu")


def test_the_card_names_the_layers_after_the_pooling(wordpiece: Path, tmp_path: Path) -> None:
    for kind, said in [
        ("several Dense, then normalised", ", mapped by Dense, Dense, divided by its length."),
        ("one Dense", ", mapped by Dense."),
        ("normalised, then cut", ", mapped by Normalize, cut to its first 6 numbers."),
        ("pooled by mean", "after the last layer."),
    ]:
        module = BiEncoderModule(released.released(tmp_path / kind, wordpiece, **KINDS[kind]))
        module.save_pretrained(tmp_path / kind / "ours", tokenizer=wordpiece)
        assert said in (tmp_path / kind / "ours/README.md").read_text()


def our_scores(folder: Path, queries: list[str], passages: list[str]) -> torch.Tensor:
    """(n, m) in float64, as searching has them."""
    retriever = Retriever(folder, device="cpu", precision="fp32")
    retriever.model.double()
    kept: list[Any] = []
    model: Any = retriever.model
    vectors = model.vectors
    model.vectors = lambda chunk: kept.append((chunk, vectors(chunk))) or kept[-1][1]
    retriever.encode_queries(queries)
    asked, kept[:] = kept[:], []
    retriever.encode_passages(passages)

    def in_order(parts: list[Any]) -> torch.Tensor:
        rows = torch.cat([chunk.rows for chunk, _ in parts])
        return torch.cat([made for _, made in parts])[rows.argsort()]

    return in_order(asked) @ in_order(kept).T


@pytest.mark.parametrize("kind", KINDS)
def test_every_released_kind_has_the_scores_of_sentence_transformers_and_keeps_them_when_it_is_saved(
    kind: str, wordpiece: Path, texts: list[str], tmp_path: Path
) -> None:
    folder = released.released(tmp_path, wordpiece, **KINDS[kind])
    wanted = library_scores(folder, QUESTIONS, texts)
    torch.testing.assert_close(our_scores(folder, QUESTIONS, texts), wanted, rtol=1e-6, atol=1e-6)
    for separate in (False, True):
        model, _ = load_any_retriever(folder)
        if separate:
            model = load_biencoder(folder, separate=True)
        ours = tmp_path / f"ours {separate}"
        save_retriever(SavedRetriever(model, 14, 14), ours, folder)
        torch.testing.assert_close(our_scores(ours, QUESTIONS, texts), wanted, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(library_scores(ours, QUESTIONS, texts), wanted, rtol=1e-6, atol=1e-6)


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def pickled_layers(folder: Path) -> None:
    """All weights as older releases of the library saved them, such as those of ANCE."""
    for part in (folder, folder / "2_Dense", folder / "3_LayerNorm"):
        pickled(part)


def in_shards(folder: Path) -> None:
    model = AutoModel.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="8KB")
    assert len([*folder.glob("model-*.safetensors")]) > 1


def in_pickled_shards(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    files = {name: f"pytorch_model-0000{at % 2 + 1}-of-00002.bin" for at, name in enumerate(weights)}
    for file in set(files.values()):
        torch.save({name: value for name, value in weights.items() if files[name] == file}, folder / file)
    size = sum(value.nbytes for value in weights.values())
    about = {"metadata": {"total_size": size}, "weight_map": files}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(about))


def with_dropout(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "2_Dropout").mkdir()
    (folder / "2_Dropout" / "config.json").write_text('{"dropout": 0.3}')
    modules.append({"idx": 2, "name": "2", "path": "2_Dropout", "type": "sentence_transformers.models.Dropout"})
    (folder / "modules.json").write_text(json.dumps(modules))


def by_default(folder: Path) -> None:
    """A default prompt for whatever is neither a query nor a passage."""
    changed(folder, "config_sentence_transformers.json", prompts={"any": "stones ", **released.PROMPTS})
    changed(folder, "config_sentence_transformers.json", default_prompt_name="any")


STORED: dict[str, tuple[dict[str, Any], Any]] = {
    **{family: ({"family": family}, None) for family in released.FAMILIES if family != "bert"},
    "mpnet in fp16, by its first token": (
        {"family": "mpnet", "dtype": torch.float16, "pooling": "cls", "behind": [("Normalize", {})]}, None,
    ),
    "electra in bf16, cut": ({"family": "electra", "dtype": torch.bfloat16, "truncate_dim": 6, "pooling": "max"}, None),
    "pickled": ({}, pickled),
    "pickled, with a LayerNorm": ({"family": "roberta", "pooling": "cls", "behind": ANCE}, pickled_layers),
    "pickled in half precision": ({"dtype": torch.float16, "behind": SEVERAL}, pickled),
    "in shards": ({}, in_shards),
    "in pickled shards": ({}, in_pickled_shards),
    "a default prompt": ({}, by_default),
    "no prompts": ({"prompts": {}}, None),
    "Dropout, which is only of training": ({}, with_dropout),
    **{
        f"{activation.__class__.__name__}, {'with' if bias else 'without'} a bias": (
            {"behind": [("Dense", {"out_features": 8, "bias": bias, "activation_function": activation})]}, None,
        )
        for activation in (torch.nn.Tanh(), torch.nn.ReLU(), torch.nn.SiLU())
        for bias in (True, False)
    },
}  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    slow_except(
        STORED,
        *list(released.FAMILIES)[1:3],
        "electra in bf16, cut",
        "pickled",
        "in shards",
        "a default prompt",
        "no prompts",
    ),
)
def test_each_family_and_each_way_of_storing_it_has_the_scores_of_sentence_transformers(
    kind: str, wordpiece: Path, texts: list[str], tmp_path: Path
) -> None:
    about, then = STORED[kind]
    folder = released.released(tmp_path, wordpiece, **about)
    if then:
        then(folder)
    wanted = library_scores(folder, QUESTIONS, texts)
    torch.testing.assert_close(our_scores(folder, QUESTIONS, texts), wanted, rtol=1e-6, atol=1e-6)
    model, _ = load_any_retriever(folder)
    save_retriever(SavedRetriever(model, 14, 14), tmp_path / "ours", folder)
    torch.testing.assert_close(library_scores(tmp_path / "ours", QUESTIONS, texts), wanted, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(our_scores(tmp_path / "ours", QUESTIONS, texts), wanted, rtol=1e-6, atol=1e-6)


def test_a_prompt_named_passage_is_that_of_passages(wordpiece: Path, texts: list[str], tmp_path: Path) -> None:
    """Release 6 writes an empty prompt "document" beside it, which goes first there unless the prompt is named."""
    library: Any = pytest.importorskip("sentence_transformers")
    folder = released.released(tmp_path, wordpiece, prompts={"query": "river: ", "passage": "sea and stones: "})
    assert vector_settings(folder).passage_prefix == "sea and stones: "
    model = library.SentenceTransformer(str(folder), device="cpu").double()
    asked = model.encode_query(QUESTIONS, convert_to_tensor=True)
    wanted = asked @ model.encode(texts, prompt_name="passage", convert_to_tensor=True).T
    torch.testing.assert_close(our_scores(folder, QUESTIONS, texts), wanted, rtol=1e-6, atol=1e-6)
    save_retriever(SavedRetriever(load_biencoder(folder), 14, 14), tmp_path / "ours", folder)
    torch.testing.assert_close(library_scores(tmp_path / "ours", QUESTIONS, texts), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("family", released.FAMILIES)
def test_a_folder_without_modules_is_read_by_its_first_token_or_as_is_said(
    family: str, wordpiece: Path, texts: list[str], tmp_path: Path
) -> None:
    read = load_tokenizer(released.words_of(family, wordpiece, tmp_path / "words"))
    torch.manual_seed(0)
    model = released.plain_model(family, len(read), read.pad_token_id).eval()
    model.save_pretrained(tmp_path)
    read.save_pretrained(tmp_path)
    given = read(texts, padding=True, truncation=True, max_length=14, return_tensors="pt")
    given.pop("token_type_ids", None)
    with torch.no_grad():
        states = model(**given).last_hidden_state
    real = given["attention_mask"][..., None]
    mean = torch.nn.functional.normalize((states * real).sum(1) / real.sum(1), dim=1)
    for options, wanted in (({}, states[:, 0]), ({"pooling": "mean", "normalise": True}, mean)):
        found = Retriever(tmp_path, passage_length=14, device="cpu", vectors=options, precision="fp32").encode_passages(
            texts
        )
        torch.testing.assert_close(torch.from_numpy(found), wanted, rtol=1e-5, atol=1e-5)


def saved_by_the_library(folder: Path, *modules: Any, **about: Any) -> Path:
    library: Any = pytest.importorskip("sentence_transformers")
    library.SentenceTransformer(modules=list(modules), device="cpu", **about).save(str(folder))
    return folder


def kinds_that_are_not_known(wordpiece: Path, folder: Path) -> dict[str, tuple[list[Any], str]]:
    """Modules as sentence-transformers saves them, and what is named of each."""
    modules: Any = pytest.importorskip("sentence_transformers.models")
    read = load_tokenizer(wordpiece)
    released.plain_model("bert", len(read), read.pad_token_id).save_pretrained(folder / "plain")
    read.save_pretrained(folder / "plain")
    transformer = modules.Transformer(str(folder / "plain"), max_seq_length=14)
    static = modules.StaticEmbedding(read.backend_tokenizer, embedding_dim=16)
    pooling = modules.Pooling(16, pooling_mode="mean")
    routed = modules.Router.for_query_document([static], [transformer, pooling])
    return {
        "static": ([static], "modules.json: a module 'StaticEmbedding'"),
        "static queries": ([routed], "modules.json: a module 'StaticEmbedding'"),
        "all layers": ([transformer, modules.WeightedLayerPooling(16, num_hidden_layers=2), pooling], "modules.json"),
        "two poolings": ([transformer, modules.Pooling(16, pooling_mode=("cls", "mean"))], "1_Pooling/config.json"),
        "residual": (
            [transformer, pooling, modules.Dense(16, 16, use_residual=True)],
            "2_Dense/config.json: use_residual is true",
        ),
        "CNN": ([transformer, modules.CNN(16, 16), pooling], "modules.json: a module 'CNN'"),
    }


@pytest.mark.parametrize("kind", ["static", "static queries", "all layers", "two poolings", "residual", "CNN"])
def test_what_the_library_saves_and_is_not_known_here_is_one_line(kind: str, wordpiece: Path, tmp_path: Path) -> None:
    modules, said = kinds_that_are_not_known(wordpiece, tmp_path)[kind]
    folder = saved_by_the_library(tmp_path / "saved", *modules)
    with pytest.raises(UserError) as raised:
        Retriever(folder)
    names(str(raised.value), str(folder), said, "supported are the poolings")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("language_model", [False, True])
def test_half_precision_with_and_without_a_language_models_head(
    language_model: bool, dtype: torch.dtype, wordpiece: Path, texts: list[str], tmp_path: Path
) -> None:
    folder = released.released(tmp_path, wordpiece, dtype=dtype, language_model=language_model, behind=SEVERAL)
    assert all(weight.dtype == torch.float32 for weight in load_biencoder(folder).parameters())
    torch.testing.assert_close(
        our_scores(folder, QUESTIONS, texts), library_scores(folder, QUESTIONS, texts), rtol=1e-6, atol=1e-6
    )


def test_weights_that_torch_pickled_and_flags_of_older_releases_are_read(
    wordpiece: Path, texts: list[str], tmp_path: Path
) -> None:
    folder = released.released(tmp_path, wordpiece, pooling="weightedmean", behind=SEVERAL)
    wanted = our_scores(folder, QUESTIONS, texts)
    for dense in ("2_Dense", "3_Dense"):
        torch.save(load_file(folder / dense / "model.safetensors"), folder / dense / "pytorch_model.bin")
        (folder / dense / "model.safetensors").unlink()
    flags = {"word_embedding_dimension": 16, "pooling_mode_cls_token": False, "pooling_mode_weightedmean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    assert torch.equal(our_scores(folder, QUESTIONS, texts), wanted)


def test_padding_on_the_left_and_a_tokenizer_that_says_so_make_no_difference(
    wordpiece: Path, texts: list[str], tmp_path: Path
) -> None:
    folder = released.released(tmp_path, wordpiece, pooling="lasttoken")
    wanted = our_scores(folder, QUESTIONS, texts)
    said = folder / "tokenizer_config.json"
    said.write_text(json.dumps({**json.loads(said.read_text()), "padding_side": "left"}))
    assert torch.equal(our_scores(folder, QUESTIONS, texts), wanted)


def test_what_is_set_goes_before_what_the_folder_says(wordpiece: Path, tmp_path: Path) -> None:
    folder = released.released(tmp_path, wordpiece, behind=[*SEVERAL, ("Normalize", {})], truncate_dim=6)
    assert vector_settings(folder) == VectorSettings("mean", False, *released.PROMPTS.values(), truncate_dim=6)
    found = load_biencoder(folder, options={"pooling": "max", "normalise": True, "truncate_dim": 4})
    assert (found.settings.pooling, found.settings.normalise, found.hidden_size) == ("max", True, 4)
    assert load_biencoder(folder).hidden_size == 6
    with pytest.raises(UserError) as raised:
        load_biencoder(folder, options={"truncate_dim": 11})
    names(str(raised.value), "truncate_dim", "11", "10", str(folder))


def test_cards_and_messages_know_a_retriever_with_layers_behind_its_vectors(wordpiece: Path, tmp_path: Path) -> None:
    folder = released.released(tmp_path, wordpiece, pooling="cls", behind=SEVERAL, truncate_dim=6)
    assert made_for_search(folder) == "CLS, 2 Dense, truncated to 6, inner product"
    ance = released.released(tmp_path / "ance", wordpiece, pooling="cls", behind=ANCE)
    assert made_for_search(ance) == "CLS, 1 Dense, 1 LayerNorm, inner product"
    save_retriever(SavedRetriever(load_biencoder(folder), 14, 14), tmp_path / "ours", folder)
    assert made_for_search(tmp_path / "ours") == made_for_search(folder), "pre-training would lose them"
    assert load_retriever(tmp_path / "ours").model.hidden_size == 6


def fingerprint(folder: Path) -> str:
    """By which a backbone is known."""
    sizes = {"layers": 1, "hidden": 16, "heads": 1, "intermediate": 8, "max_positions": 40, "vocab_size": 100}
    own = {"name": str(folder), "revision": None, "tokenizer": None, "family": "bert", "dropout": None}
    return BackboneConfig.model_validate({**own, **sizes, "initializer_range": 0.02}).fingerprint()


def test_other_weights_of_a_layer_in_a_folder_below_are_another_backbone(wordpiece: Path, tmp_path: Path) -> None:
    folder = released.released(tmp_path, wordpiece, behind=SEVERAL)

    before = fingerprint(folder)
    assert fingerprint(released.released(tmp_path / "ance", wordpiece, behind=ANCE)) != before
    weights = folder / "3_Dense" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert fingerprint(folder) != before


def changed(folder: Path, file: str, **values: Any) -> None:
    """Other entries in a JSON file; None = none."""
    about = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({key: value for key, value in {**about, **values}.items() if value != ()}))


BEHIND, NORM = "2_Dense/config.json", "3_LayerNorm/config.json"
FAULTS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "an unknown activation": (BEHIND, {"activation_function": "mine.Swish"}, ["activation_function", "mine.Swish", "GELU"]),
    "an activation that is no class of torch.nn": (
        BEHIND, {"activation_function": "os.Tanh"}, ["activation_function", "os.Tanh"],
    ),
    "other sizes": (BEHIND, {"in_features": 12}, ["in_features", "12", "16"]),
    "sizes that are none": (BEHIND, {"out_features": "many"}, ["out_features", "many", "whole number"]),
    "a bias that is none": (BEHIND, {"bias": "yes"}, ["bias", "yes"]),
    "weights of other sizes": (BEHIND, {"bias": False}, ["2_Dense/model.safetensors", "linear.bias"]),
    "layers of tokens": (BEHIND, {"module_input_name": "token_embeddings"}, ["module_input_name", "token_embeddings"]),
    "residual layers": (BEHIND, {"use_residual": True}, ["use_residual"]),
    "a cut that is none": ("config_sentence_transformers.json", {"truncate_dim": 0}, ["truncate_dim", "whole number"]),
    "a cut that is no number": ("config_sentence_transformers.json", {"truncate_dim": True}, ["truncate_dim", "True"]),
    "pooling without the prompt": ("1_Pooling/config.json", {"include_prompt": False}, ["include_prompt"]),
    "two poolings": ("1_Pooling/config.json", {"pooling_mode": ["cls", "max"]}, ["cls, max"]),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_not_known_or_does_not_fit_is_one_line(fault: str, wordpiece: Path, tmp_path: Path) -> None:
    folder = released.released(tmp_path, wordpiece, pooling="cls", behind=SEVERAL)
    file, values, words = FAULTS[fault]
    changed(folder, file, **values)
    with pytest.raises(UserError) as raised:
        load_biencoder(folder)
    names(str(raised.value), str(folder), *words)


def test_a_default_prompt_that_is_none_is_refused_as_the_library_does(wordpiece: Path, tmp_path: Path) -> None:
    folder, file = released.released(tmp_path, wordpiece, prompts={"any": "sea "}), "config_sentence_transformers.json"
    for known in (None, "any", "query", "document"):
        changed(folder, file, default_prompt_name=known)
        library_scores(folder, ["stones"], ["river"])
        load_biencoder(folder)
    for unknown in ("passage", "", 3):
        changed(folder, file, default_prompt_name=unknown)
        with pytest.raises(ValueError, match=f"^Default prompt name '{unknown}' not found"):
            library_scores(folder, ["stones"], ["river"])
        with pytest.raises(UserError) as raised:
            load_biencoder(folder)
        names(str(raised.value), str(folder / file), f"default_prompt_name is '{unknown}'", "query, document, any")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"dimension": 16}, ["dimension", "16", "12"]),
        ({"dimension": "12"}, ["dimension", "whole number"]),
        ({"dimension": ()}, ["dimension", "None", "whole number"]),
    ],
)
def test_a_layer_norm_of_another_size_is_one_line(
    values: dict[str, Any], words: list[str], wordpiece: Path, tmp_path: Path
) -> None:
    folder = released.released(tmp_path, wordpiece, behind=ANCE)
    changed(folder, NORM, **values)
    with pytest.raises(UserError) as raised:
        load_biencoder(folder)
    names(str(raised.value), str(folder / NORM), *words)
    changed(folder, NORM, dimension=12)
    (folder / "3_LayerNorm" / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"3_LayerNorm: no weights of this LayerNorm module"):
        load_biencoder(folder)


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        (["Transformer", "Dense", "Pooling"], "'Dense'"),
        (["Transformer", "Normalize", "Pooling"], "'Normalize'"),
        (["Transformer", "Pooling", "Pooling"], "'Pooling'"),
        (["Transformer", "LayerNorm", "Pooling"], "'LayerNorm'"),
        (["Transformer", "Pooling", "CNN"], "'CNN'"),
        (["Transformer", "Pooling", "Transformer"], "'Transformer'"),
    ],
)
def test_an_order_that_is_not_known_is_one_line(kinds: list[str], said: str, wordpiece: Path, tmp_path: Path) -> None:
    folder = released.released(tmp_path, wordpiece, behind=SEVERAL)
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Dense": "2_Dense"}
    about = [{"type": f"sentence_transformers.models.{kind}", "path": paths.get(kind, kind)} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(about))
    with pytest.raises(UserError) as raised:
        load_biencoder(folder)
    names(str(raised.value), "modules.json", said)


def test_a_module_of_somebody_elses_and_missing_weights_are_one_line(wordpiece: Path, tmp_path: Path) -> None:
    folder = released.released(tmp_path, wordpiece, behind=SEVERAL)
    (folder / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(
        UserError, match=r"2_Dense: no weights of this Dense module; copy model\.safetensors or pytorch_model\.bin"
    ):
        load_biencoder(folder)
    modules = json.loads((folder / "modules.json").read_text())
    modules[2]["type"] = "their_code.Dense"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UserError, match=r"modules\.json: a module 'their_code\.Dense'"):
        load_biencoder(folder)
    (folder / "modules.json").unlink()
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"adapter_config\.json: .* merge this adapter into its base model"):
        load_biencoder(folder)
    (adapter := tmp_path / "adapter").mkdir()  # as peft saves it: no config.json, no tokenizer
    (adapter / "adapter_config.json").write_text("{}")
    for load in (CondenserModule, lambda source: load_generator(source, "stage.generate_queries.model")):
        with pytest.raises(UserError, match=r"adapter_config\.json: .* merge this adapter into its base model"):
            load(adapter)


@pytest.mark.parametrize("module", ["1_Pooling", "2_Dense"])
def test_missing_settings_of_a_module_are_one_line(module: str, wordpiece: Path, tmp_path: Path) -> None:
    folder = released.released(tmp_path, wordpiece, behind=SEVERAL)
    (folder / module / "config.json").unlink()
    with pytest.raises(UserError, match=rf"{module}/config\.json: no such file, but modules\.json names"):
        load_biencoder(folder)


def test_no_prompt_is_left_out_where_there_is_none(wordpiece: Path, tmp_path: Path) -> None:
    folder = released.released(tmp_path, wordpiece, prompts={})
    changed(folder, "1_Pooling/config.json", include_prompt=False)
    assert load_biencoder(folder).settings.pooling == "mean"


def test_towers_whose_vectors_cannot_be_compared_are_one_line(wordpiece: Path, tmp_path: Path) -> None:
    folder = released.released(tmp_path, wordpiece, behind=SEVERAL)
    save_retriever(SavedRetriever(load_biencoder(folder, separate=True), 14, 14), tmp_path / "two", folder)
    other = released.released(tmp_path / "other", wordpiece, behind=SEVERAL[:1])
    shutil.rmtree(tmp_path / "two" / "query_encoder")
    save_retriever(SavedRetriever(load_biencoder(other), 14, 14), tmp_path / "two" / "query_encoder", folder)
    with pytest.raises(UserError) as raised:
        load_retriever(tmp_path / "two")
    names(str(raised.value), "24", "10", "both must have the same number")


def resaved(folder: Path, to: Path) -> Path:
    """The same as sentence-transformers itself saves it, with nothing of ours."""
    library: Any = pytest.importorskip("sentence_transformers")
    library.SentenceTransformer(str(folder), device="cpu").save(str(to))
    assert not (to / "condensery.json").exists()
    return to


def with_routed_dense(folder: Path, wordpiece: Path) -> Path:
    """One encoder, and behind it a Dense of its own for queries and for passages."""
    library: Any = pytest.importorskip("sentence_transformers")
    modules: Any = pytest.importorskip("sentence_transformers.models")
    model = library.SentenceTransformer(str(released.released(folder, wordpiece)), device="cpu")
    torch.manual_seed(2)
    query, passage = (modules.Dense(16, 8) for _ in range(2))
    model.append(modules.Router.for_query_document([query], [passage]))
    model.save(str(folder / "routed"))
    return folder / "routed"


KIND_OF_TOWERS = {"Dense, normalised": {"behind": [*SEVERAL, ("Normalize", {})]}, "cls": {"pooling": "cls"}}


@pytest.mark.parametrize("kind", KIND_OF_TOWERS)
def test_two_towers_open_in_one_call_and_load_as_sentence_transformers_saves_them(
    kind: str, wordpiece: Path, texts: list[str], tmp_path: Path
) -> None:
    ours = two_towers(tmp_path, wordpiece, **KIND_OF_TOWERS[kind])
    wanted = our_scores(ours, QUESTIONS, texts)
    torch.testing.assert_close(library_scores(ours, QUESTIONS, texts), wanted, rtol=1e-6, atol=1e-6)
    same = our_scores(released.released(tmp_path / "one", wordpiece, **KIND_OF_TOWERS[kind]), QUESTIONS, texts)
    assert not torch.allclose(wanted, same, atol=1e-2), "queries have weights of their own"
    theirs = resaved(ours, tmp_path / "theirs")
    assert vector_settings(theirs) == vector_settings(ours)
    assert longest_inputs(theirs) == longest_inputs(ours) == (9, 14)
    torch.testing.assert_close(our_scores(theirs, QUESTIONS, texts), wanted, rtol=1e-6, atol=1e-6)


def test_one_encoder_with_a_layer_for_each_side_loads(wordpiece: Path, texts: list[str], tmp_path: Path) -> None:
    folder = with_routed_dense(tmp_path, wordpiece)
    model = load_biencoder(folder)
    assert not model.shared
    wanted = library_scores(folder, QUESTIONS, texts)
    torch.testing.assert_close(our_scores(folder, QUESTIONS, texts), wanted, rtol=1e-6, atol=1e-6)
    save_retriever(SavedRetriever(model, 14, 14), tmp_path / "ours", folder)
    torch.testing.assert_close(library_scores(tmp_path / "ours", QUESTIONS, texts), wanted, rtol=1e-6, atol=1e-6)


def test_both_towers_of_others_count_for_a_backbone(wordpiece: Path, tmp_path: Path) -> None:
    folder = resaved(two_towers(tmp_path, wordpiece), tmp_path / "theirs")
    found = {fingerprint(folder)}
    for tower in ("document", "query"):
        weights = folder / f"{tower}_0_Transformer" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"x")
        found.add(fingerprint(folder))
    assert len(found) == 3


ROUTES: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "other routes": ("router_config.json", {"parameters": {"route_mappings": {"(None, 'text')": "query"}}}, ["route_"]),
    "no passages": ("router_config.json", {"structure": {"query": []}}, ["router_config.json", "'document'"]),
    "an unknown module": (
        "router_config.json", {"structure": {"query": ["x"], "document": ["x"]}}, ["router_config.json", "types"],
    ),
    "no lists": ("router_config.json", {"types": ["Transformer"]}, ["router_config.json", "not in the form that"]),
    "another pooling of queries": ("query_1_Pooling/config.json", {"pooling_mode": "max"}, ["modules.json", "same pooling"]),
}  # fmt: skip


@pytest.mark.parametrize("fault", ROUTES)
def test_routes_that_are_not_known_are_one_line(fault: str, wordpiece: Path, tmp_path: Path) -> None:
    folder = resaved(two_towers(tmp_path, wordpiece), tmp_path / "theirs")
    file, values, words = ROUTES[fault]
    changed(folder, file, **values)
    with pytest.raises(UserError) as raised:
        load_biencoder(folder)
    names(str(raised.value), str(folder), *words)


def test_towers_that_read_other_tokens_are_one_line(wordpiece: Path, tmp_path: Path) -> None:
    folder = resaved(two_towers(tmp_path, wordpiece), tmp_path / "theirs")
    file = "query_0_Transformer/tokenizer.json"
    changed(folder, file, normalizer={"type": "Lowercase"})
    with pytest.raises(
        UserError, match=r"query_0_Transformer: its tokenizer differs from that in .*document_0_Transformer"
    ):
        load_biencoder(folder)


def test_files_say_what_was_given(tmp_path: Path) -> None:
    from condensery.models.checkpoints.sentence_transformers import read_modules

    for pooling in POOLED:
        settings = VectorSettings(pooling, True, "q ", "p ", 4)  # type: ignore[arg-type]
        (dense,) = write_modules(tmp_path, 16, 9, settings, [DenseShape(16, 8, False, "Mish")])
        found = read_modules(tmp_path)
        assert found.settings == settings
        assert found.head[0] is not None
        assert (found.head[0].folder, found.head[0].shape) == (dense, DenseShape(16, 8, False, "Mish"))
