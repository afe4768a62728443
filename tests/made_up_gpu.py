"""A made-up GPU, for tests of the devices of tensors. The CPU computes, and torch raises the errors of a real GPU.

A tensor is on the made-up GPU if its storage is marked. The result of an operation is on the device of its inputs. An
operation on tensors of both devices raises torch's error. As in torch, there are three exceptions: copies, CPU tensors
without dimensions in element-wise operations, and CPU indices in ``tensor[index]``. ``tensor.device`` is cuda,
``tensor.numpy()`` raises, and ``torch.cuda`` reports one GPU.

This module is also a pytest plugin. With the plugin, every test has the made-up GPU, and recipes that a test runs in its own
process use it:

    PYTHONPATH=tests python -m pytest -p made_up_gpu tests/baselines

A test that compares two ways of training may then fail because of rounding, and a test that expects a CPU fails.

The made-up GPU does not cover other threads and processes, kernels and precision of a GPU, and ``torch.load``, which loads
onto the CPU.
"""

import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode

import condensery.models.encoder  # noqa: F401 - its imports must see the unchanged torch
from condensery.models import varlen

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
COPIES = ("aten::copy_", "aten::_to_copy", "aten::lift_fresh", "aten::set_", "aten::_foreach_copy_")
INDEXED = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index")
SCALARS = (
    "aten::masked_fill",
    "aten::masked_fill_",
    "aten::fill_",
    "aten::fill",
    "aten::where",
)  # in addition to all pointwise operations
FACTORIES = ("tensor", "as_tensor", "asarray")  # torch makes these tensors on the CPU and then moves them
NEW = ("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor")
LIKE = ("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like")
CUDA: dict[str, Any] = {  # function of torch.cuda -> its replacement
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "get_device_name": lambda device=None: "made-up GPU",
    "get_device_capability": lambda device=None: (7, 0),
    "get_device_properties": lambda device=None: SimpleNamespace(name="made-up GPU", total_memory=1 << 33),
    "is_bf16_supported": lambda including_emulation=True: False,
    "mem_get_info": lambda device=None: (1 << 30, 1 << 33),
    "get_rng_state": lambda device=None: torch.get_rng_state(),
    "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
    "Event": lambda **_: SimpleNamespace(record=lambda: None, query=lambda: True, synchronize=lambda: None),
    **dict.fromkeys(("memory_allocated", "max_memory_allocated", "memory_reserved"), lambda device=None: 1 << 20),
    **dict.fromkeys(("_lazy_init", "empty_cache", "synchronize", "set_device"), lambda *_: None),
    **dict.fromkeys(("manual_seed", "manual_seed_all", "reset_peak_memory_stats"), lambda *_: None),
}


def _storage(tensor: Tensor) -> Any:
    with torch._C._DisableTorchDispatch():
        return (tensor._values() if tensor.layout is torch.sparse_coo else tensor).untyped_storage()


def on_gpu(tensor: Tensor) -> bool:
    """Whether a tensor is on the made-up GPU."""
    return getattr(_storage(tensor), "on_gpu", None) is True


def marked(tensor: Tensor, gpu: bool | None = True) -> Tensor:
    """Mark the device of a new tensor. None = unknown: torch's backward code made it, and its first operation decides."""
    _storage(tensor).on_gpu = gpu
    return tensor


class _Moved(torch.autograd.Function):
    """The gradient of a moved tensor moves back."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, gpu: bool) -> Tensor:
        ctx.gpu = on_gpu(tensor)
        return marked(tensor.clone(), gpu)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return marked(gradients[0].clone(), ctx.gpu), None


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    found = []
    for value in values:
        found += [value] if isinstance(value, Tensor) else _tensors(value) if isinstance(value, list | tuple) else []
    return found


class _OneDevice(TorchDispatchMode):
    """Check the inputs of every operation, and mark its outputs."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), func._schema.name
        asked, given = kwargs.get("device"), _tensors([*args, *kwargs.values()])
        if asked is not None and asked.type != "meta":
            kwargs["device"] = CPU
        gpu = asked is not None and asked.type == "cuda"
        if name.startswith("aten::_foreach_") and name not in COPIES:  # an operation on lists, element by element
            lists = [each for each in (*args, *kwargs.values()) if isinstance(each, list | tuple) and _tensors(each)]
            rows = [_at_once(func, list(row), 0) for row in zip(*lists, strict=True)]
            outputs = func(*args, **kwargs)
            for output, row in zip(outputs or (), rows, strict=False):
                marked(output, row)
            return outputs
        if name in COPIES:
            gpu = gpu or (bool(given) and on_gpu(given[0]))  # a copy that C++ code makes stays on its device
        elif name in INDEXED:
            values = _tensors(args[2:])
            indices = [index for index in _tensors(args[1:2]) if on_gpu(index) or not on_gpu(args[0])]
            gpu = _at_once(func, [args[0], *indices, *values], 1)
        elif given:
            writes = sum(
                argument.alias_info is not None and argument.alias_info.is_write for argument in func._schema.arguments
            )
            gpu = _at_once(func, given, writes) or gpu
        generator = kwargs.get("generator")
        if generator is not None and (_Generator.devices.get(generator._cdata) == GPU) != gpu:
            raise RuntimeError(f"Expected a {'cuda' if gpu else 'cpu'!r} device type for generator")
        outputs = func(*args, **kwargs)
        mine = {_storage(each)._cdata for each in given}
        unknown = not given and not gpu and torch._C._current_graph_task_id() != -1
        for output in _tensors([outputs]):
            if _storage(output)._cdata not in mine:
                marked(output, None if unknown else gpu)
        return outputs


