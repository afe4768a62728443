"""The losses of the bi-encoder by name. This file imports no torch, so a recipe can be checked quickly before any work."""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from condensery.errors import OF_YOUR_OWN, UserError, close_to, shown
from condensery.ranges import annotations_of, first_fault

if TYPE_CHECKING:
    from condensery.losses.retrieval_loss import RetrievalLoss

Maker = TypeVar("Maker", bound="Callable[..., RetrievalLoss]")
Named = str | Mapping[str, Any]
_LOSSES: "dict[str, Callable[..., RetrievalLoss]]" = {}
_OURS = {  # name -> module
    **{name: f"condensery.losses.{name}" for name in ("info_nce", "learning_to_rank", "matryoshka")},
    **dict.fromkeys(("kl", "margin_mse"), "condensery.losses.distillation"),
    "dual_supervision": "condensery.baselines.tas_b.loss",
    "passage_centric": "condensery.baselines.pair.loss",
    "rank_consistent": "condensery.baselines.led.loss",
}
_TAUGHT = {"dual_supervision", "kl", "margin_mse", "rank_consistent"}  # need a teacher's scores
_TWICE_TAUGHT = {"dual_supervision"}  # also need the scores of an in-batch teacher
_NEED_OPTIONS = {"matryoshka"}  # built-in losses with an option that has no default
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def register(name: str) -> Callable[[Maker], Maker]:
    """Register a loss by ``name`` for recipes and ``BiEncoderModule``.

    This is a decorator of a loss class, or of a function that returns a loss.

    Args:
        name: the name in ``loss: NAME``. Options given with the name become arguments of the class or function.

    Raises:
        ValueError: another loss has the name.
    """

    def known(make: Maker) -> Maker:
        ours = name in _OURS and make.__module__ != _OURS[name]  # a built-in loss, whose file may not be imported yet
        first = "Condensery's" if ours else _LOSSES.get(name, make)
        if first is not make:
            raise ValueError(f"two losses have the name {name!r}: {first} and {make}; give one of them another name")
        _LOSSES[name] = make
        return make

    return known


def check_name(loss: Named) -> str:
    """Return the name of a loss that is given as a string or as a mapping with ``name`` and options.

    Raises:
        ValueError: there is no such loss, or the mapping has no name.
    """
    names = {*_OURS, *_LOSSES}
    if not isinstance(loss, str | Mapping):
        raise ValueError(f"give a name, a mapping with name and options, or a RetrievalLoss, not {shown(repr(loss))}")
    if not isinstance(loss, str) and "name" not in loss:
        raise ValueError(f"the mapping needs the key name, with one of {', '.join(sorted(names))}")
    name = loss if isinstance(loss, str) else str(loss["name"])
    if name not in names:
        hint = close_to(name, names)
        raise ValueError(f"there is no loss {name!r}{hint if 'did you mean' in hint else OF_YOUR_OWN + hint}")
    return name


def check_loss(loss: Named) -> str:
    """Check the name and the options of a loss, and return the name.

    The file of a built-in loss is imported only if options are given, or if the loss needs options.

    Raises:
        ValueError: there is no such loss, the loss has no such option, an option without a default is not given, or the value
            of an option does not fit the option's annotation: the value is outside the range, or is not a number.
    """
    name, options = check_name(loss), _options(loss)
    if options or name in _LOSSES or name in _NEED_OPTIONS:
        made = _made_by(name)
        known = inspect.signature(made).parameters
        if unknown := [str(option) for option in options if not _takes(made, str(option))]:
            raise ValueError(f"{name} has no option {shown(unknown[0])!r}{close_to(unknown[0], known)}")
        plain = (option for option, how in known.items() if how.default is how.empty and how.kind in _BY_NAME)
        if missing := [option for option in plain if option not in {*options, "temperature"}]:
            raise ValueError(f"{name} needs a value of {missing[0]!r}: {{name: {name}, {missing[0]}: ...}}")
        if (inner := _inner(loss)) is not None:
            check_loss(inner)
        if wrong := first_fault(annotations_of(made), options):
            raise ValueError(f"{name}: {wrong}")
    return name


