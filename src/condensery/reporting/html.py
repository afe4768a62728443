"""Generate HTML from the Jinja2 templates in ``templates/``.

Inserted values are escaped, and their control characters are removed.
"""

import re
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from condensery.reporting.plain import lines

TEMPLATES = files("condensery.reporting") / "templates"


def template(name: str) -> str:
    """Return the content of the file ``name`` in ``templates/``, without line breaks and indentation."""
    return re.sub(r"\n\s*", "", (TEMPLATES / name).read_text(encoding="utf-8"))


def _shown(value: Any) -> Any:
    return lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def macros(name: str) -> Any:
    """Return the macros of a template as functions, which return ``Markup``."""
    loader = FunctionLoader(template)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, finalize=_shown)
    return environment.get_template(name).module
