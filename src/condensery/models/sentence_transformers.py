"""The files by which sentence-transformers knows a retriever: written beside ours, read in those of others."""

from pathlib import Path
from typing import Any

from condensery.errors import UserError
from condensery.models.vectors import Pooling, VectorSettings
from condensery.system.files import read_json, write_json

MODULES = "modules.json"
POOLING = "1_Pooling"
NORMALIZE = "2_Normalize"
TRANSFORMER = "sentence_bert_config.json"
ABOUT = "config_sentence_transformers.json"
_POOLINGS: dict[str, Pooling] = {"cls": "cls", "cls_token": "cls", "mean": "mean", "mean_tokens": "mean"}
_FLAG = "pooling_mode_"
# names of prompts, of which the first that is not empty counts; the library writes an empty "document" beside the others
_QUERY_PROMPTS, _PASSAGE_PROMPTS = ("query",), ("document", "passage", "corpus")


def write_modules(folder: Path, dim: int, max_length: int, settings: VectorSettings | None = None) -> None:
    """The small files from which sentence-transformers builds encoder, pooling and normalisation, with the prefixes as
    prompts; vectors are compared by inner product.

    Args:
        folder: of the checkpoint.
        dim: of a vector.
        max_length: longest input in tokens.
        settings: how vectors are made; None = CLS vectors as they are.
    """
    settings = settings or VectorSettings()
    kinds = [("", "Transformer"), (POOLING, "Pooling"), *([(NORMALIZE, "Normalize")] if settings.normalise else [])]
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for place, (path, kind) in enumerate(kinds)
    ]
    prompts = {"query": settings.query_prefix, "document": settings.passage_prefix}
    write_json(folder / MODULES, modules)
    write_json(folder / TRANSFORMER, {"max_seq_length": max_length, "do_lower_case": False})
    write_json(folder / ABOUT, {"similarity_fn_name": "dot", "prompts": prompts if any(prompts.values()) else {}})
    mean = settings.pooling == "mean"
    write_json(
        folder / POOLING / "config.json",
        {"word_embedding_dimension": dim, f"{_FLAG}cls_token": not mean, f"{_FLAG}mean_tokens": mean},
    )
    if settings.normalise:
        write_json(folder / NORMALIZE / "config.json", {})


def read_modules(folder: Path) -> VectorSettings:
    """How sentence-transformers makes the vectors of a folder, and compares them.

    Vectors that it compares by cosine are normalised, which gives the same ranking.

    Raises ``UserError`` where it makes or compares them in a way that this project does not know.
    """
    pooling, normalise = None, False
    for module in _expected(folder / MODULES, list):
        kind = str(module.get("type", "")).rpartition(".")[2] if isinstance(module, dict) else "a bare value"
        if kind == "Pooling" and pooling is None:
            pooling = _pooling(folder / str(module.get("path", POOLING)) / "config.json")
        elif kind == "Normalize" and pooling is not None:
            normalise = True
        elif kind != "Transformer":
            raise _other(folder / MODULES, f"a module {kind[:40]!r} changes the vectors")
    about = _expected(folder / ABOUT, dict) if (folder / ABOUT).exists() else {}
    similarity = about.get("similarity_fn_name")
    if similarity not in (None, "dot", "dot_score", "cosine", "cos_sim"):
        raise _other(folder / ABOUT, f"compares vectors by {str(similarity)[:40]!r}")
    if about.get("truncate_dim") is not None:
        raise _other(folder / ABOUT, f"truncate_dim {str(about['truncate_dim'])[:40]} shortens the vectors")
    query, passage = (_prompt(about, names, folder / ABOUT) for names in (_QUERY_PROMPTS, _PASSAGE_PROMPTS))
    return VectorSettings(pooling or "cls", normalise or similarity in ("cosine", "cos_sim"), query, passage)


def longest_input(folder: Path) -> int | None:
    """The length in tokens to which sentence-transformers cuts its inputs; None where the folder does not say."""
    if not (folder / MODULES).exists():
        return None
    for file, key in ((folder / TRANSFORMER, "max_seq_length"), (folder / "tokenizer_config.json", "model_max_length")):
        length = _expected(file, dict).get(key) if file.exists() else None
        if type(length) is int and 2 < length < 1 << 20:  # a tokenizer without a limit says a huge number
            return length
    return None


def _pooling(file: Path) -> Pooling:
    about = _expected(file, dict)
    by = {name.removeprefix(_FLAG) for name, on in about.items() if name.startswith(_FLAG) and on is True}
    if "pooling_mode" in about:  # as newer releases write it
        mode = about["pooling_mode"]
        by = set(map(str, mode)) if isinstance(mode, list) else {str(mode)}
    pooling = _POOLINGS.get(next(iter(by or {"mean"}))) if len(by) <= 1 else None  # mean is the library's default
    if pooling is None:
        raise _other(file, f"pools by {', '.join(sorted(by))[:60]}")
    if pooling == "mean" and about.get("include_prompt") is False:
        raise _other(file, "leaves the prompt out of the mean (include_prompt)")
    return pooling


def _prompt(about: dict[str, Any], names: tuple[str, ...], file: Path) -> str:
    """The prompt that is put before queries, or before passages: the first of these names that is not empty."""
    prompts = about.get("prompts") or {}
    if not isinstance(prompts, dict):
        raise UserError(f"{file}: prompts is {str(prompts)[:40]!r}; it must be an object of texts by name")
    prompt = next((prompts[name] for name in names if prompts.get(name)), "")
    if not isinstance(prompt, str):
        raise UserError(f"{file}: a prompt is {str(prompt)[:40]!r}; it must be a text")
    return prompt


def _expected(file: Path, kind: type) -> Any:
    content = read_json(file)
    if not isinstance(content, kind):
        raise UserError(f"{file}: not as sentence-transformers writes it")
    return content


def _other(file: Path, what: str) -> UserError:
    return UserError(
        f"{file}: {what}; this project pools the CLS vector or the mean, normalises it or not, and compares by inner product"
    )
