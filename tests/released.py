"""Small retrievers of each kind that others release, made and saved by sentence-transformers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertModel

SIZE = 16  # of a state
PROMPTS = {"query": "river: ", "document": "sea and stones: "}
SEVERAL = [
    ("Dense", {"out_features": 24, "bias": True, "activation_function": torch.nn.GELU()}),
    ("Dense", {"out_features": 10, "bias": False, "activation_function": torch.nn.Identity()}),
]
KINDS: dict[str, dict[str, Any]] = {
    **{f"pooled by {mode}": {"pooling": mode} for mode in ("cls", "mean", "max", "lasttoken", "weightedmean")},
    "the root of the length": {"pooling": "mean_sqrt_len_tokens", "behind": [("Normalize", {})]},
    "one Dense": {"behind": [("Dense", {"out_features": 8})]},
    "several Dense, then normalised": {"behind": [*SEVERAL, ("Normalize", {})]},
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
) -> Path:
    """Save a BERT with a pooling and the modules ``behind`` it into ``folder``/saved; its path."""
    library: Any = pytest.importorskip("sentence_transformers")
    modules: Any = pytest.importorskip("sentence_transformers.models")
    from condensery.tokens.tokenizer import load_tokenizer

    torch.manual_seed(0)
    read = load_tokenizer(tokenizer)
    sizes = {"hidden_size": SIZE, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=len(read), max_position_embeddings=40, initializer_range=0.3, **sizes)
    backbone = BertForMaskedLM(config) if language_model else BertModel(config, add_pooling_layer=False)
    backbone.to(dtype).save_pretrained(folder / "backbone")
    read.save_pretrained(folder / "backbone")
    transformer = modules.Transformer(str(folder / "backbone"), max_seq_length=length)
    parts, size = [transformer, modules.Pooling(SIZE, pooling_mode=pooling)], SIZE
    for kind, about in behind:
        parts.append(getattr(modules, kind)(**({"in_features": size} if kind == "Dense" else {}), **about))
        size = about.get("out_features", size)
    model = library.SentenceTransformer(modules=parts, prompts=prompts, device="cpu", truncate_dim=truncate_dim)
    model.similarity_fn_name = similarity
    model.to(dtype).save(str(folder / "saved"))
    return folder / "saved"


def two_towers(
    folder: Path, tokenizer: Path, lengths: tuple[int, int] = (9, 14), apart: float = 0.1, **kind: Any
) -> Path:
    """Save a checkpoint of ours whose queries have weights and a longest input of their own into ``folder``/two; its path.

    ``apart``: the deviation of the weights of queries from those of passages.
    """
    from condensery.models.checkpoints.saving import SavedRetriever, load_biencoder, save_retriever

    start = released(folder, tokenizer, **kind)
    model = load_biencoder(start, separate=True)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.query.parameters():
            weight.add_(torch.randn_like(weight), alpha=apart)
    save_retriever(SavedRetriever(model, *lengths), folder / "two", start)
    return folder / "two"


def library_scores(folder: Path, queries: list[str], passages: list[str]) -> torch.Tensor:
    """What sentence-transformers gives (n, m), in float64."""
    library: Any = pytest.importorskip("sentence_transformers")
    model = library.SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32}).double()
    asked, found = (
        model.encode_query(queries, convert_to_tensor=True),
        model.encode_document(passages, convert_to_tensor=True),
    )
    assert asked.dtype == torch.float64
    scores: torch.Tensor = model.similarity(asked, found)
    return scores
