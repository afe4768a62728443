"""SPLADE and ColBERT that others trained: the scores of sentence-transformers, and what is refused."""

import json
import shutil
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from error_lines import names
from released import released
from sentence_transformers import MultiVectorEncoder
from sentence_transformers import SparseEncoder as TheirSplade
from sentence_transformers import models as modules
from sentence_transformers.base.modules.transformer import Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sparse_encoder.modules import SpladePooling
from single_stage import run_stage
from small_runs import costs, metrics_of, run_command
from test_bad_input import one_line
from textbook import language_model
from tokenizers import AddedToken
from torch import Tensor
from transformers import BertConfig, BertModel, ModernBertConfig, ModernBertModel

from condensery.baselines.late_interaction.model import interaction_scores
from condensery.baselines.late_interaction.saving import load_token_encoder
from condensery.baselines.released.config import SparseEncoderConfig, TokenEncoderConfig
from condensery.baselines.splade.model import load_sparse_encoder
from condensery.errors import UserError
from condensery.models.biencoder import PASSAGE, QUERY
from condensery.models.checkpoints.retrievers import load_any_retriever
from condensery.stages.base import Artifact
from condensery.stages.released.config import RetrieverConfig
from condensery.system.files import read_json, write_json
from condensery.tokens.batches import chunks, flatten
from condensery.tokens.tokenizer import load_tokenizer, train_wordpiece
from condensery.tokens.vocabulary import Vocabulary, with_special

QUERIES = ["read a file", "open the door of the house, please", "a file"]
PASSAGES = ["Read a json file. Then write it!", "the door (of the house) is open", "please, please read the door", "a"]
QUERY_LENGTH, PASSAGE_LENGTH = 12, 9


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_wordpiece([*QUERIES, *PASSAGES] * 5, 120, folder, warn=False)
    return folder


def changed(file: Path, **values: Any) -> None:
    """Other entries in a JSON file; ``...`` = none."""
    about = {**(read_json(file) if file.exists() else {}), **values}
    write_json(file, {key: value for key, value in about.items() if value is not ...})


def rows(folder: Path, texts: Sequence[str], length: int, tower: int) -> Any:
    """The chunk of some texts, as the indexes make it."""
    read = load_tokenizer(folder)
    ends = Vocabulary.of(read)
    ids = [with_special(read(text, add_special_tokens=False)["input_ids"], ends, length) for text in texts]
    (chunk,) = chunks(*flatten(ids), 10_000, ends.pad, tower=tower)
    return chunk


def in_order(vectors: Tensor, chunk: Any) -> Tensor:
    return torch.empty_like(vectors).index_copy_(0, chunk.rows, vectors)


# SPLADE


def splade(tokenizer: Path, folder: Path, family: str = "bert", activation: str = "relu", length: int = 7) -> Path:
    """A SPLADE as sentence-transformers saves it into ``folder``/saved; ``folder``/plain is its language model."""
    read = load_tokenizer(tokenizer)
    language_model(family, size=len(read)).float().save_pretrained(folder / "plain")
    read.save_pretrained(folder / "plain")
    transformer = Transformer(str(folder / "plain"), transformer_task="fill-mask", max_seq_length=length)
    pooling: Any = SpladePooling("max", activation)  # type: ignore[arg-type]
    TheirSplade(modules=[transformer, pooling], device="cpu").save(str(folder / "saved"))
    return folder / "saved"


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


def refused(kind: Any, folder: Path) -> list[str]:
    """The messages of a stage's config, and of the stage itself."""
    messages = []
    name = "sparse_encoder" if kind is SparseEncoderConfig else "token_encoder"
    for call in (
        lambda: kind(folder=folder, query_length=None, passage_length=None).identity(),
        lambda: run_stage(name, folder.parent / "ours", {}, folder=folder),
    ):
        with pytest.raises(UserError) as raised:
            call()
        assert "\n" not in str(raised.value)
        messages.append(str(raised.value))
    return messages


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


# ColBERT


