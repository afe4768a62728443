"""HTML without a template language: a tag is a function, and whatever is not markup already is escaped.

Control characters, which HTML does not allow, are left out.
"""

from collections.abc import Iterable
from html import escape

from condensery.reporting.plain import lines

VOID = {"meta", "img", "line", "polyline", "circle"}  # elements without content; those of SVG need their slash


class Markup(str):
    """Text that is HTML already. Any other string is escaped where it is put into a tag."""

    __slots__ = ()


Attribute = str | int | float | bool | None


def tag(name: str, /, *children: str, **attributes: Attribute) -> Markup:
    """``<name attributes>children</name>``. ``class_`` is ``class``, ``data_x`` is ``data-x``.

    An attribute that is None or False is left out, one that is True has no value.
    """
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
    written = "".join(
        f" {key}" if value is True else f' {key}="{escape(lines(str(value)))}"'
        for key, value in given.items()
        if value is not None and value is not False
    )
    return Markup(f"<{name}{written}/>" if name in VOID else f"<{name}{written}>{joined(children)}</{name}>")


def joined(children: Iterable[str], between: str = "") -> Markup:
    """The children one after the other, escaped where they are no markup."""
    return Markup(between.join(child if isinstance(child, Markup) else escape(lines(child)) for child in children))
