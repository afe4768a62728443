"""Define annotated types for ranges of numbers, such as ``depth: Count``, in the configs of stages and in public classes.

pydantic checks the keys of a recipe. ``check_values`` checks the arguments of a class or function: numbers, flags, choices,
strings, functions, and objects of this package. This module does not import pydantic, because many classes do not need it.
"""

import math
import numbers
import operator
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import astuple
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Unpack

from annotated_types import Ge, Gt, Le, Lt

from condensery.errors import UserError, close_to, shown

Count = Annotated[int, Ge(1)]
CountOrZero = Annotated[int, Ge(0)]
Length = Annotated[int, Ge(3)]  # length of a text in tokens: [CLS], at least one token, and [SEP]
Share = Annotated[float, Ge(0), Le(1)]
PositiveShare = Annotated[float, Gt(0), Le(1)]
Weight = Annotated[float, Ge(0)]
Positive = Annotated[float, Gt(0)]
Finite = Annotated[float, Gt(-math.inf)]  # neither infinite nor NaN

NAMES = {str: "string", Path: "path"}
BOUNDS = {Gt: (">", operator.gt), Ge: (">=", operator.ge), Lt: ("<", operator.lt), Le: ("<=", operator.le)}


def check_values(called: Callable[..., Any], given: Mapping[str, Any], name: str = "") -> None:
    """Raise ``UserError`` for the first argument that does not fit its annotation, as far as ``fault`` checks it.

    Args:
        called: the class or function that received the arguments. For a class, the annotations of its bases count as well.
        given: arguments by name. Keyword arguments that are passed on are checked as well.
        name: name of the class or function in the message; empty = its own name.
    """
    annotations = annotations_of(called)
    kinds = [(annotations.get(one), value) for one, value in given.items() if isinstance(value, Mapping)]
    for arguments in (*(value for kind, value in kinds if kind is Any or typing.get_origin(kind) is Unpack), given):
        if wrong := first_fault(annotations, arguments):
            raise UserError(f"{name or called.__name__}: {wrong}")


def annotations_of(called: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of the arguments of a function, or of a class and its bases."""
    if not isinstance(called, type):
        return dict(called.__annotations__)
    found: dict[str, Any] = {}
    for base in reversed(called.__mro__):
        found |= getattr(vars(base).get("__init__"), "__annotations__", {})
    return found


def first_fault(annotations: Mapping[str, Any], given: Mapping[str, Any]) -> str | None:
    """Describe the first value in ``given`` that does not fit its annotation (``fault``); None if all fit."""
    for name, value in given.items():
        annotation = annotations.get(name)
        if wanted := fault(annotation, value):
            return f"{name} must be {wanted}, not {shown(repr(value))}"
        for known in (part.__annotations__ for part in _parts(annotation) if typing.is_typeddict(part) and value):
            if unknown := [str(one) for one in value if one not in known]:
                return f"{name} has no setting {shown(unknown[0])!r}{close_to(unknown[0], known)}"
            if wrong := first_fault(known, value):
                return f"{name}: {wrong}"
    return None


def fault(annotation: Any, value: Any) -> str | None:
    """Return what a value must be, such as ``a number > 0 and <= 1``, or ``one of cls, mean``.

    The result is None if the value fits, or if the annotation has a part that is not checked, such as ``Sequence``.
    """
    wanted = [_wanted(part, value) for part in _parts(annotation)]
    return None if None in wanted else " or ".join(filter(None, wanted)) or None


def _wanted(part: Any, value: Any) -> str | None:
    origin, bounds = typing.get_origin(part), typing.get_args(part)
    if part is NoneType:
        return None if value is None else ""
    if origin is typing.Literal:
        return None if isinstance(value, str) and value in bounds else f"one of {', '.join(bounds)}"
    if part is bool:  # "no" would count as True
        return None if "bool" in type(value).__name__ or value in (0, 1) else "True or False"
    if origin is Mapping or typing.is_typeddict(part):
        return None if isinstance(value, Mapping) else "a mapping"
    own = getattr(part, "__module__", "").startswith("condensery.") and not hasattr(part, "_is_protocol")
    wrapped = hasattr(part, "forward")  # a torch module may be wrapped in another module, as by ``torch.compile``
    if part in NAMES or (own and not wrapped):
        return None if isinstance(value, part) else f"a {NAMES.get(part, part.__name__)}"
    if origin is type:
        return None if isinstance(value, type) and issubclass(value, bounds) else f"the class {bounds[0].__name__}"
    if origin is Callable:
        return None if callable(value) and not isinstance(value, type) else "a function"
    if origin is tuple:
        fits = isinstance(value, tuple | list) and [fault(*pair) for pair in zip(bounds, value, strict=False)]
        return None if fits == [None] * len(bounds) else f"{len(bounds)} values, each {fault(bounds[0], None)}"
    if part in (int, float):
        bounds = (part,)
    elif origin is not Annotated or type(bounds[1]) not in BOUNDS:
        return None
    limits = [(*BOUNDS[type(bound)], *astuple(bound)) for bound in bounds[1:]]
    right = isinstance(value, numbers.Integral if bounds[0] is int else numbers.Real) and not isinstance(value, bool)
    # the largest float would be infinite if it were compared with an np.float32
    plain = value.item() if right and hasattr(value, "item") else value
    if right and abs(plain) <= sys.float_info.max and all(holds(plain, limit) for _, holds, limit in limits):
        return None
    wanted = " and ".join(f"{sign} {limit:g}" for sign, _, limit in limits if math.isfinite(limit))
    return f"a {'whole number' if bounds[0] is int else 'number'} {wanted}".rstrip()


def _parts(annotation: Any) -> list[Any]:
    """Return the parts of an annotation such as ``Share | None``."""
    union = typing.get_origin(annotation) in (typing.Union, UnionType)
    return [one for part in typing.get_args(annotation) for one in _parts(part)] if union else [annotation]


def no_room(query_length: int, length: int, key: str = "length") -> str | None:
    """Return an error message if a query of maximum length leaves no room for a passage in ``length`` tokens; else None.

    ``length`` is the maximum length of a (query, passage) pair. A passage needs at least four tokens, its separators
    included. ``key``: name of ``length`` in the message.
    """
    if query_length <= length - 4:
        return None
    return f"query_length={query_length} leaves no room for a passage in {key}={length}; it may be {key} - 4 at most"