def colbert(
    tokenizer: Path,
    folder: Path,
    attended: bool | None = False,
    words: Sequence[str] = ("!", "("),
    mask_first: bool = False,
    window: int | None = None,
    markers: tuple[str, str] = ("[D] ", "[Q] "),
) -> Path:
    """A ColBERT as sentence-transformers saves it into ``folder``/saved."""
    backbone(tokenizer, folder / "plain", [text.strip() for text in markers], window)
    filled = {"strategy": "fixed", "attend": attended, "length": QUERY_LENGTH}
    lengths = {"query_length": QUERY_LENGTH, "document_length": PASSAGE_LENGTH}
    if attended is not None:
        lengths = {"query_expansion": filled, "document_length": PASSAGE_LENGTH}
    transformer = Transformer(str(folder / "plain"), **lengths)
    dense = modules.Dense(
        16, 6, bias=False, activation_function=torch.nn.Identity(), module_input_name="token_embeddings"
    )
    torch.nn.init.normal_(dense.linear.weight, 0.1, 0.4)
    ends = [modules.Normalize("token_embeddings"), MultiVectorMask(list(words))]
    parts = [transformer, dense, *(reversed(ends) if mask_first else ends)]
    prompts = dict(zip(("document", "query"), markers, strict=True))
    MultiVectorEncoder(modules=parts, prompts=prompts, device="cpu").save(str(folder / "saved"))
    return folder / "saved"


def backbone(
    tokenizer: Path, folder: Path, markers: Sequence[str], window: int | None = None, rstrip: bool = True
) -> None:
    read: Any = load_tokenizer(tokenizer)
    read.add_tokens([AddedToken(text, rstrip=rstrip, normalized=False, special=rstrip) for text in markers])
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    given: dict[str, Any] = {"vocab_size": len(read), "max_position_embeddings": 200, "initializer_range": 0.3, **sizes}
    torch.manual_seed(0)
    model: Any = BertModel(BertConfig(**given), add_pooling_layer=False)
    if window:  # tokens on either side that a token of every second layer sees
        ids = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "pad_token_id"), 0)
        model = ModernBertModel(
            ModernBertConfig(**given, **ids, local_attention=2 * window, global_attn_every_n_layers=2)
        )
    model.save_pretrained(folder)
    read.save_pretrained(folder)


def pylate(
    tokenizer: Path, folder: Path, markers: tuple[str, str] = ("[D] ", "[Q] "), old: bool = False, **settings: Any
) -> Path:
    """A ColBERT in pylate's form: only a Transformer and a Dense of its own; all else stands in one file."""
    backbone(tokenizer, folder, markers, rstrip=False)
    kinds = {"": "sentence_transformers.models.Transformer", "1_Dense": "pylate.models.Dense.Dense"}
    listed = [{"idx": at, "name": str(at), "path": path, "type": kind} for at, (path, kind) in enumerate(kinds.items())]
    write_json(folder / "modules.json", listed)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": PASSAGE_LENGTH, "do_lower_case": False})
    dense: Any = modules.Dense(16, 6, bias=False, activation_function=torch.nn.Identity())
    torch.nn.init.normal_(dense.linear.weight, 0.1, 0.4)
    (folder / "1_Dense").mkdir()
    dense.save(str(folder / "1_Dense"))
    changed(folder / "1_Dense" / "config.json", module_input_name=..., module_output_name=...)
    about = {"prompts": {"query": "", "document": ""}, "similarity_fn_name": "MaxSim", "query_length": QUERY_LENGTH}
    about |= {"document_prefix": markers[0], "query_prefix": markers[1], "document_length": PASSAGE_LENGTH}
    about |= (
        {}
        if old
        else {"model_type": "ColBERT", "attend_to_expansion_tokens": False, "skiplist_words": [*string.punctuation]}
    )
    write_json(folder / "config_sentence_transformers.json", {**about, **settings})
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
ABOUT, MASK, DENSE = "config_sentence_transformers.json", "3_MultiVectorMask/config.json", "1_Dense/config.json"
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


