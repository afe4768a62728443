"""The losses of the bi-encoder by name. Imports no torch: a recipe is checked before any work is begun."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from condensery.errors import UserError, close_to

if TYPE_CHECKING:
    from condensery.losses.base import RetrievalLoss

Maker = TypeVar("Maker", bound="Callable[..., RetrievalLoss]")
Named = str | Mapping[str, Any]
_LOSSES: "dict[str, Callable[..., RetrievalLoss]]" = {}
_OURS = {"info_nce": "info_nce", "learning_to_rank": "learning_to_rank"}  # name -> the file in this folder


def register(name: str) -> Callable[[Maker], Maker]:
    """Let recipes and ``BiEncoderModule`` know a loss by ``name``: its class, or a function that makes it.

    Raises ``ValueError`` where another has the name.
    """

    def known(make: Maker) -> Maker:
        if _LOSSES.get(name, make) is not make:
            raise ValueError(f"there are two losses called {name!r}: {_LOSSES[name]} and {make}")
        _LOSSES[name] = make
        return make

    return known


def check_name(loss: Named) -> str:
    """The name of a loss, which may have options beside it. Raises ``ValueError`` where there is no such loss."""
    name = loss if isinstance(loss, str) else str(loss.get("name"))
    names = {*_OURS, *_LOSSES}
    if name not in names:
        raise ValueError(f"there is no loss {name!r}{close_to(name, names)}")
    return name


def make_loss(loss: Named, **options: Any) -> "RetrievalLoss":
    """The loss that was registered by a name, made with its options.

    Args:
        loss: the name, or a mapping with ``name`` and options.
        options: others; those of the mapping come first.

    Raises:
        UserError: there is no such loss, or it does not take these options.
    """
    try:
        name = check_name(loss)
    except ValueError as error:
        raise UserError(f"loss: {error}") from None
    if name in _OURS:
        import_module(f"condensery.losses.{_OURS[name]}")
    own = {} if isinstance(loss, str) else {key: value for key, value in loss.items() if key != "name"}
    try:
        return _LOSSES[name](**{**options, **own})
    except TypeError as error:
        raise UserError(f"loss: {name}: {error}") from None
