"""Loads the weights of a checkpoint, and checks that it has exactly the tensors of the model.

The transformers library initialises missing tensors randomly, ignores unknown tensors, and only logs both. So a checkpoint
whose tensors have other names, or that has fewer layers than its ``config.json`` says, would become a random model without
an error. This module raises an error for such a checkpoint. There are two exceptions. Parts that are new for a task may be
missing; one line is printed for them. Heads of other tasks, which published checkpoints contain, may be surplus.
"""

import re
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from condensery.errors import UserError, number_of, of_loading
from condensery.system.files import check_file
from condensery.tokens.tokenizer import save_tokenizer

NAMED = 3  # maximum number of tensor names in a message, for each kind of fault
_WEIGHTS = {".safetensors", ".bin"}
_ALONE = threading.RLock()
# arguments with which encoders are loaded: in fp32, with plain attention, because ``Encoder`` computes attention itself
ENCODER: dict[str, Any] = {"trust_remote_code": False, "dtype": torch.float32, "attn_implementation": "eager"}


@dataclass(frozen=True)
class Allowed:
    """The allowed differences between a checkpoint and the model that is loaded from it.

    Attributes:
        new: prefix of a part's tensor names -> name of the part in messages. The checkpoint may lack all tensors of a part
            if it also lacks the parts that are listed earlier. A missing part is randomly initialised.
        unused: parts that the checkpoint may have although the model lacks them, such as heads of other tasks. A part is
            given as the prefix of its tensor names, without the prefix of the backbone.
        silent: true = no line is printed about new parts. ``load_weights`` lists them in the model's ``new_parts``.
    """

    new: Mapping[str, str] = field(default_factory=dict)
    unused: Collection[str] = ()
    silent: bool = False


@contextmanager
def quiet() -> Iterator[None]:
    """Context manager. Inside it, transformers shows no progress bars and does not report unused weights.

    Only one thread at a time can be inside the context, because these settings belong to the whole process, and so does the
    class that transformers changes while it loads a model.
    """
    with _ALONE:
        level, bar = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        try:
            yield
        finally:
            transformers_logging.set_verbosity(level)
            if bar:
                transformers_logging.enable_progress_bar()


@contextmanager
def readable(source: str | Path, key: str = "backbone.name") -> Iterator[None]:
    """Context manager for loading ``source``. Inside it, transformers is quiet, and any exception becomes a ``UserError``.

    ``key``: the config key, or the argument of a class, that gives ``source``.

    No code of ``source`` is run: Python code in it is refused, and torch reads only tensors from pickle files (``.bin``).
    """
    try:
        with quiet():
            yield
    except UserError:
        raise
    except Exception as error:  # transformers raises a dozen types for missing and broken files
        if isinstance(source, Path):
            raise UserError(f"{source}: cannot be loaded ({reason(error)}); give a complete checkpoint") from None
        raise of_loading(error)(
            f"{key}: cannot load {source!r} ({reason(error)}); give a folder with a checkpoint, or a hub name that this"
            " machine can reach"
        ) from None


def read_tensors(file: Path, beginning: str = "") -> dict[str, Tensor]:
    """Return the tensors of a file whose names begin with ``beginning``. In the result this prefix is removed.

    Args:
        file: file in safetensors format, or with tensors pickled by torch (``.bin``, ``.pt``).
        beginning: prefix of the names.

    Raises:
        UserError: the file cannot be read.
    """
    check_file(file)
    with readable(file):
        if file.suffix == ".safetensors":
            with safe_open(file, "pt") as stored:
                held = {name: stored.get_tensor(name) for name in stored.keys() if name.startswith(beginning)}  # noqa: SIM118
        else:
            held = dict(torch.load(file, map_location="cpu", weights_only=True))
    _check_not_quantised(file, held)
    return {name.removeprefix(beginning): value for name, value in held.items() if name.startswith(beginning)}


def save_checkpoint(model: Any, tokenizer: Any, folder: Path) -> None:
    """Save a model of transformers and its tokenizer in ``folder``, which is created."""
    folder.mkdir(parents=True, exist_ok=True)
    with quiet():
        model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)


def reason(error: Exception) -> str:
    """Return the first line of an exception's message, up to 200 characters. Without a message, return the class name."""
    return [*str(error).strip().splitlines(), type(error).__name__][0][:200]


