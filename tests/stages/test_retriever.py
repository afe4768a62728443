"""A retriever from elsewhere is taken as it is, and known by its content."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import torch
from error_lines import names
from single_stage import inputs, run_stage
from transformers import AutoModel, BertConfig, BertForMaskedLM, BertModel

from condensery import BiEncoderModule, CondenserModule, CrossEncoderModule
from condensery.errors import UserError
from condensery.models.checkpoints.backbone import load_masked_language_model
from condensery.models.checkpoints.metadata import FAMILY_NAMES
from condensery.models.checkpoints.retrievers import load_retriever
from condensery.models.families import FAMILIES
from condensery.models.precision import inference, with_cast_weights
from condensery.retrieval.searchers.retriever import Retriever
from condensery.stages.released.config import RetrieverConfig
from condensery.system.files import read_json, write_json
from condensery.tokens.tokenizer import load_tokenizer, train_wordpiece
from condensery.tokens.vocabulary import Vocabulary


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A BERT of two layers as transformers saves it."""
    tokenizer = load_tokenizer(inputs(tmp_path)["tokenizer"])
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=40, **sizes)
    BertModel(config, add_pooling_layer=False).save_pretrained(tmp_path / "checkpoint")
    tokenizer.save_pretrained(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def test_a_plain_checkpoint_becomes_a_retriever_with_the_lengths_that_are_given(
    checkpoint: Path, tmp_path: Path
) -> None:
    lengths = {"query_length": 16, "passage_length": 40}
    assert run_stage("retriever", tmp_path / "made", {}, folder=checkpoint, **lengths) == lengths
    found = load_retriever(tmp_path / "made")
    assert (found.query_length, found.passage_length) == (16, 40)
    ours, theirs = found.model.passage.model.state_dict(), AutoModel.from_pretrained(checkpoint).state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    again = run_stage("retriever", tmp_path / "again", {}, folder=tmp_path / "made", passage_length=20)
    assert again == {"query_length": 16, "passage_length": 20}


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ({"query_length": 16}, "does not record its lengths; set stages.retriever.query_length and stages"),
        ({"query_length": 16, "passage_length": 41}, "passage_length: 41 is too large; the model has 40 positions"),
    ],
)
def test_lengths_that_cannot_be_are_said(
    checkpoint: Path, tmp_path: Path, lengths: dict[str, int], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        run_stage("retriever", tmp_path / "made", {}, folder=checkpoint, **lengths)


def config_of(folder: Path, **lengths: int | None) -> RetrieverConfig:
    return RetrieverConfig(folder=folder, **{"query_length": None, "passage_length": None, **lengths})


def test_lengths_that_nobody_gives_are_said_before_the_run(checkpoint: Path) -> None:
    assert config_of(checkpoint, query_length=16, passage_length=40).input_error({}) is None
    assert config_of(Path("owner/name")).input_error({}) is None, "the hub's files are not here yet"
    for lengths, key in (({}, "query_length"), ({"query_length": 16}, "passage_length")):
        found = config_of(checkpoint, **lengths).input_error({})
        assert found is not None
        assert found[0] == key
        names(found[1], str(checkpoint), "query_length and passage_length")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            lambda folder: (folder / "config.json").rename(folder / "modules.json"),
            ["modules.json: not in the form that sentence-transformers writes"],
        ),
        (
            lambda folder: (folder / "model.safetensors").unlink(),
            ["has no weights; copy model.safetensors or pytorch_model.bin into it"],
        ),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), ["adapter_config.json", "merge"]),
        (
            lambda folder: write_json(folder / "config.json", {"model_type": "t5"}),
            ['model_type is "t5"', "bert, roberta"],
        ),
        (lambda folder: write_json(folder / "config.json", {"model_type": ["t5"]}), ["model_type is", "bert, roberta"]),
    ],
)
def test_what_no_retriever_can_be_loaded_from_is_said_before_the_run(
    checkpoint: Path, damage: Callable[[Path], object], words: list[str]
) -> None:
    config_of(checkpoint).identity()
    damage(checkpoint)
    with pytest.raises(UserError) as raised:
        config_of(checkpoint).identity()
    names(str(raised.value), str(checkpoint), *words)
    with pytest.raises(UserError, match=words[0]):
        config_of(checkpoint).input_error({})


