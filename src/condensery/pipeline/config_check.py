"""Reports faults of the config, each in one line that names the key as the user writes it.

A value that a stage gets through ``${data}`` is reported as ``data.root``. A value from the defaults of the stage's kind is
reported as ``stage.finetune.steps``, and a value of this stage alone as ``stages.round1.steps``.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args

from hydra.core.hydra_config import HydraConfig
from pydantic import BaseModel, ValidationError

from condensery.errors import OF_YOUR_OWN, UserError, close_to
from condensery.recipes import RECIPES

Place = Sequence[str | int]
Model = TypeVar("Model", bound=BaseModel)
REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")


def checked(model: type[Model], value: dict[str, Any], written: Callable[[Place], str]) -> Model:
    """Validate a resolved config.

    Args:
        model: pydantic model of the config.
        value: resolved config.
        written: function that maps a place in the config to the key in which its value was written.

    Returns:
        the config as an instance of ``model``.

    Raises:
        UserError: about the first fault: a value that is still ``???``, an unknown key, or a wrong type or range.
    """
    missing = first_missing({key: item for key, item in value.items() if key not in ("stage", "stages")})
    if missing is not None:
        raise needs_value(written(missing))
    try:
        return model.model_validate(value)
    except ValidationError as error:
        faults = [(dict(fault), _place_in(value, fault)) for fault in error.errors()]
        first, place = min(faults, key=lambda pair: pair[0]["type"] != "extra_forbidden")  # a misspelt key comes first
        texts = dict.fromkeys(_say(fault, model, place) for fault, other in faults if other == place)
        got = "" if first["type"] in VALUE_SAID else f", got {_short(first['input'])}"
        text = " or ".join(text if i == 0 else text.removeprefix("must be ") for i, text in enumerate(texts))
        hint = QUOTES if first["type"] == "string_type" and isinstance(first["input"], int | float) else ""
        key = written(place)
        raise UserError(f"{key}: {text}{got}{base_of(key) if first['type'] == 'missing' else hint}") from None


def needs_value(key: str) -> UserError:
    """Return the error about a key that is still ``???``. For a key of a group, the error names the file that explains it."""
    group = key.partition(".")[0]
    chosen = HydraConfig.get().runtime.choices.get(group) if HydraConfig.initialized() else None
    hint = f" (conf/{group}/{chosen}.yaml explains it)" if chosen else ""
    return UserError(f"{key}: needs a value, for example {key}=...{hint or base_of(key)}")


def base_of(key: str) -> str:
    """Return a hint if a key has no value because of the command; otherwise an empty string.

    The command may remove the key (``~KEY``), remove the defaults of all other kinds of stages (``stage=KIND``), or add the
    key's stage by a base that is for other recipes (``base=NAME``).
    """
    task = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    if removed := next((one for one in task if one[0] == "~" and f"{key}.".startswith(f"{one[1:]}.")), ""):
        return f"; {removed} removes it"
    if any(one.startswith("stage=") for one in task):
        return "; stage=... replaces the defaults of all other kinds of stages; set a key with stage.KIND.KEY=..."
    base = next((one.partition("=")[2] for one in task if one.lstrip("+").startswith("base=")), "")
    file, stage = RECIPES / "base" / f"{base}.yaml", re.match(r"stages\.([\w-]+)\.", key)
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    if not stage or f"\n  {stage[1]}:" not in text:
        return ""
    recipe = re.search(rf"experiment=\S+ base={base}\b", text)
    what = f"use it as in {recipe[0]}" if recipe else "it may be for other recipes"
    return f"; base={base} adds this stage; {what} (conf/base/{base}.yaml)"


def first_missing(value: Any, place: tuple[str | int, ...] = ()) -> tuple[str | int, ...] | None:
    """Return the path of keys to the first ``???`` in a resolved config; None if there is none."""
    if value == "???":
        return place
    inner = dict(enumerate(value)) if isinstance(value, list) else value
    items = inner.items() if isinstance(inner, dict) else ()
    return next((missing for key, item in items if (missing := first_missing(item, (*place, key))) is not None), None)


def follow(raw: dict[str, Any], start: Place, place: Place, value: Any = None) -> str:
    """Return the key in which a value was written, by following the reference ``${...}`` at each key of its path.

    A final reference to a group of another name, as in ``seed: ${data}``, is a fault and is not followed.

    Args:
        raw: whole config, unresolved.
        start: key where the walk starts.
        place: path of keys from ``start`` to the value.
        value: content of ``start``, used if ``raw`` does not contain it.
    """
    key = list(start)
    value = _lookup(raw, key) if value is None else value
    for number, part in enumerate(place, 1):
        value = _lookup(value, [part])
        key.append(part)
        while isinstance(value, str) and (match := REFERENCE.fullmatch(value)):
            target = match[1].split(".")
            value = _lookup(raw, target)
            if number == len(place) and isinstance(value, dict) and target[-1] != part:
                break
            key = list(target)
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).lstrip(".")


def _lookup(value: Any, place: Place) -> Any:
    for part in place:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            return None
    return value


def _place_in(value: Any, fault: Mapping[str, Any]) -> tuple[str | int, ...]:
    """Return pydantic's location without the names of union members, which are not keys.

    A union member may have the same name as a key (``format: documents`` reads ``data.documents``). So a location can be
    split in several ways. The first way that leads to the rejected value is used.
    """
    loc, absent = fault["loc"], fault["type"] == "missing"
    around = loc[:-1] if absent else loc
    ways = list(_ways(value, around))
    place = next((place for place, reached in ways if reached is fault["input"]), ways[0][0])
    return (*place, *loc[len(around) :])


def _ways(value: Any, loc: Place) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield the ways to split a location into keys and names of union members, each with the value that it leads to."""
    if not loc:
        yield (), value
        return
    part = loc[0]
    if (isinstance(value, dict) and part in value) or (isinstance(value, list) and isinstance(part, int)):
        for place, reached in _ways(_lookup(value, [part]), loc[1:]):
            yield (part, *place), reached
    yield from _ways(value, loc[1:])