def load_weights(
    family: Any, source: str | Path, config: Any, allowed: Allowed, revision: str | None = None, **settings: Any
) -> PreTrainedModel:
    """Load a model of the class ``family``, and check that the checkpoint has exactly the model's tensors.

    A line is printed if a part is new.

    Args:
        family: a model class or an ``Auto`` class of transformers.
        source: folder or hub name.
        config: transformers' config of the model.
        allowed: the parts that may be missing or surplus.
        revision: commit, tag or branch on the hub.
        settings: further arguments of ``from_pretrained``.

    Raises:
        UserError: weights are quantised, or tensors are missing, surplus or of a different shape. The message about tensors
            is one line with the number and some names of the missing, the surplus and the misshapen tensors.
    """
    _check_size(family, source, config)
    model, info = family.from_pretrained(
        source,
        config=config,
        revision=revision,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # transformers' own error would not name the tensors
        **settings,
    )
    _check_types(Path(source))
    new, missing = _told_apart(model, set(info["missing_keys"]), allowed.new)
    surplus = sorted(name for name in info["unexpected_keys"] if not _is_unused(name, model, allowed.unused))
    shaped = [f"{name} {_shape(has)} instead of {_shape(wanted)}" for name, has, wanted in info["mismatched_keys"]]
    faults = (("missing", missing), ("surplus", surplus), ("of another shape", sorted(shaped)))
    if message := ", ".join(f"{len(names):,} {kind} ({_some(names)})" for kind, names in faults if names):
        raise UserError(f"{source}: its tensors are not those that its config.json describes: {message}")
    model.new_parts = tuple(new)
    if new and not allowed.silent:
        parts = ", ".join(f"{what} ({number_of(number, 'tensors')})" for what, number in new.items())
        print(f"{source}: the checkpoint lacks these parts, which get random weights: {parts}", flush=True)
    return model


def _check_size(family: Any, source: str | Path, config: Any) -> None:
    """Raise ``UserError`` if the config's model is far larger than the weights, before memory is allocated for the model."""
    folder = Path(source)
    held = sum(path.stat().st_size for path in folder.glob("*") if path.suffix in _WEIGHTS and path.is_file())
    if not held:  # the weights are on the hub, or there are no weights, which transformers reports
        return
    with torch.device("meta"):
        auto = hasattr(family, "from_config")
        model = family.from_config(config, trust_remote_code=False) if auto else family(config)
    described = sum(parameter.numel() for parameter in model.parameters())
    if described > 4 * held + 10**6:  # a parameter has at least one byte; new parts are smaller than the rest
        raise UserError(
            f"{folder / 'config.json'}: describes a model of {described:,} parameters, but the weights beside it have"
            f" {held:,} bytes; take both from the same checkpoint"
        )


def _check_types(folder: Path) -> None:
    """Raise ``UserError`` if the files with the weights hold quantised weights."""
    for stem, suffix in (("model", ".safetensors"), ("pytorch_model", ".bin")):  # the order of transformers
        files = [*folder.glob(f"{stem}{suffix}"), *sorted(folder.glob(f"{stem}-*-of-*{suffix}"))]
        for file in files:
            if suffix == ".bin":
                _check_not_quantised(file, torch.load(file, map_location="meta", weights_only=True))
                continue
            with safe_open(file, "pt") as stored:
                _check_not_quantised(file, {name: stored.get_slice(name) for name in stored.keys()})  # noqa: SIM118
        if files:
            return


def _check_not_quantised(file: Path, tensors: Mapping[str, Any]) -> None:
    """Raise ``UserError`` if tensors (or slices of safetensors, by name) are integers of up to 32 bits, or 8-bit floats.

    Such weights are quantised, and without their scales they are meaningless.
    """
    for name, tensor in tensors.items():
        kind = str(getattr(tensor, "dtype", None) or getattr(tensor, "get_dtype", str)())
        if re.match(r"(torch\.)?([iu](nt|int)?(8|16|32)$|f(loat)?8)", kind, re.IGNORECASE):  # int64: indices
            raise UserError(
                f"{file}: the weights {name} are of the type {kind.removeprefix('torch.')}, as in a quantised model; give"
                " the checkpoint with weights in fp32, fp16 or bf16"
            )


def _told_apart(model: Any, missing: set[str], parts: Mapping[str, str]) -> tuple[dict[str, int], list[str]]:
    """Return the parts that lack all their tensors (name -> number of tensors), and the other missing tensors' names."""
    tied = model.all_tied_weights_keys.keys()
    new: dict[str, int] = {}
    for beginning, what in parts.items():
        names = {name for name in model.state_dict() if name.startswith(f"{beginning}.")}
        if not names:  # a part of another family
            continue
        if not names - tied <= missing:
            break
        new[what] = new.get(what, 0) + len(names - tied)
        missing -= names
    return new, sorted(missing)


def _is_unused(name: str, model: Any, beginnings: Collection[str]) -> bool:
    own = name.removeprefix(f"{model.base_model_prefix}.")
    return bool(re.search(r"(^|\.)position_ids$", name)) or own.startswith(tuple(f"{one}." for one in beginnings))


def _some(names: Collection[str]) -> str:
    return ", ".join([*list(names)[:NAMED], *(["..."] if len(names) > NAMED else [])])


def _shape(size: Any) -> str:
    return "x".join(map(str, size)) or "scalar"