def _at_once(func: Any, tensors: list[Tensor], written: int) -> bool:
    """Whether the result is on the GPU; raises torch's error if the tensors are on both devices."""
    scalars = torch.Tag.pointwise in func.tags or func._schema.name in (*SCALARS, *INDEXED) or "_foreach" in str(func)
    gpu = any(map(on_gpu, tensors))
    for at, tensor in enumerate(tensors if gpu else []):
        if getattr(_storage(tensor), "on_gpu", False) is None:
            marked(tensor)
        if not on_gpu(tensor) and not (scalars and tensor.dim() == 0 and at >= written):
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! ({func})"
            )
    return gpu


def _to(real: Callable[..., Tensor], tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    device = kwargs.pop("device", None)
    if args and isinstance(args[0], Tensor):
        device, args = args[0].device, (args[0].dtype, *args[1:])
    elif args and not isinstance(args[0], torch.dtype | bool):
        device, args = args[0], args[1:]
    if args and args[0] is None:  # the dtype is None
        args, kwargs = (), {**kwargs, **dict(zip(("non_blocking", "copy"), args[1:], strict=False))}
    if device is not None and torch.device(device).type != "meta":
        gpu = torch.device(device).type == "cuda"
        if gpu != on_gpu(tensor):
            tensor = _Moved.apply(tensor, gpu)  # type: ignore[no-untyped-call]
    elif device is not None:
        return real(tensor, device, *args, **kwargs)
    return real(tensor, *args, **kwargs) if args or kwargs else tensor


def _refused(real: Callable[..., Any], tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    if on_gpu(tensor) and not kwargs.get("force"):
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
        )
    return real(tensor, *args, **kwargs)


def _made(real: Callable[..., Tensor], *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
    made = real(*args, **kwargs)
    return made if device is None else made.to(device)


def _made_beside(real: Callable[..., Tensor], tensor: Tensor, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
    where = tensor.device if device is None else torch.device(device)
    if where.type == "meta":
        return real(tensor, *args, device=where, **kwargs)
    return marked(real(tensor, *args, device=CPU, **kwargs), where.type == "cuda")


class _Generator(torch.Generator):
    """A random generator. Its device is stored by its address, because operations get another Python object for it."""

    devices: ClassVar[dict[int, torch.device]] = {}

    def __new__(cls, device: Any = "cpu") -> "_Generator":
        made: _Generator = super().__new__(cls)
        cls.devices[made._cdata] = GPU if torch.device(device).type == "cuda" else CPU
        return made

    device = property(lambda self: self.devices[self._cdata])  # type: ignore[assignment]


PROPERTIES: dict[str, Callable[[Tensor], Any]] = {
    "device": lambda tensor: GPU if on_gpu(tensor) else CPU,
    "is_cuda": on_gpu,
    "is_cpu": lambda tensor: not on_gpu(tensor),
}


def _read(real: Any, of: Callable[[Tensor], Any]) -> property:
    return property(lambda tensor: real.__get__(tensor) if tensor.is_meta else of(tensor))


@contextmanager
def made_up_gpu() -> Iterator[None]:
    """Give torch one GPU in this thread. Attention without padding is computed row by row instead of by a kernel."""
    _device_constructors()  # torch caches this list of functions, which must not contain their replacements
    with pytest.MonkeyPatch.context() as patch, _OneDevice():

        def wrap(owner: Any, name: str, by: Callable[..., Any]) -> None:
            real = getattr(owner, name)
            patch.setattr(owner, name, lambda *args, **kwargs: by(real, *args, **kwargs))

        for name, answer in CUDA.items():
            patch.setattr(torch.cuda, name, answer)
        for name, of in PROPERTIES.items():
            patch.setattr(Tensor, name, _read(getattr(Tensor, name), of))
        for name in FACTORIES:
            wrap(torch, name, _made)
        for name in LIKE:
            wrap(torch, name, _made_beside)
        for name in NEW:
            wrap(Tensor, name, _made_beside)
        for name in ("numpy", "__array__"):
            wrap(Tensor, name, _refused)
        wrap(Tensor, "to", _to)
        wrap(Tensor, "type_as", lambda real, tensor, other: tensor.to(other))
        wrap(Tensor, "cpu", lambda real, tensor, **_: tensor.to(CPU))
        wrap(Tensor, "cuda", lambda real, tensor, *_, **__: tensor.to(GPU))
        wrap(Tensor, "pin_memory", lambda real, tensor, *_: tensor)
        wrap(Tensor, "__deepcopy__", lambda real, tensor, memo: marked(real(tensor, memo), on_gpu(tensor)))
        patch.setattr(torch, "Generator", _Generator)
        for name in ("KERNELS", "WINDOWED"):
            patch.setattr(varlen, name, {"rows one after the other": varlen.one_row_after_the_other})
        varlen.best_kernel.cache_clear()
        yield
    varlen.best_kernel.cache_clear()


def pytest_collection_modifyitems() -> None:
    """For the plugin: make the small recipes use the device that torch offers."""
    for module in list(sys.modules.values()):
        keys = getattr(module, "MODEL", None)
        if isinstance(keys, list) and "trainer=cpu" in keys:
            keys[keys.index("trainer=cpu")] = "trainer=auto"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """For the plugin: run each test, with the fixtures that it sets up, on the made-up GPU."""
    with made_up_gpu():
        return (yield)
