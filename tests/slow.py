"""Marks most values of a parametrised test as slow. `make test` then runs a few of them, and `make test-slow` the others."""

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def slow_except(values: Iterable[Any], *quick: Any) -> list[Any]:
    """Return the values for ``pytest.mark.parametrize``. All are marked as slow except those in ``quick``.

    A value of several arguments is given in ``quick`` by its first argument.
    """
    made, found = [], []
    for value in values:
        arguments = value.values if isinstance(value, ParameterSet) else value if isinstance(value, tuple) else (value,)
        found += [arguments[0]] * (arguments[0] in quick)
        made.append(value if arguments[0] in quick else pytest.param(*arguments, marks=pytest.mark.slow))
    assert set(found) == set(quick), f"no value is called {set(quick) - set(found)}"
    return made