def test_each_stage_names_the_stages_of_the_other_models(tokenizer: Path, tmp_path: Path) -> None:
    """A folder of another kind of model ends the run before it begins, in one line that says what else there is."""
    folders = {
        "sparse_encoder": splade(tokenizer, tmp_path / "splade"),
        "token_encoder": colbert(tokenizer, tmp_path / "late"),
    }
    folders["pylate"] = pylate(tokenizer, tmp_path / "pylate")
    folders["retriever"] = released(tmp_path / "dense", tokenizer)
    for kind in (SparseEncoderConfig, TokenEncoderConfig):
        for name, folder in folders.items():
            if name not in (kind.called[0], "pylate"):
                names(
                    refused(kind, folder)[0],
                    "modules.json",
                    "retriever, sparse_encoder, token_encoder and cross_encoder",
                )
    for name in ("sparse_encoder", "token_encoder", "pylate"):
        with pytest.raises(UserError) as raised:
            RetrieverConfig(folder=folders[name], query_length=None, passage_length=None).identity()
        names(str(raised.value), ABOUT, "model_type", "sparse_encoder, token_encoder and cross_encoder are the stages")
        with pytest.raises(UserError, match="are the stages"):
            load_any_retriever(folders[name])
    plain = tmp_path / "late" / "plain"
    names(refused(TokenEncoderConfig, plain)[0], str(plain / "modules.json"), "no such file", "a ColBERT is of pylate")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory, on_beir: list[str], beir: Path) -> list[str]:
    """A recipe with both kinds of models as rows, with their own tokenizer."""
    folder = tmp_path_factory.mktemp("recipe")
    texts = [json.loads(line)["text"] for line in (beir / "corpus.jsonl").read_text().splitlines()]
    train_wordpiece(texts, 300, folder / "words")
    splade(folder / "words", folder / "splade", length=40)
    pylate(folder / "words", folder / "colbert", document_length=40)
    return [
        *on_beir,
        *("stages.corpus={stage: corpus}", f"stages.tokenizer={{stage: tokenizer, name: {folder / 'words'}}}"),
        *("stages.tokens={stage: tokens}", "stages.bm25={stage: bm25}"),
        f"stages.splade={{stage: sparse_encoder, folder: {folder / 'splade' / 'saved'}}}",
        f"stages.colbert={{stage: token_encoder, folder: {folder / 'colbert'}}}",
        "table.rows={BM25: bm25, SPLADE: splade, ColBERT: colbert}",
        *("logger=csv", "trainer=cpu", "trainer.precision=fp32"),
        f"output_root={folder / 'out'}",
    ]


def test_both_are_rows_by_their_folder_and_get_an_index(recipe: list[str]) -> None:
    planned = run_command(*recipe, "dry_run=true").sound()
    rows = costs(planned.out)
    assert {"splade.index", "colbert.index", "splade", "colbert"} <= set(rows)
    assert "unknown" not in " ".join(rows["splade"] + rows["colbert"]), "their sizes are known before the run"
    done = run_command(*recipe).sound()
    assert list(metrics_of(done.folder)) == ["BM25", "SPLADE", "ColBERT"]
    kinds = {Artifact((done.folder / "stages" / f"{name}.index").resolve()).kind for name in ("splade", "colbert")}
    assert kinds == {"splade_index", "late_interaction_index"}
    assert not run_command(*recipe).sound().computed


def test_its_id_is_of_the_content_and_not_of_the_path(recipe: list[str], tmp_path: Path) -> None:
    folder = Path(recipe[-1].partition("=")[2]).parent / "colbert"
    shutil.copytree(folder, tmp_path / "moved")
    moved, same = (TokenEncoderConfig(folder=one).identified_by({}) for one in (tmp_path / "moved", folder))
    assert moved == same
    changed(tmp_path / "moved" / ABOUT, query_length=20)
    assert TokenEncoderConfig(folder=tmp_path / "moved").identified_by({}) != same


@pytest.mark.parametrize(
    ("override", "place", "words"),
    [
        ("stages.splade.folder=./there", "stage.sparse_encoder.folder", ["no such folder", "a trained SPLADE"]),
        ("stages.colbert.folder=./there", "stage.token_encoder.folder", ["no such folder", "a trained ColBERT"]),
        ("stages.colbert.passage_length=2", "stages.colbert.passage_length", ["4"]),
        ("stages.colbert.passage_length=300", "stages.colbert.passage_length", ["300 is too large", "200 positions"]),
    ],
)
def test_what_cannot_be_is_one_line(recipe: list[str], override: str, place: str, words: list[str]) -> None:
    one_line(run_command(*recipe, override), place, *words)


def test_a_hub_name_without_network_is_one_line(recipe: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    one_line(run_command(*recipe, "stages.splade.folder=nobody/has-this", "table.rows={S: splade}"), "nobody/has-this")


@pytest.mark.parametrize("name", ["splade", "colbert"])
def test_tokens_of_another_tokenizer_are_one_line(recipe: list[str], name: str, tmp_path: Path) -> None:
    train_wordpiece([*QUERIES, *PASSAGES] * 5, 120, tmp_path / "others", warn=False)
    others = f"stages.others={{stage: tokenizer, name: {tmp_path / 'others'}}}"
    kind = {"splade": "splade_index", "colbert": "late_interaction_index"}[name]
    index = f"stages.index={{stage: {kind}, model: {name}, tokens: read}}"
    read = "stages.read={stage: tokens, tokenizer: others}"
    done = run_command(*recipe, others, read, index, "table.rows={X: index}")
    one_line(done, "stages.index.tokens", "tokenised with another tokenizer", "name those of the model")
