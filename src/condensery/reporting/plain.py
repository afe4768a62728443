"""Clean labels, passages and messages for display: remove characters that control a terminal, text direction or a parser."""

TURNS = [*"\u061c\u200e\u200f", *map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))]
# The dropped characters are control characters (except white space, see SPACES), direction marks, and lone surrogates, which
# cannot be written to a file.
CONTROLS = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))]
DROPPED = dict.fromkeys(
    [*(ord(one) for one in CONTROLS if not one.isspace()), *map(ord, TURNS), *range(0xD800, 0xE000)]
)
SPACES = {ord(one): " " for one in CONTROLS if one.isspace() and one not in "\n\t"}


def one_line(text: str) -> str:
    """Return the text in one line, without control characters and direction marks.

    Each run of white space becomes one space, and white space at the ends is removed.
    """
    return " ".join(text.translate(DROPPED).split())


def lines(text: str) -> str:
    """Return the text, which may have several lines, without control characters and direction marks.

    Line feeds, tabs and spaces do not change.
    """
    return text.replace("\r\n", "\n").translate(DROPPED | SPACES)


def as_typed(value: str | int | float | bool | None) -> str:
    """Return a value in the form that a user types on the command line."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