def test_an_encoder_without_its_config_is_said_before_the_run(checkpoint: Path, tmp_path: Path) -> None:
    old = as_formerly(checkpoint, tmp_path / "old", "sentence_bert_config.json", max_seq_length=24)
    (old / "0_Transformer" / "config.json").unlink()
    with pytest.raises(UserError, match=r"0_Transformer/config\.json: no such file; give a folder with a checkpoint"):
        config_of(old).identity()


def test_the_families_that_are_checked_before_the_run_are_those_that_can_be_loaded() -> None:
    assert list(FAMILIES) == [*FAMILY_NAMES]


def as_formerly(checkpoint: Path, folder: Path, name: str, **settings: object) -> Path:
    """Lay out a checkpoint as older versions of sentence-transformers did: with the encoder in a subfolder."""
    copytree(checkpoint, folder / "0_Transformer")
    write_json(folder / "0_Transformer" / name, settings)
    kinds = {"0_Transformer": "Transformer", "1_Pooling": "Pooling"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    write_json(folder / "modules.json", [{"idx": at, "name": str(at), **one} for at, one in enumerate(modules)])
    (folder / "1_Pooling").mkdir()
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True})
    return folder


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
def test_an_encoder_in_a_subfolder_is_read_with_its_tokenizer_and_its_length(
    checkpoint: Path, tmp_path: Path, kind: str
) -> None:
    old = as_formerly(checkpoint, tmp_path / "old", f"sentence_{kind}_config.json", max_seq_length=24)
    assert run_stage("retriever", tmp_path / "made", {}, folder=old)["passage_length"] == 24
    ours = Retriever(old, precision="fp32").encode_queries(["bees dance in the sun", "iron"])
    library = pytest.importorskip("sentence_transformers")
    theirs = library.SentenceTransformer(str(old), device="cpu").encode(["bees dance in the sun", "iron"])
    assert np.abs(ours - theirs).max() < 1e-5


def test_a_length_beyond_the_positions_is_cut_as_sentence_transformers_cuts_it(
    checkpoint: Path, tmp_path: Path
) -> None:
    old = as_formerly(checkpoint, tmp_path / "old", "sentence_bert_config.json", max_seq_length=1024)
    about = run_stage("retriever", tmp_path / "made", {}, folder=old)
    assert (about["query_length"], about["passage_length"]) == (40, 40)


def test_texts_that_only_the_library_makes_lower_case_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    settings = {"max_seq_length": 24, "do_lower_case": True}
    small = as_formerly(checkpoint, tmp_path / "small", "sentence_bert_config.json", **settings)
    config_of(small).identity()
    cased = as_formerly(checkpoint, tmp_path / "cased", "sentence_bert_config.json", **settings)
    file = cased / "0_Transformer" / "tokenizer.json"
    tokenizer = read_json(file)
    tokenizer["normalizer"] = {"type": "NFC"}
    write_json(file, tokenizer)
    with pytest.raises(UserError) as raised:
        config_of(cased).identity()
    names(str(raised.value), str(cased / "0_Transformer" / "sentence_bert_config.json"), "do_lower_case", str(file))
    library = pytest.importorskip("sentence_transformers")
    library.SentenceTransformer(str(cased), device="cpu").save(str(tmp_path / "saved"))
    config_of(tmp_path / "saved").identity()


def test_the_case_that_counts_is_that_of_the_tokens(checkpoint: Path, tmp_path: Path) -> None:
    """The normaliser in tokenizer.json does not decide where transformers builds the tokenizer from its vocabulary."""
    old = as_formerly(checkpoint, tmp_path / "old", "sentence_bert_config.json", max_seq_length=24, do_lower_case=True)
    inner = old / "0_Transformer"
    words = read_json(inner / "tokenizer.json")["model"]["vocab"]
    (inner / "vocab.txt").write_text("\n".join([*sorted(words, key=words.__getitem__), ""]))
    (inner / "tokenizer.json").unlink()
    for lowercase in (True, False):
        write_json(inner / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "do_lower_case": lowercase})
        if lowercase:
            config_of(old).identity()
    with pytest.raises(UserError, match=f"do_lower_case is true, but {inner} keeps capitals"):
        config_of(old).identity()