def makers_of(loss: Named) -> "list[Callable[..., RetrievalLoss]]":
    """Return the classes or functions that are registered for a loss and for the loss inside it.

    A built-in loss is registered, and therefore returned, only after its file was imported.
    """
    inner = _inner(loss)
    return [made for name, made in _LOSSES.items() if name == check_name(loss)] + (makers_of(inner) if inner else [])


def teaching(loss: Named) -> tuple[bool, bool]:
    """Return whether a loss takes a teacher's scores, and whether it needs them. No file of a built-in loss is imported.

    A registered function is assumed to return a loss that takes a teacher's scores, since the function has not been called
    yet. ``BiEncoderModule`` checks the returned loss later.
    """
    name, inner = check_name(loss), _inner(loss)
    if name in _OURS and inner is not None:
        return teaching(inner)
    if name in _OURS:
        return (name in _TAUGHT,) * 2
    made = _LOSSES[name]
    return takes_teacher(made), bool(getattr(made, "needs_teacher", False))


def twice_taught(loss: Named) -> tuple[bool, bool]:
    """Return whether a loss takes the scores of a teacher and an in-batch teacher at once, and whether it needs both."""
    name = check_name(loss)
    if name in _OURS:
        return (name in _TWICE_TAUGHT,) * 2
    return takes_teacher(_LOSSES[name], "in_batch"), False


def takes_teacher(loss: Any, argument: str = "teacher") -> bool:
    """Return whether ``forward`` of a loss or loss class takes ``argument``; True for a function, which has no ``forward``.

    Args:
        loss: the loss, or its class or function.
        argument: ``teacher``, or ``in_batch`` for an in-batch teacher's scores in addition to a teacher's scores.
    """
    forward = getattr(loss, "forward", None)
    return forward is None or _takes(forward, argument)


def temperature_of(loss: Named, default: float) -> tuple[str, float]:
    """Return the key that sets the temperature of a stage's loss, and the temperature; 0 = the loss has no such option.

    Args:
        loss: the stage's key ``loss``.
        default: the stage's key ``temperature``, for a loss that does not set its own.
    """
    name, options = check_name(loss), _options(loss)
    if "temperature" in options:
        return "loss.temperature", options["temperature"]
    if (inner := _inner(loss)) is not None:
        key, value = temperature_of(inner, default)
        return (f"loss.{key}" if key != "temperature" else key), value
    return "temperature", default if _takes(_made_by(name), "temperature") else 0.0


def _inner(loss: Named) -> Named | None:
    """Return the loss inside another loss, such as Matryoshka; None = there is no inner loss."""
    inner = _options(loss).get("loss")
    return inner if isinstance(inner, str | Mapping) else None


def _options(loss: Named) -> dict[str, Any]:
    return {} if isinstance(loss, str) else {key: value for key, value in loss.items() if key != "name"}


def _takes(called: Callable[..., Any], argument: str) -> bool:
    known = inspect.signature(called).parameters
    return argument in known or any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())


def _made_by(name: str) -> "Callable[..., RetrievalLoss]":
    if name in _OURS:
        import_module(_OURS[name])
    return _LOSSES[name]


def make_loss(loss: Named, **options: Any) -> "RetrievalLoss":
    """Make the loss that is registered under a name.

    Args:
        loss: the name, or a mapping with ``name`` and options.
        options: further options. An option is passed on if the loss takes it and the mapping does not give it.

    Raises:
        UserError: there is no such loss, or it does not take these options.
    """
    try:
        name = check_loss(loss)
    except ValueError as error:
        raise UserError(f"loss: {error}") from None
    try:
        made = _made_by(name)
        taken = {option: value for option, value in options.items() if _takes(made, option)}
        return made(**{**taken, **_options(loss)})
    except TypeError as error:
        raise UserError(f"loss: {name}: {error}") from None