# for a text such as 1_000, on or 1e5, which Hydra or YAML reads as a number or as true
QUOTES = """; quotes keep a text as it is written: KEY='"..."' in a command, KEY: "..." in a recipe"""
VALUE_SAID = {"missing", "extra_forbidden", "value_error", "union_tag_not_found", "union_tag_invalid"}
MESSAGES = {
    "missing": "needs a value",
    "greater_than": "must be > {gt:g}",
    "greater_than_equal": "must be >= {ge:g}",
    "less_than": "must be < {lt:g}",
    "less_than_equal": "must be <= {le:g}",
    "literal_error": "must be {expected}",
    "union_tag_not_found": "needs {discriminator}",
    "union_tag_invalid": "unknown {discriminator} '{tag}' (known: {expected_tags})",
    "string_pattern_mismatch": "must match {pattern}",
    "too_short": "must have at least {min_length} item(s)",
    "too_long": "must have at most {max_length} item(s)",
    "string_too_short": "must have at least {min_length} character(s)",
    "string_too_long": "must have at most {max_length} characters",
    "value_error": "{error}",
    "finite_number": "must be a finite number",
}
TYPES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "path": "a path",
    "list": "a list",
    "dict": "a mapping",
    "model": "a mapping",
}


def _say(fault: dict[str, Any], model: type[BaseModel], place: Place) -> str:
    kind = str(fault["type"])
    if kind == "extra_forbidden":
        key, known = str(place[-1]), _known_beside(model, place)
        if place[-2:] == ("data", "root"):
            return "this recipe reads no folder; for your own, run experiment=cocondenser_local data.root=FOLDER"
        return f"unknown key{'' if key in known else close_to(key, known)}"  # a known key is of another member of the union
    if kind in MESSAGES:
        text = " ".join(MESSAGES[kind].format(**fault.get("ctx", {})).split())
        return f"{text}{OF_YOUR_OWN}" if kind == "union_tag_invalid" and place == ("data",) else text
    wanted = TYPES.get(kind.split("_")[0])
    return f"must be {wanted}" if wanted else " ".join(str(fault["msg"]).split())


def _known_beside(model: type[BaseModel], place: Place) -> set[str]:
    """Return the known keys beside the last key of ``place``. In a list or mapping, these are the keys of an item."""
    models = [model]
    for part in place[:-1]:
        if fields := [one.model_fields[str(part)] for one in models if part in one.model_fields]:
            models = [inner for field in fields for inner in _models_in(field.annotation)]
    return {key for candidate in models for key in candidate.model_fields}


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


def _short(value: Any) -> str:
    text = "null" if value is None else " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."
