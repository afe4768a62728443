"""Define annotated types for ranges of numbers, such as ``depth: Count``, in the configs of stages and in public classes.

pydantic checks the ranges of the keys of a recipe. ``check_numbers`` checks the ranges of the arguments of a class. This
module does not import pydantic, because many classes do not need it.
"""

import math
import numbers
import operator
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple
from types import UnionType
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le, Lt

from condensery.errors import UserError, shown

Count = Annotated[int, Ge(1)]
CountOrZero = Annotated[int, Ge(0)]
Length = Annotated[int, Ge(3)]  # length of a text in tokens: [CLS], at least one token, and [SEP]
Share = Annotated[float, Ge(0), Le(1)]
PositiveShare = Annotated[float, Gt(0), Le(1)]
Weight = Annotated[float, Ge(0)]
Positive = Annotated[float, Gt(0)]
Finite = Annotated[float, Gt(-math.inf)]  # neither infinite nor NaN

BOUNDS = {Gt: (">", operator.gt), Ge: (">=", operator.ge), Lt: ("<", operator.lt), Le: ("<=", operator.le)}


def check_numbers(called: Callable[..., Any], given: Mapping[str, Any], name: str = "") -> None:
    """Raise ``UserError`` for the first number outside the range of its annotation. None is always allowed.

    Args:
        called: the class or function that received the arguments. For a class, the annotations of its bases count as well.
        given: arguments by name. Numbers in a mapping, such as keyword arguments that are passed on, are checked as well.
        name: name of the class or function in the message; empty = its own name.
    """
    annotations = annotations_of(called)
    for arguments in (*(value for value in given.values() if isinstance(value, Mapping)), given):
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
    """Describe the range of the first number in ``given`` that is outside its range; None if all are in range."""
    for name, value in given.items():
        wanted = fault(annotations.get(name), value)
        if wanted:
            return f"{name} must be a {wanted}, not {shown(repr(value))}"
    return None


def fault(annotation: Any, value: Any) -> str | None:
    """Return the range that a value violates, such as ``number > 0 and <= 1``.

    The result is None if the value is in its range, or if the annotation has no range.
    """
    ranges = list(_ranges(annotation))
    if value is None or not ranges:
        return None
    kind, *bounds = ranges[0]
    limits = [(*BOUNDS[type(bound)], *astuple(bound)) for bound in bounds]
    right = isinstance(value, numbers.Integral if kind is int else numbers.Real) and not isinstance(value, bool)
    if right and math.isfinite(value) and all(holds(value, limit) for _, holds, limit in limits):
        return None
    wanted = " and ".join(f"{sign} {limit:g}" for sign, _, limit in limits if math.isfinite(limit))
    return f"{'whole number' if kind is int else 'number'} {wanted}".rstrip()


def _ranges(annotation: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the ranges in an annotation such as ``Share | None``, as int or float followed by the bounds."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated and type(arguments[1]) in BOUNDS:
        yield arguments
    elif origin in (typing.Union, UnionType):
        for part in arguments:
            yield from _ranges(part)


def no_room(query_length: int, length: int, key: str = "length") -> str | None:
    """Return an error message if a query of maximum length leaves no room for a passage in ``length`` tokens; else None.

    ``length`` is the maximum length of a (query, passage) pair. A passage needs at least four tokens, its separators
    included. ``key``: name of ``length`` in the message.
    """
    if query_length <= length - 4:
        return None
    return f"query_length={query_length} leaves no room for a passage in {key}={length}; give it {key} - 4 at most"
