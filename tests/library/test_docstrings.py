"""Every public name says what it takes, argument by argument."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import condensery

NAMES = sorted(condensery.__all__)


def ours(kind: type) -> list[type]:
    return [one for one in kind.__mro__ if one.__module__.startswith("condensery")]


def told(thing: Any) -> str:
    """Its docstring; of a class also those of the classes of ours that it is made of."""
    if inspect.isclass(thing):
        return "\n".join(
            f"{one.__doc__ or ''}\n{vars(one).get('__init__', thing).__doc__ or ''}" for one in ours(thing)
        )
    return inspect.getdoc(thing) or ""


def arguments(thing: Any) -> Iterator[str]:
    kinds = ours(thing) if inspect.isclass(thing) else []
    for function in [vars(one)["__init__"] for one in kinds if "__init__" in vars(one)] or [thing]:
        for name, parameter in inspect.signature(function).parameters.items():
            if name not in ("self", "args") and parameter.kind is not parameter.VAR_KEYWORD:
                yield name


@pytest.mark.parametrize("name", NAMES)
def test_each_argument_is_explained(name: str) -> None:
    thing = getattr(condensery, name)
    text = told(thing)
    assert text.strip(), name
    if name in ("UserError", "Hit", "ContextMasking"):  # a line and records, whose fields are explained as attributes
        return
    missing = [one for one in arguments(thing) if not re.search(rf"\b{one}\b[^\n]*[:`]|``{one}``", text)]
    assert not missing, f"{name}: {missing}"


@pytest.mark.parametrize("name", [name for name in NAMES if inspect.isclass(getattr(condensery, name))])
def test_each_method_says_what_it_does(name: str) -> None:
    kind = getattr(condensery, name)
    methods = {
        method: value
        for one in reversed(ours(kind))
        for method, value in vars(one).items()
        if not method.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
    }
    silent = [method for method in methods if not (inspect.getdoc(getattr(kind, method)) or "").strip()]
    assert not silent


RECORDS = {"ContextMasking", "Hit", "UserError"}
OURS_ALONE = {"Retriever", "evaluate", "register", "run"}  # tools of this project, of no paper


@pytest.mark.parametrize("name", sorted({*NAMES} - RECORDS))
def test_each_says_what_it_raises_and_what_it_is_after(name: str) -> None:
    own = inspect.getdoc(getattr(condensery, name)) or ""
    assert re.search(r"Raises:|raises ``", own) or "so is what it raises" in own, name
    if name not in OURS_ALONE:
        assert re.search(r"\b(19|20)\d\d", own), f"{name}: no paper"