def other_tokenizer(folder: Path) -> None:
    train_wordpiece(["Pack my box with five dozen liquor jugs, and judge my vow: sphinx of black quartz."], 100, folder)


def test_texts_that_were_split_by_another_tokenizer_are_not_encoded(checkpoint: Path, tmp_path: Path) -> None:
    corpus, tokens, encoder = (tmp_path / name for name in ("corpus", "tokens", "encoder"))
    other_tokenizer(tmp_path / "other")
    run_stage("tokens", tokens, {"corpus": corpus, "tokenizer": tmp_path / "other"})
    run_stage("retriever", encoder, {}, folder=checkpoint, query_length=16, passage_length=40)
    said = "stages.encode: start: the texts were tokenised with another tokenizer than its own; set backbone.tokenizer"
    said += " to the encoder's own"
    with pytest.raises(UserError, match=said):
        run_stage("encode", tmp_path / "vectors", {"model": encoder, "tokens": tokens, "corpus": corpus}, model="start")


def test_a_checkpoint_is_not_trained_on_the_tokens_of_another_tokenizer(checkpoint: Path, tmp_path: Path) -> None:
    other_tokenizer(tmp_path / "other")
    ours, other = (Vocabulary.of(load_tokenizer(tmp_path / name)) for name in ("tokenizer", "other"))
    load_masked_language_model(checkpoint, ours)
    with pytest.raises(
        UserError, match=r"another tokenizer than its own; use the checkpoint's own tokenizer \(backbone\.tokenizer\)"
    ):
        load_masked_language_model(checkpoint, other)


def test_it_is_known_by_its_content_wherever_it_lies(checkpoint: Path, tmp_path: Path) -> None:
    def identity(folder: Path) -> list[str]:
        return RetrieverConfig(folder=folder, query_length=None, passage_length=None).identity()

    before = identity(checkpoint)
    (tmp_path / "logs").mkdir()  # a folder of logs within a checkpoint does not count; one above it must not matter
    checkpoint.rename(tmp_path / "logs" / "moved")
    assert identity(tmp_path / "logs" / "moved") == before
    (tmp_path / "logs" / "moved").rename(tmp_path / "moved")
    assert identity(tmp_path / "moved") == before
    weights = tmp_path / "moved" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert identity(tmp_path / "moved") != before
    with pytest.raises(UserError, match="no such folder"):
        identity(checkpoint)


