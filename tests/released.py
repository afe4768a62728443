"""Small retrievers of all kinds of released checkpoints, made and saved with sentence-transformers."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    CamembertConfig,
    CamembertModel,
    DistilBertConfig,
    DistilBertModel,
    ElectraConfig,
    ElectraModel,
    ModernBertConfig,
    ModernBertModel,
    MPNetConfig,
    MPNetModel,
    PreTrainedModel,
    RobertaConfig,
    RobertaModel,
    XLMRobertaConfig,
    XLMRobertaModel,
)

SIZE = 16  # hidden size
PROMPTS = {"query": "river: ", "document": "sea and stones: "}
SEVERAL = [
    ("Dense", {"out_features": 24, "bias": True, "activation_function": torch.nn.GELU()}),
    ("Dense", {"out_features": 10, "bias": False, "activation_function": torch.nn.Identity()}),
]
ANCE = [
    ("Dense", {"out_features": 12, "activation_function": torch.nn.Identity()}),
    ("LayerNorm", {"dimension": 12}),
]
FAMILIES: dict[str, tuple[Any, Any]] = {
    "bert": (BertConfig, BertModel),
    "roberta": (RobertaConfig, RobertaModel),
    "xlm-roberta": (XLMRobertaConfig, XLMRobertaModel),
    "camembert": (CamembertConfig, CamembertModel),
    "mpnet": (MPNetConfig, MPNetModel),
    "electra": (ElectraConfig, ElectraModel),
    "distilbert": (DistilBertConfig, DistilBertModel),
    "modernbert": (ModernBertConfig, ModernBertModel),
}
KINDS: dict[str, dict[str, Any]] = {
    **{f"pooled by {mode}": {"pooling": mode} for mode in ("cls", "mean", "max", "lasttoken", "weightedmean")},
    "the root of the length": {"pooling": "mean_sqrt_len_tokens", "behind": [("Normalize", {})]},
    "one Dense": {"behind": [("Dense", {"out_features": 8})]},
    "several Dense, then normalised": {"behind": [*SEVERAL, ("Normalize", {})]},
    "Dense, then LayerNorm, as ANCE": {"pooling": "cls", "behind": ANCE},
    "normalised, LayerNorm, normalised": {
        "behind": [("Normalize", {}), ("LayerNorm", {"dimension": SIZE}), ("Normalize", {})]
    },
    "normalised, then Dense": {"behind": [("Normalize", {}), *SEVERAL[:1]]},
    "cut": {"truncate_dim": 6, "pooling": "lasttoken"},
    "cut, by cosine": {"truncate_dim": 6, "similarity": "cosine", "behind": [("Normalize", {})]},
    "normalised, then cut": {"truncate_dim": 6, "behind": [("Normalize", {})]},
    "Dense, cut, by cosine": {"truncate_dim": 5, "similarity": "cosine", "behind": SEVERAL},
    "cut to more than there is": {"truncate_dim": 99},
}


def released(
    folder: Path,
    tokenizer: Path,
    *,
    pooling: str = "mean",
    behind: Sequence[tuple[str, dict[str, Any]]] = (),
    similarity: str = "dot",
    truncate_dim: int | None = None,
    dtype: torch.dtype = torch.float32,
    language_model: bool = False,
    prompts: dict[str, str] = PROMPTS,
    length: int = 14,
    family: str = "bert",
    positions: int = 40,
) -> Path:
    """Save a model of ``family``, with a pooling and the modules ``behind`` it, into ``folder``/saved. Return the path."""
    library: Any = pytest.importorskip("sentence_transformers")
    modules: Any = pytest.importorskip("sentence_transformers.models")
    from condensery.tokens.tokenizer import load_tokenizer

    torch.manual_seed(0)
    read = load_tokenizer(words_of(family, tokenizer, folder / "words"))
    if language_model:
        backbone: Any = BertForMaskedLM(_config(family, len(read), read.pad_token_id, positions))
    else:
        backbone = plain_model(family, len(read), read.pad_token_id, positions)
    backbone.to(dtype).save_pretrained(folder / "backbone")
    read.save_pretrained(folder / "backbone")
    transformer = modules.Transformer(str(folder / "backbone"), max_seq_length=length)
    parts, size = [transformer, modules.Pooling(SIZE, pooling_mode=pooling)], SIZE
    for kind, about in behind:
        parts.append(getattr(modules, kind)(**({"in_features": size} if kind == "Dense" else {}), **about))
        size = about.get("out_features", size)
        if kind == "LayerNorm":  # the library begins with 1 and 0, which would hide that they are not read
            for weight in parts[-1].parameters():
                torch.nn.init.uniform_(weight, 0.3, 1.5)
    model = library.SentenceTransformer(modules=parts, prompts=prompts, device="cpu", truncate_dim=truncate_dim)
    model.similarity_fn_name = similarity
    model.to(dtype).save(str(folder / "saved"))
    return folder / "saved"


def words_of(family: str, tokenizer: Path, folder: Path) -> Path:
    """Return the tokenizer for a family. An MPNet pads with id 1, so its tokenizer is a changed copy in ``folder``."""
    if family != "mpnet":
        return tokenizer
    shutil.copytree(tokenizer, folder)
    file = folder / "tokenizer.json"
    about = json.loads(file.read_text())
    words, other = about["model"]["vocab"], {0: 1, 1: 0}
    about["model"]["vocab"] = {word: other.get(number, number) for word, number in words.items()}
    for one in about["added_tokens"]:
        one["id"] = other.get(one["id"], one["id"])
    about["added_tokens"].sort(key=lambda one: one["id"])
    file.write_text(json.dumps(about))
    return folder


def _config(family: str, words: int, pad: int, positions: int = 40) -> Any:
    sizes = {"hidden_size": SIZE, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    own: dict[str, Any] = {}
    if family == "distilbert":
        sizes = dict(zip(("dim", "n_layers", "n_heads", "hidden_dim"), sizes.values(), strict=True))
    if family == "electra":
        own["embedding_size"] = SIZE // 2
    if family == "modernbert":
        own = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 3)
        own |= {"local_attention": 4, "global_attn_every_n_layers": 2}
    return FAMILIES[family][0](
        vocab_size=words, max_position_embeddings=positions, initializer_range=0.3, pad_token_id=pad, **sizes, **own
    )


def plain_model(family: str, words: int, pad: int, positions: int = 40) -> PreTrainedModel:
    """Return a model of a family with random weights, without the family's own pooling layer."""
    plain: dict[str, Any] = {} if family in ("electra", "distilbert", "modernbert") else {"add_pooling_layer": False}
    model: PreTrainedModel = FAMILIES[family][1](_config(family, words, pad, positions), **plain)
    return model


