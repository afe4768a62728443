"""The weights of a checkpoint: all of the model's, and no others.

The library fills what a checkpoint lacks with random numbers, leaves out what it does not know, and only logs it. A
checkpoint whose tensors have other names, or that has fewer layers than its ``config.json`` says, would be a random model
that nobody notices. Here it is refused, but for the parts that a task is meant to begin anew, of which one line is printed,
and for the heads of other tasks, which published checkpoints bring along.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from condensery.errors import UserError

NAMED = 3  # tensors that a message names of each kind
_WEIGHTS = {".safetensors", ".bin"}


@dataclass(frozen=True)
class Allowed:
    """What may differ between a checkpoint and the model that is made of it.

    Attributes:
        new: beginnings of names -> what they are called. Such a part may be missing as a whole, if those before it are, and
            begins with random weights.
        unused: beginnings of the names of parts that the checkpoint may have besides; the name of the backbone in front
            of them is left out.
    """

    new: Mapping[str, str] = field(default_factory=dict)
    unused: Collection[str] = ()


class quiet:  # noqa: N801  (a context manager, named as a verb phrase reads)
    """Keep transformers' bars and its reports of weights that a task does not use out of our progress lines."""

    def __enter__(self) -> None:
        self.level = transformers_logging.get_verbosity()
        self.bar = transformers_logging.is_progress_bar_enabled()
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()

    def __exit__(self, *_: object) -> None:
        transformers_logging.set_verbosity(self.level)
        if self.bar:
            transformers_logging.enable_progress_bar()


@contextmanager
def readable(source: str | Path) -> Iterator[None]:
    """While loading ``source``: the library is quiet, and what it cannot read becomes a ``UserError``.

    Nothing of ``source`` is run: its own Python code is refused, and of pickles (``.bin``) torch reads tensors alone.
    """
    try:
        with quiet():
            yield
    except UserError:
        raise
    except Exception as error:  # the library raises a dozen types for missing and broken files
        if isinstance(source, Path):
            raise UserError(f"{source}: no checkpoint can be loaded ({reason(error)})") from None
        raise UserError(
            f"backbone.name: cannot load {source!r} ({reason(error)}); give a folder with a checkpoint, a hub name that"
            " this machine can reach, or backbone.name=null to start from scratch"
        ) from None


def reason(error: Exception) -> str:
    """The first line of what a library says, its class where it says nothing."""
    return [*str(error).strip().splitlines(), type(error).__name__][0][:200]


def load_weights(
    family: Any, source: str | Path, config: Any, allowed: Allowed, revision: str | None = None, **settings: Any
) -> PreTrainedModel:
    """A model of the class ``family`` with the weights of a checkpoint, all of them and no others.

    Prints a line where a part is new.

    Args:
        family: a class of the library's, or one of its ``Auto`` classes.
        source: folder or hub name.
        config: the library's, as the model shall have it.
        allowed: what may be missing or surplus.
        revision: on the hub.
        settings: further arguments of ``from_pretrained``.

    Raises:
        UserError: tensors are missing, surplus or of another shape; one line with the number of each and some names.
    """
    _check_size(family, source, config)
    model, info = family.from_pretrained(
        source,
        config=config,
        revision=revision,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # the library would not say which
        **settings,
    )
    new, missing = _told_apart(model, set(info["missing_keys"]), allowed.new)
    surplus = sorted(name for name in info["unexpected_keys"] if not _is_unused(name, model, allowed.unused))
    shaped = [f"{name} {_shape(has)} instead of {_shape(wanted)}" for name, has, wanted in info["mismatched_keys"]]
    faults = (("missing", missing), ("surplus", surplus), ("of another shape", sorted(shaped)))
    said = ", ".join(f"{len(names):,} {kind} ({_some(names)})" for kind, names in faults if names)
    if said:
        raise UserError(
            f"{source}: the tensors of this checkpoint are not those that its config.json describes: {said}"
        )
    if new:
        parts = ", ".join(f"{what} ({number} tensors)" for what, number in new.items())
        print(f"{source}: new, with random weights: {parts}", flush=True)
    return model


def _check_size(family: Any, source: str | Path, config: Any) -> None:
    """Raise ``UserError`` where the config describes a model far larger than the weights, before memory is taken for it."""
    folder = Path(source)
    held = sum(path.stat().st_size for path in folder.glob("*") if path.suffix in _WEIGHTS and path.is_file())
    if not held:  # on the hub; or there are none, which the library tells
        return
    with torch.device("meta"):
        auto = hasattr(family, "from_config")
        model = family.from_config(config, trust_remote_code=False) if auto else family(config)
    described = sum(parameter.numel() for parameter in model.parameters())
    if described > 4 * held + 10**6:  # a byte a parameter is the least; new parts are smaller than the rest
        raise UserError(
            f"{folder / 'config.json'}: it describes a model of {described:,} parameters, but the weights beside it have"
            f" {held:,} bytes; they belong to different models"
        )


def _told_apart(model: Any, missing: set[str], parts: Mapping[str, str]) -> tuple[dict[str, int], list[str]]:
    """The parts that are missing as a whole, with the number of their tensors; and the names that are missing besides."""
    tied = model.all_tied_weights_keys.keys()
    new: dict[str, int] = {}
    for beginning, what in parts.items():
        names = {name for name in model.state_dict() if name.startswith(f"{beginning}.")}
        if not names:  # of another family
            continue
        if not names - tied <= missing:
            break
        new[what] = new.get(what, 0) + len(names - tied)
        missing -= names
    return new, sorted(missing)


def _is_unused(name: str, model: Any, beginnings: Collection[str]) -> bool:
    own = name.removeprefix(f"{model.base_model_prefix}.")
    return re.search(r"(^|\.)position_ids$", name) is not None or any(
        own.startswith(f"{beginning}.") for beginning in beginnings
    )


def _some(names: Collection[str]) -> str:
    return ", ".join([*list(names)[:NAMED], *(["..."] if len(names) > NAMED else [])])


def _shape(size: Any) -> str:
    return "x".join(map(str, size)) or "scalar"
