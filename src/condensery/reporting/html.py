"""HTML by Jinja2: what is put into ``templates/`` is escaped there, and freed of control characters."""

import re
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from condensery.reporting.plain import lines

TEMPLATES = files("condensery.reporting") / "templates"


def template(name: str) -> str:
    """The file ``name`` of ``templates/``, without the line breaks and indentation that are there for who reads it."""
    return re.sub(r"\n\s*", "", (TEMPLATES / name).read_text(encoding="utf-8"))


def _shown(value: Any) -> Any:
    return lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def macros(name: str) -> Any:
    """The macros of a template as functions, which return ``Markup``."""
    return (
        Environment(loader=FunctionLoader(template), autoescape=True, undefined=StrictUndefined, finalize=_shown)
        .get_template(name)
        .module
    )
