"""Small SPLADEs and ColBERTs as others save them, and what their tests share."""

import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder
from sentence_transformers import SparseEncoder as TheirSplade
from sentence_transformers import models as modules
from sentence_transformers.base.modules.transformer import Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sparse_encoder.modules import SpladePooling
from single_stage import run_stage
from textbook import language_model
from tokenizers import AddedToken
from torch import Tensor
from transformers import BertConfig, BertModel, ModernBertConfig, ModernBertModel

from condensery.baselines.released.config import SparseEncoderConfig
from condensery.errors import UserError
from condensery.system.files import read_json, write_json
from condensery.tokens.batches import chunks, flatten
from condensery.tokens.tokenizer import load_tokenizer
from condensery.tokens.vocabulary import Vocabulary, with_special

QUERIES = ["read a file", "open the door of the house, please", "a file"]
PASSAGES = ["Read a json file. Then write it!", "the door (of the house) is open", "please, please read the door", "a"]
QUERY_LENGTH, PASSAGE_LENGTH = 12, 9
ABOUT = "config_sentence_transformers.json"


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


def splade(tokenizer: Path, folder: Path, family: str = "bert", activation: str = "relu", length: int = 7) -> Path:
    """A SPLADE as sentence-transformers saves it into ``folder``/saved; ``folder``/plain is its language model."""
    read = load_tokenizer(tokenizer)
    language_model(family, size=len(read)).float().save_pretrained(folder / "plain")
    read.save_pretrained(folder / "plain")
    transformer = Transformer(str(folder / "plain"), transformer_task="fill-mask", max_seq_length=length)
    pooling: Any = SpladePooling("max", activation)  # type: ignore[arg-type]
    TheirSplade(modules=[transformer, pooling], device="cpu").save(str(folder / "saved"))
    return folder / "saved"


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


def hf_colbert(tokenizer: Path, folder: Path, pickled: bool = False, **settings: Any) -> Path:
    """A ColBERT as its authors' code saves it: one file with the weights of BERT and of the layer, and its metadata."""
    backbone(tokenizer, folder, ["[unused0]", "[unused1]"], rstrip=False)
    changed(folder / "config.json", architectures=["HF_ColBERT"])
    weights = {f"bert.{name}": value for name, value in load_file(folder / "model.safetensors").items()}
    weights["linear.weight"] = torch.nn.init.normal_(torch.empty(6, 16), 0.1, 0.4)
    (folder / "model.safetensors").unlink()
    if pickled:
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    about = {"dim": 6, "query_maxlen": QUERY_LENGTH, "doc_maxlen": PASSAGE_LENGTH, "similarity": "cosine"}
    marked = {"query_token_id": "[unused0]", "doc_token_id": "[unused1]"}
    write_json(folder / "artifact.metadata", {**about, **marked, **settings})
    return folder


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
