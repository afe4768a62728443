"""The base classes of all groups of config keys."""

import typing
from types import UnionType
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationInfo, field_validator

AS_TEXT = BeforeValidator(lambda v: str(v) if isinstance(v, int | float) and not isinstance(v, bool) else v)
Text = Annotated[str, AS_TEXT]  # a name or label, which YAML may parse as a number


class Keys(BaseModel):
    """A group of config keys. It is frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), defer_build=True)


class NumberKeys(Keys):
    """A group of config keys that refuses true and false in place of a number.

    The group cannot be a member of a union discriminated by ``kind``, because pydantic does not allow this validator on
    the key ``kind``.
    """

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_not_one(cls, value: Any, info: ValidationInfo) -> Any:
        return no_bool_as_number(cls, value, info)


def no_bool_as_number(model: type[BaseModel], value: Any, info: ValidationInfo) -> Any:
    """Refuse ``steps: true``, which pydantic would read as 1. Raises ``ValueError``."""
    if isinstance(value, bool):
        allowed = set(_leaves(model.model_fields[str(info.field_name)].annotation))
        if bool not in allowed and Any not in allowed and allowed & {int, float}:
            raise ValueError(f"must be a number, got {str(value).lower()}")
    return value


def _leaves(annotation: Any) -> list[Any]:
    """Return the plain types in an annotation: ``int | None`` -> [int, NoneType]."""
    if typing.get_origin(annotation) in (typing.Union, UnionType, typing.Annotated):
        return [leaf for part in typing.get_args(annotation) for leaf in _leaves(part)]
    return [annotation]