def two_towers(
    folder: Path, tokenizer: Path, lengths: tuple[int, int] = (9, 14), apart: float = 0.1, **kind: Any
) -> Path:
    """Save a checkpoint of this project with two towers into ``folder``/two. Return the path.

    The towers of queries and passages differ in their weights and in their maximum lengths.

    ``apart``: standard deviation of the noise that is added to the weights of the query tower.
    """
    from condensery.models.checkpoints.retrievers import SavedRetriever, load_biencoder, save_retriever

    start = released(folder, tokenizer, **kind)
    model = load_biencoder(start, separate=True)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.query.parameters():
            weight.add_(torch.randn_like(weight), alpha=apart)
    save_retriever(SavedRetriever(model, *lengths), folder / "two", start)
    return folder / "two"


def library_scores(folder: Path, queries: list[str], passages: list[str]) -> torch.Tensor:
    """Return the scores (n, m) that sentence-transformers computes in float64."""
    library: Any = pytest.importorskip("sentence_transformers")
    model = library.SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32}).double()
    asked, found = (
        model.encode_query(queries, convert_to_tensor=True),
        model.encode_document(passages, convert_to_tensor=True),
    )
    assert asked.dtype == torch.float64
    scores: torch.Tensor = model.similarity(asked, found)
    return scores
