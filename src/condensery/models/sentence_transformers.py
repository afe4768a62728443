"""The files by which sentence-transformers knows a retriever: written beside ours, looked at in those of others."""

from pathlib import Path
from typing import Any

from condensery.errors import UserError
from condensery.system.files import read_json, write_json

MODULES = "modules.json"
POOLING = "1_Pooling"
TRANSFORMER = "sentence_bert_config.json"
ABOUT = "config_sentence_transformers.json"
_HARMLESS = ("Transformer", "Pooling")  # what a CLS vector compared by inner product is made with
_FLAG = "pooling_mode_"


def write_modules(folder: Path, dim: int, max_length: int) -> None:
    """The small files from which sentence-transformers builds encoder + CLS pooling, compared by inner product."""
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": POOLING, "type": "sentence_transformers.models.Pooling"},
    ]
    write_json(folder / MODULES, modules)
    write_json(folder / TRANSFORMER, {"max_seq_length": max_length, "do_lower_case": False})
    write_json(folder / ABOUT, {"similarity_fn_name": "dot", "prompts": {}})
    write_json(
        folder / POOLING / "config.json",
        {"word_embedding_dimension": dim, f"{_FLAG}cls_token": True, f"{_FLAG}mean_tokens": False},
    )


def check_modules(folder: Path) -> None:
    """Raise ``UserError`` where a folder of sentence-transformers makes its vectors, or compares them, in another way.

    A folder without these files passes: nothing is known of it.
    """
    if not (folder / MODULES).exists():
        return
    for module in _expected(folder / MODULES, list):
        kind = str(module.get("type", "")).rpartition(".")[2] if isinstance(module, dict) else "a bare value"
        if kind not in _HARMLESS:
            raise _other(folder / MODULES, f"a module {kind[:40]!r} changes the vectors")
        if kind == "Pooling":
            _check_pooling(folder / str(module.get("path", POOLING)) / "config.json")
    if (folder / ABOUT).exists():
        similarity = _expected(folder / ABOUT, dict).get("similarity_fn_name")
        if similarity not in (None, "dot", "dot_score"):
            raise _other(folder / ABOUT, f"compares vectors by {str(similarity)[:40]!r}")


def longest_input(folder: Path) -> int | None:
    """The length in tokens to which sentence-transformers cuts its inputs; None where the folder does not say."""
    if not (folder / MODULES).exists():
        return None
    for file, key in ((folder / TRANSFORMER, "max_seq_length"), (folder / "tokenizer_config.json", "model_max_length")):
        length = _expected(file, dict).get(key) if file.exists() else None
        if type(length) is int and 2 < length < 1 << 20:  # a tokenizer without a limit says a huge number
            return length
    return None


def _check_pooling(file: Path) -> None:
    pooling = _expected(file, dict)
    by = {name.removeprefix(_FLAG) for name, on in pooling.items() if name.startswith(_FLAG) and on is True}
    by |= {str(pooling["pooling_mode"])} if "pooling_mode" in pooling else set()
    if by - {"cls", "cls_token"}:
        raise _other(file, f"pools by {', '.join(sorted(by))[:60]}")


def _expected(file: Path, kind: type) -> Any:
    found = read_json(file)
    if not isinstance(found, kind):
        raise UserError(f"{file}: not as sentence-transformers writes it")
    return found


def _other(file: Path, what: str) -> UserError:
    return UserError(f"{file}: {what}; this project takes the CLS vector as it is and compares by inner product")
