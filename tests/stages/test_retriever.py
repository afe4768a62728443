"""A retriever from elsewhere is taken as it is, and known by its content."""

from pathlib import Path

import pytest
import torch
from single_stage import inputs, run_stage
from transformers import AutoModel, BertConfig, BertModel

from condensery.errors import UserError
from condensery.models.checkpoint import load_retriever
from condensery.stages.retrieval.retriever import RetrieverConfig
from condensery.system.files import write_json
from condensery.tokens.tokenizer import load_tokenizer


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
        ({"query_length": 16}, "does not say its lengths; set stages.retriever.query_length and stages"),
        ({"query_length": 16, "passage_length": 41}, "passage_length: 41 is longer than its 40 positions"),
    ],
)
def test_lengths_that_cannot_be_are_said(
    checkpoint: Path, tmp_path: Path, lengths: dict[str, int], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        run_stage("retriever", tmp_path / "made", {}, folder=checkpoint, **lengths)


def test_it_is_known_by_its_content_wherever_it_lies(checkpoint: Path, tmp_path: Path) -> None:
    def identity(folder: Path) -> list[str]:
        return RetrieverConfig(folder=folder, query_length=None, passage_length=None).identity()

    before = identity(checkpoint)
    checkpoint.rename(tmp_path / "moved")
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
    ("pooling", "similarity", "further", "message"),
    [
        ("mean", "dot", [], "1_Pooling/config.json: pools by mean"),
        ("cls", "cosine", [], "compares vectors by 'cosine'"),
        ("cls", "dot", ["normalise"], "modules.json: a module 'Normalize' changes the vectors"),
        ("cls", "dot", ["dense"], "modules.json: a module 'Dense' changes the vectors"),
        ("cls", "dot", [], None),
    ],
)
def test_a_folder_of_sentence_transformers_is_taken_only_where_cls_vectors_are_compared_by_inner_product(
    checkpoint: Path, tmp_path: Path, pooling: str, similarity: str, further: list[str], message: str | None
) -> None:
    modules = pytest.importorskip("sentence_transformers.models")
    transformer = modules.Transformer(str(checkpoint), max_seq_length=24)
    parts = {"normalise": modules.Normalize, "dense": lambda: modules.Dense(32, 8)}
    pooled = modules.Pooling(transformer.get_embedding_dimension(), pooling_mode=pooling)
    library = pytest.importorskip("sentence_transformers")
    model = library.SentenceTransformer(
        modules=[transformer, pooled, *(parts[one]() for one in further)], similarity_fn_name=similarity, device="cpu"
    )
    model.save(str(tmp_path / "saved"))

    lengths: dict[str, int | None] = {"query_length": 16, "passage_length": None}
    if message is None:
        made = run_stage("retriever", tmp_path / "made", {}, folder=tmp_path / "saved", **lengths)
        assert made == {"query_length": 16, "passage_length": 24}
        return
    with pytest.raises(UserError, match=message):
        RetrieverConfig(folder=tmp_path / "saved", **lengths).identity()
    with pytest.raises(UserError, match=message):
        run_stage("retriever", tmp_path / "made", {}, folder=tmp_path / "saved", **lengths)
