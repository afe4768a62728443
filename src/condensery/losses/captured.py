"""Finds the modules and tensors that functions read besides their arguments, such as an encoder in a closure."""

import functools
import inspect
import types
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_DEPTH, _ENTRIES = 8, 100  # levels of nested objects that are searched, and entries searched in each list or mapping
_LIBRARIES = {"builtins", "numpy", "tokenizers", "torch", "transformers"}


class Captured:
    """The modules and tensors that functions reach through closures, globals, partial arguments or a method's object.

    Attributes:
        modules: name under which a module was reached -> that module.
        tensors: name under which a tensor was reached outside of any module -> that tensor.
    """

    def __init__(self, roots: Mapping[str, Any]) -> None:
        self.modules: dict[str, nn.Module] = {}
        self.tensors: dict[str, Tensor] = {}
        self._seen: dict[int, Any] = {}
        for name, value in roots.items():
            self._walk(name, value, _DEPTH)

    def weights(self) -> dict[str, Tensor]:
        """Return the parameters of the modules, and the leaf tensors that require a gradient, by name.

        A weight that was reached under several names is returned under the first of these names.
        """
        found: dict[str, Tensor] = {}
        for name, module in self.modules.items():
            found |= {f"{name}.{part}": weight for part, weight in module.named_parameters(remove_duplicate=False)}
        found |= {name: tensor for name, tensor in self.tensors.items() if tensor.requires_grad and tensor.is_leaf}
        first = {id(weight): name for name, weight in reversed(found.items())}
        return {name: weight for name, weight in found.items() if first[id(weight)] == name}

    def values(self) -> Iterator[Tensor]:
        """Yield all parameters, buffers and leaf tensors."""
        for module in self.modules.values():
            yield from module.parameters()
            yield from module.buffers()
        yield from (tensor for tensor in self.tensors.values() if tensor.is_leaf)

    def _walk(self, name: str, value: Any, depth: int) -> None:
        if depth < 0 or id(value) in self._seen or isinstance(value, type | types.ModuleType | str | bytes):
            return
        self._seen[id(value)] = value
        if isinstance(value, Tensor):
            self.tensors[name] = value
            return
        if isinstance(value, nn.Module):
            self.modules[name] = value
        for part, inner in _parts_of(name, value):
            self._walk(part, inner, depth - 1)


def _parts_of(name: str, value: Any) -> list[tuple[str, Any]]:
    """Return (name, part) for each object that ``value`` refers to. For objects of common libraries the list is empty."""
    if isinstance(value, Mapping):
        return [(f"{name}[{key!r}]", inner) for key, inner in list(value.items())[:_ENTRIES]]
    if isinstance(value, list | tuple | set):
        return [(f"{name}[{number}]", inner) for number, inner in enumerate(list(value)[:_ENTRIES])]
    if isinstance(value, functools.partial):
        return [(name, value.func), *((name, inner) for inner in value.args), *value.keywords.items()]
    if isinstance(value, types.MethodType):
        return [(type(value.__self__).__name__, value.__self__), (name, value.__func__)]
    if (getattr(value, "__module__", None) or "builtins").partition(".")[0] in _LIBRARIES:
        return []
    if isinstance(value, types.FunctionType):
        read = [(word, value.__globals__[word]) for word in _words_of(value.__code__) if word in value.__globals__]
        defaults = {str(number): default for number, default in enumerate(value.__defaults__ or ())}
        return [
            *inspect.getclosurevars(value).nonlocals.items(),
            *read,
            *defaults.items(),
            *(value.__kwdefaults__ or {}).items(),
        ]
    own = getattr(value, "__dict__", {})
    return [(f"{name}.{key}", inner) for key, inner in own.items() if not key.startswith("_")]


def _words_of(code: types.CodeType) -> list[str]:
    """Return the sorted names of the globals and attributes that a function and its nested functions read."""
    inner = (_words_of(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return sorted({*code.co_names}.union(*inner))


@contextmanager
def copies(tensors: Iterable[Tensor], double: bool) -> Iterator[None]:
    """Context manager. Inside it, the tensors hold copies of their data, in float64 if ``double``, and have no gradient.

    On exit, the tensors, their gradients, the random states and the default dtype are restored bit for bit.
    """
    each = {id(tensor): tensor for tensor in tensors}
    before = [(tensor, tensor.data, tensor.grad) for tensor in each.values()]
    default = torch.get_default_dtype()
    with torch.random.fork_rng():
        try:
            for tensor, data, _ in before:
                _put(tensor, data.to(torch.float64 if double and data.is_floating_point() else data.dtype, copy=True))
            torch.set_default_dtype(torch.float64 if double else default)
            yield
        finally:
            torch.set_default_dtype(default)
            for tensor, data, gradient in before:
                _put(tensor, data)
                tensor.grad = gradient


def _put(tensor: Tensor, data: Tensor) -> None:
    tensor.grad = None  # a gradient must have the dtype of the data
    tensor.data = data


@contextmanager
def evaluated(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Context manager. Inside it, the modules are in evaluation mode, without dropout."""
    modes = [(part, part.training) for module in modules for part in module.modules()]
    try:
        for part, _ in modes:
            part.training = False
        yield
    finally:
        for part, mode in modes:
            part.training = mode
