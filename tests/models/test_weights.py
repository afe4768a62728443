"""Every loader has all tensors of a checkpoint and no others, or says which; published checkpoints stay readable."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import textbook
import torch
from safetensors.torch import load_file, save_file
from slow import slow_except
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForSequenceClassification,
    BertModel,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaModel,
    T5Config,
    T5ForConditionalGeneration,
)

from condensery.errors import UserError
from condensery.models.checkpoints.backbone import load_masked_language_model
from condensery.models.checkpoints.pretraining import (
    load_condenser,
    load_masked_autoencoder,
    save_pretraining_model,
)
from condensery.models.checkpoints.retrievers import (
    SavedRetriever,
    load_biencoder,
    load_encoder,
    load_retriever,
    save_retriever,
)
from condensery.models.checkpoints.weights import quiet
from condensery.models.condenser import Condenser, CondenserShape
from condensery.models.cross_encoder import Reranker, load_cross_encoder, load_reranker, save_cross_encoder
from condensery.models.generator import load_generator
from condensery.models.masked_autoencoder import MaskedAutoEncoder, decoder_shape

SIZES: dict[str, Any] = {
    "vocab_size": textbook.SIZE,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
}
WORDS = textbook.vocabulary()
Tensors = dict[str, torch.Tensor]


def language_model(source: Path) -> Any:
    return load_masked_language_model(source, WORDS)


LOADERS: dict[str, Callable[[Path], Any]] = {
    "language model": language_model,
    "condenser": lambda source: load_condenser(source, WORDS, 1, None, True, None),
    "autoencoder": lambda source: load_masked_autoencoder(source, WORDS, decoder_shape("masked"), "random", None),
    "encoder": load_encoder,
    "retriever": load_biencoder,
    "cross-encoder": load_cross_encoder,
    "generator": lambda source: load_generator(source, "stages.x.model"),
}
READS_BERT = [name for name in LOADERS if name != "generator"]


def saved(model: Any, folder: Path, seed: int = 0) -> Path:
    """The model with weights of its own everywhere, as the library saves it."""
    torch.manual_seed(seed)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return folder


def bert(folder: Path, family: Any = BertForMaskedLM, **changes: Any) -> Path:
    return saved(family(BertConfig(**{**SIZES, **changes})), folder)


def t5(folder: Path) -> Path:
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}
    return saved(T5ForConditionalGeneration(T5Config(vocab_size=textbook.SIZE, **sizes)), folder)


def checkpoint(loader: str, folder: Path) -> Path:
    """One that the loader reads, but for the tokenizer of a generator, which is read last."""
    return t5(folder) if loader == "generator" else bert(folder)


def rewrite(folder: Path, change: Callable[[Tensors], Tensors]) -> None:
    file = folder / "model.safetensors"
    save_file({k: v.contiguous() for k, v in change(load_file(file)).items()}, file, {"format": "pt"})


def configure(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def refused(load: Callable[[Path], Any], folder: Path, match: str) -> None:
    with pytest.raises(UserError, match=match) as raised:
        load(folder)
    assert str(folder) in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 700


@pytest.mark.parametrize("loader", LOADERS)
def test_tensors_with_other_names_are_refused(loader: str, tmp_path: Path) -> None:
    folder = checkpoint(loader, tmp_path / "model")
    rewrite(folder, lambda tensors: {f"other.{name}": value for name, value in tensors.items()})
    refused(LOADERS[loader], folder, r"\d\d missing \(\S+, \S+, \S+, \.\.\.\), \d\d surplus \(other\.\S+, .*\.\.\.\)$")


@pytest.mark.parametrize(
    ("layers", "said"), [(4, r"\d+ missing \(\S+(layer|block)\.2\."), (1, r"\d+ surplus \(\S+(layer|block)\.1\.")]
)
@pytest.mark.parametrize("loader", LOADERS)
def test_more_or_fewer_layers_than_the_config_says_are_refused(
    loader: str, layers: int, said: str, tmp_path: Path
) -> None:
    folder = checkpoint(loader, tmp_path / "model")
    configure(folder, **{"num_layers" if loader == "generator" else "num_hidden_layers": layers})
    refused(LOADERS[loader], folder, f"describes: {said}")


@pytest.mark.parametrize("loader", LOADERS)
def test_tensors_of_another_shape_are_refused(loader: str, tmp_path: Path) -> None:
    folder = checkpoint(loader, tmp_path / "model")
    configure(folder, **({"d_ff": 24} if loader == "generator" else {"intermediate_size": 24}))
    refused(LOADERS[loader], folder, r"\d+ of another shape \(.* (32|32x16|16x32) instead of (24|24x16|16x24)")


@pytest.mark.parametrize(
    ("dtype", "pickled", "named"),
    [
        (torch.int8, False, r"model\.safetensors: the weights \S+ are of the type I8"),
        (torch.float8_e4m3fn, False, r"model\.safetensors: the weights \S+ are of the type F8_E4M3"),
        (torch.int8, True, r"pytorch_model\.bin: the weights \S+ are of the type int8"),
        (torch.float8_e5m2, True, r"pytorch_model\.bin: the weights \S+ are of the type float8_e5m2"),
    ],
)
@pytest.mark.parametrize("loader", LOADERS)
def test_quantised_weights_without_their_scales_are_refused(
    loader: str, dtype: torch.dtype, pickled: bool, named: str, tmp_path: Path
) -> None:
    folder = checkpoint(loader, tmp_path / "model")
    rewrite(folder, lambda tensors: {name: (value * 9).to(dtype) for name, value in tensors.items()})
    if pickled:
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    refused(LOADERS[loader], folder, named)


@pytest.mark.parametrize("loader", READS_BERT)
def test_one_tensor_that_is_missing_is_named(loader: str, tmp_path: Path) -> None:
    folder = checkpoint(loader, tmp_path / "model")
    gone = "bert.encoder.layer.1.attention.self.key.bias"
    rewrite(folder, lambda tensors: {name: value for name, value in tensors.items() if name != gone})
    refused(LOADERS[loader], folder, r": 1 missing \(\S*encoder\.layer\.1\.attention\.self\.key\.bias\)$")


@pytest.mark.parametrize("loader", ["language model", "condenser", "autoencoder"])
def test_half_of_a_head_is_refused(loader: str, tmp_path: Path) -> None:
    folder = bert(tmp_path / "model")
    gone = "cls.predictions.transform.dense.weight"
    rewrite(folder, lambda tensors: {name: value for name, value in tensors.items() if name != gone})
    refused(LOADERS[loader], folder, rf": 1 missing \({gone}\)$")


def test_a_pooler_without_the_head_behind_it_is_no_cross_encoder_and_the_other_way_round(tmp_path: Path) -> None:
    folder = bert(tmp_path / "model", BertForSequenceClassification, num_labels=1)
    rewrite(folder, lambda tensors: {name: value for name, value in tensors.items() if "pooler" not in name})
    refused(load_cross_encoder, folder, r": 2 missing \(bert\.pooler\.dense\.bias, bert\.pooler\.dense\.weight\)$")


@pytest.mark.parametrize("loader", READS_BERT)
def test_a_projection_that_nobody_would_apply_is_refused(loader: str, tmp_path: Path) -> None:
    folder = bert(tmp_path / "model")
    rewrite(folder, lambda tensors: {**tensors, "linear.weight": torch.ones(8, 16)})
    refused(LOADERS[loader], folder, r": 1 surplus \(linear\.weight\)$")


def published(kind: str, folder: Path) -> Path:
    """A small checkpoint as those on the hub are, in what they have besides or otherwise."""
    if kind in ("bare roberta", "roberta"):
        family = RobertaModel if kind == "bare roberta" else RobertaForMaskedLM
        return saved(family(RobertaConfig(**SIZES, type_vocab_size=1)), folder)
    families = {"pre-training": BertForPreTraining, "bare": BertModel, "classifier": BertForSequenceClassification}
    bert(folder, families.get(kind, BertForMaskedLM))
    if kind == "gamma and beta":  # as converted from TensorFlow
        new = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}

        def named(name: str) -> str:
            return next((name.replace(old, other) for old, other in new.items() if old in name), name)

        rewrite(folder, lambda tensors: {named(name): value for name, value in tensors.items()})
    elif kind == "position ids":
        rewrite(folder, lambda tensors: {**tensors, "bert.embeddings.position_ids": torch.arange(40)[None]})
    elif kind == "decoder beside the embeddings":
        words, bias = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
        own = {"cls.predictions.decoder.weight": words, "cls.predictions.decoder.bias": bias}
        rewrite(folder, lambda tensors: {**tensors, **{name: tensors[of].clone() for name, of in own.items()}})
    elif kind == "half precision":
        rewrite(folder, lambda tensors: {name: value.half() for name, value in tensors.items()})
    elif kind == "pickled":
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    elif kind == "shards":
        BertForMaskedLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="10KB")
        (folder / "model.safetensors").unlink()
    return folder


KINDS = (
    *("pre-training", "bare", "classifier", "gamma and beta", "position ids", "decoder beside the embeddings"),
    *("half precision", "pickled", "shards", "roberta", "bare roberta"),
)


@pytest.mark.parametrize("kind", KINDS)
def test_published_checkpoints_are_read_with_their_own_weights(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = published(kind, tmp_path / "model")
    file = folder / "model.safetensors"
    wanted = load_file(file) if file.exists() else load_file(published("plain", tmp_path / "again") / file.name)
    prefix = "roberta." if "roberta" in kind else "bert."
    wanted = {
        name.removeprefix(prefix).replace("gamma", "weight").replace("beta", "bias"): v for name, v in wanted.items()
    }
    for load in (language_model, load_encoder, load_cross_encoder):
        capsys.readouterr()
        if load is load_cross_encoder and kind == "classifier":
            continue  # it has two labels
        model: Any = load(folder)
        backbone = model.base_model if load is language_model else getattr(model, "encoder", model)
        backbone = getattr(backbone, "model", backbone)
        for name, value in backbone.state_dict().items():
            if not name.startswith("pooler."):
                assert torch.equal(value, wanted[name].float()), name
        said = capsys.readouterr().out
        if load is load_encoder:
            assert said == "", "an encoder has no part that may be new"
        elif load is load_cross_encoder:
            pooled = kind in ("pre-training", "bare") or "roberta" in kind
            head = "4" if "roberta" in kind else "2"
            wanted_line = (
                f"{folder}: the checkpoint lacks these parts, which get random weights: scoring head ({head} tensors)"
            )
            assert said == wanted_line + ("" if pooled else ", pooler (2 tensors)") + "\n"
        elif kind in ("bare", "bare roberta", "classifier"):
            assert (
                said == f"{folder}: the checkpoint lacks these parts, which get random weights: MLM head (5 tensors)\n"
            )
        else:
            assert said == ""


def test_a_new_condenser_head_or_decoder_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = bert(tmp_path / "model")
    load_condenser(folder, WORDS, 1, None, True, None)
    assert capsys.readouterr().out == f"{folder}: has no Condenser head; a random one of 1 layer is used\n"
    load_masked_autoencoder(folder, WORDS, decoder_shape("masked"), "random", None)
    assert capsys.readouterr().out == f"{folder}: has no decoder; a random one of 2 layers is used\n"


def test_a_head_that_the_description_tells_of_and_that_is_gone_is_refused(
    tmp_path: Path, wordpiece: Path, words: Any
) -> None:
    model = BertForMaskedLM(BertConfig(**{**SIZES, "vocab_size": words.size}, attn_implementation="eager"))
    save_pretraining_model(Condenser(model, CondenserShape(1, 1, True)), tmp_path / "condenser", wordpiece, 12)
    save_pretraining_model(MaskedAutoEncoder(model, decoder_shape("masked")), tmp_path / "decoder", wordpiece, 12)
    (tmp_path / "condenser" / "condenser_head.safetensors").unlink()
    (tmp_path / "decoder" / "context_decoder.safetensors").unlink()
    gone = "no such file, but condensery.json describes"
    refused(lambda folder: load_condenser(folder, words, 1, None, True, None), tmp_path / "condenser", gone)
    refused(
        lambda folder: load_masked_autoencoder(folder, words, decoder_shape("masked"), "random", None),
        tmp_path / "decoder",
        gone,
    )


def retriever(folder: Path, wordpiece: Path, words: Any, separate: bool) -> Path:
    model = load_biencoder(bert(folder.parent / "start", vocab_size=words.size), separate)
    save_retriever(SavedRetriever(model, 8, 12), folder, wordpiece)
    return folder


def test_towers_that_the_description_does_not_know_of_are_refused(tmp_path: Path, wordpiece: Path, words: Any) -> None:
    import shutil

    one = retriever(tmp_path / "one", wordpiece, words, separate=False)
    two = retriever(tmp_path / "two", wordpiece, words, separate=True)
    shutil.copytree(two / "query_encoder", one / "query_encoder")
    refused(
        load_retriever, one, r"query_encoder: one tower encodes queries and passages, according to condensery\.json"
    )
    shutil.rmtree(two / "query_encoder")
    refused(load_retriever, two, r"query_encoder: no such folder, but condensery\.json says")


ABOUTS = [
    {},
    [],
    None,
    3,
    {"query_length": 8},
    *({"query_length": bad, "passage_length": 12} for bad in (None, "a", 0, -1)),
]


@pytest.mark.parametrize(
    "about", [*ABOUTS, {"query_length": True, "passage_length": 12}, {"towers": [1]}, {"shape": 3}]
)
def test_a_description_that_says_something_else_is_one_line(
    about: Any, tmp_path: Path, wordpiece: Path, words: Any
) -> None:
    folder = retriever(tmp_path / "one", wordpiece, words, separate=False)
    (folder / "condensery.json").write_text(json.dumps(about))
    refused(load_retriever, folder, r"condensery\.json: ")
    save_cross_encoder(Reranker(load_cross_encoder(folder.parent / "start"), 8, 12, 1), tmp_path / "cross", wordpiece)
    load_reranker(tmp_path / "cross")
    (tmp_path / "cross" / "condensery.json").write_text(json.dumps(about))
    refused(load_reranker, tmp_path / "cross", r"condensery\.json: ")
    if not isinstance(about, dict) or "shape" in about:
        refused(lambda source: load_condenser(source, words, 1, None, True, None), folder, r"condensery\.json: ")


def test_a_saved_cross_encoder_without_its_head_is_refused(tmp_path: Path, wordpiece: Path, words: Any) -> None:
    bert(tmp_path / "start", vocab_size=words.size)
    save_cross_encoder(Reranker(load_cross_encoder(tmp_path / "start"), 8, 12, 1), tmp_path / "cross", wordpiece)
    rewrite(tmp_path / "cross", lambda tensors: {k: v for k, v in tensors.items() if not k.startswith("classifier.")})
    refused(load_reranker, tmp_path / "cross", r"2 missing \(classifier\.bias, classifier\.weight\)")


# by kind of loader: what a value in config.json may be, and what is said
BAD = (None, "abc", 0, -1, 10**12, 1.5, [], [2], {}, True, "", "0", 1e300, 10**400)


def complaint(load: Callable[[Path], Any], folder: Path) -> str:
    """The one line of a loader that refuses a folder; empty where it takes it."""
    try:
        load(folder)
    except UserError as error:
        line = str(error)
    else:
        return ""
    assert "\n" not in line
    assert len(line) < 900
    assert str(folder) in line
    return line


def fuzz(load: Callable[[Path], Any], folder: Path, extra: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """Mutate each key of ``config.json``; what is said by key. Anything but a line is an error."""
    file = folder / "config.json"
    sound = json.loads(file.read_text())
    said: dict[str, list[str]] = {}
    for key in (*sound, *extra):
        for value in BAD:
            file.write_text(json.dumps({**sound, key: value}))
            if line := complaint(load, folder):
                said.setdefault(key, []).append(line)
    file.write_text(json.dumps(sound))
    return said


@pytest.mark.parametrize("family", ["bert", pytest.param("roberta", marks=pytest.mark.slow)])
@pytest.mark.parametrize("loader", slow_except(["language model", "encoder", "cross-encoder"], "encoder"))
def test_any_value_in_the_config_of_an_encoder_is_read_or_one_line(family: str, loader: str, tmp_path: Path) -> None:
    made = bert if family == "bert" else lambda folder: published("roberta", folder)
    folder, chunk = made(tmp_path / "model"), textbook.rows([5, 3]).chunks()[0]

    def load(source: Path) -> None:
        model = LOADERS[loader](source)
        with torch.no_grad():
            if loader == "encoder":
                assert model.train().cls(chunk).isfinite().all()
            elif loader == "cross-encoder":
                assert model.train().scores(chunk).isfinite().all()

    said = fuzz(
        load,
        folder,
        ("quantization_config", "dtype", "torch_dtype", "position_embedding_type", "is_decoder", "num_labels"),
    )
    for key, least in {"num_attention_heads": 13, "hidden_size": 13, "num_hidden_layers": 13, "model_type": 14}.items():
        assert len(said[key]) >= least, key
        assert all(f"config.json: {key} is " in line for line in said[key]), key
    for key in ("hidden_act", "dtype", "torch_dtype", "layer_norm_eps", "quantization_config"):
        assert all(f"config.json: {key} is " in line for line in said[key]), key


@pytest.mark.slow
def test_any_value_in_the_config_of_a_generator_is_read_or_one_line(tmp_path: Path, wordpiece: Path) -> None:
    from small_t5 import save_small_t5

    from condensery.models.generator import Sampling

    folder = save_small_t5(tmp_path / "model", wordpiece)
    sampling = Sampling(1, 0, 1.0, 2, 8, "", 0)

    def load(source: Path) -> None:
        load_generator(source, "stages.x.model").sample(["river"], [0], sampling)

    said = fuzz(load, folder, ("quantization_config", "torch_dtype", "num_labels"))
    for key in ("num_heads", "num_layers", "d_model", "d_kv", "model_type", "dtype"):
        assert all(f"config.json: {key} is " in line for line in said[key]), key


def test_a_model_far_larger_than_its_weights_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    folder = bert(tmp_path / "model")
    configure(folder, vocab_size=2_000_000_000)
    refused(load_encoder, folder, r"describes a model of 32,\d+,\d+,\d+ parameters, but the weights beside it have")


def test_threads_load_one_after_the_other() -> None:
    inside = threading.Event()

    def load() -> None:
        with quiet():
            inside.set()

    thread = threading.Thread(target=load)
    with quiet():
        thread.start()
        assert not inside.wait(0.2), "transformers changes a class while it loads, and would leave it changed"
    thread.join()
    assert inside.is_set()