def test_a_run_on_the_cpu_leaves_a_gpu_alone(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # there is none: whoever takes it fails
    corpus, tokens, encoder, vectors = (tmp_path / name for name in ("corpus", "tokens", "encoder", "vectors"))
    run_stage("tokens", tokens, {"corpus": corpus, "tokenizer": tmp_path / "tokenizer"})
    run_stage("retriever", encoder, {}, folder=checkpoint, query_length=16, passage_length=40)
    run_stage("encode", vectors, {"model": encoder, "tokens": tokens, "corpus": corpus})
    write_json(vectors / "manifest.json", {"makes": "encoder", "inputs": {}})
    assert run_stage("mine", tmp_path / "mined", {"corpus": corpus, "retriever": vectors}, depth=3)["queries"] > 0


@pytest.mark.parametrize(
    ("pooling", "similarity", "further", "place", "words"),
    [
        (("cls", "mean"), "dot", [], "1_Pooling/config.json", ["cls, mean", "weighted_mean"]),
        ("mean", "euclidean", [], "config_sentence_transformers.json", ["'euclidean'"]),
        ("cls", "dot", ["WeightedLayerPooling"], "modules.json", ["'WeightedLayerPooling'"]),
    ],
)
def test_a_folder_of_sentence_transformers_that_makes_vectors_in_an_unknown_way_is_refused(
    checkpoint: Path,
    tmp_path: Path,
    pooling: str | tuple[str, ...],
    similarity: str,
    further: list[str],
    place: str,
    words: list[str],
) -> None:
    modules = pytest.importorskip("sentence_transformers.models")
    library = pytest.importorskip("sentence_transformers")
    transformer = modules.Transformer(str(checkpoint), max_seq_length=24)
    pooled = modules.Pooling(transformer.get_embedding_dimension(), pooling_mode=pooling)
    behind = [getattr(modules, kind)(32) for kind in further]
    model = library.SentenceTransformer(modules=[transformer, pooled, *behind], device="cpu")
    model.similarity_fn_name = similarity
    model.save(str(tmp_path / "saved"))
    lengths: dict[str, int | None] = {"query_length": 16, "passage_length": None}
    with pytest.raises(UserError) as raised:
        RetrieverConfig(folder=tmp_path / "saved", **lengths).identity()
    names(str(raised.value), f"{tmp_path / 'saved'}/{place}", *words)
    with pytest.raises(UserError, match="supported are the poolings"):
        run_stage("retriever", tmp_path / "made", {}, folder=tmp_path / "saved", **lengths)


def test_a_name_on_the_hub_is_known_by_its_name_and_revision() -> None:
    def config(folder: str, revision: str | None = None) -> RetrieverConfig:
        return RetrieverConfig(folder=Path(folder), revision=revision, query_length=None, passage_length=None)

    assert config("somebody/model").identity() == ["hub somebody/model"]
    assert "revision" in config("somebody/model").by_content()
    assert "revision" not in config("somebody/model", "v2").by_content()
    with pytest.raises(UserError, match="no such folder"):
        config("outputs/artifacts/finetune/1234").identity()


def test_weights_that_are_cast_once_give_the_bits_of_weights_that_are_cast_for_each_chunk(checkpoint: Path) -> None:
    model = BertForMaskedLM.from_pretrained(checkpoint)  # its output projection shares the weights of the embedding
    ids = torch.randint(5, 20, (3, 9))
    with inference("cpu", "bf16"):
        wanted = model.eval()(input_ids=ids).logits
    ready = with_cast_weights(model, "bf16")
    with inference("cpu", "bf16"):
        assert torch.equal(ready(input_ids=ids).logits, wanted)
    ours, theirs = (dict(one.named_parameters(remove_duplicate=False)) for one in (ready, model))
    cast = {name for name, weight in ours.items() if weight.dtype == torch.bfloat16}
    assert {name for name, weight in ours.items() if weight is not theirs[name]} == cast
    assert any("query.weight" in name for name in cast)
    assert not any("embeddings" in name for name in cast)
    assert with_cast_weights(model, "fp32") is model


def test_a_retriever_whose_weights_or_settings_change_encodes_with_the_new_ones(checkpoint: Path) -> None:
    texts, vectors = ["bees dance in the sun", "iron"], {"normalise": True}
    retriever = Retriever(checkpoint, precision="bf16")
    before = retriever.encode_passages(texts)
    assert np.array_equal(
        Retriever(retriever.model, tokenizer=checkpoint, precision="bf16").encode_passages(texts), before
    )
    with torch.no_grad():
        for weight in retriever.model.parameters():
            weight.mul_(1.5)
    changed = retriever.encode_passages(texts)
    assert np.array_equal(
        Retriever(retriever.model, tokenizer=checkpoint, precision="bf16").encode_passages(texts), changed
    )
    assert not np.array_equal(changed, before)
    retriever.model.passage.settings = replace(retriever.model.settings, **vectors)
    np.testing.assert_allclose(np.linalg.norm(retriever.encode_passages(texts), axis=1), 1.0, rtol=1e-2)
    retriever.precision = "fp32"
    assert np.array_equal(
        retriever.encode_passages(texts),
        Retriever(retriever.model, tokenizer=checkpoint, precision="fp32").encode_passages(texts),
    )
    retriever.model.train()
    again = retriever.encode_passages(texts)
    assert np.array_equal(retriever.encode_passages(texts), again)
    assert retriever.model.training


@pytest.mark.parametrize(
    ("opened", "said"),
    [
        (Retriever, "Retriever: source"),
        (BiEncoderModule, "BiEncoderModule: model"),
        (CondenserModule, "model"),
        (CrossEncoderModule, "CrossEncoderModule: model"),
    ],
)
def test_a_name_that_cannot_be_reached_names_the_argument_in_python(opened: Callable[[str], Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        opened("nobody/none")
    names(str(caught.value), said, "cannot load 'nobody/none'", "a hub name that this machine can reach")
    assert "backbone" not in str(caught.value)
