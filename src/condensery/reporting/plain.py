"""Cleans labels, passages and messages for display: removes characters that steer a terminal, a reader or a parser."""

TURNS = [*"\u061c\u200e\u200f", *map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))]
# Dropped are control characters (except white space, see SPACES), marks of direction, and lone surrogates, which no file
# can hold.
CONTROLS = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))]
DROPPED = dict.fromkeys(
    [*(ord(one) for one in CONTROLS if not one.isspace()), *map(ord, TURNS), *range(0xD800, 0xE000)]
)
SPACES = {ord(one): " " for one in CONTROLS if one.isspace() and one not in "\n\t"}


def one_line(text: str) -> str:
    """Return the text in one line, without control characters and marks that turn the direction of writing.

    Each run of white space becomes one blank; none is left at the ends.
    """
    return " ".join(text.translate(DROPPED).split())


def lines(text: str) -> str:
    """Return the text without control characters and marks of direction, in several lines.

    Line feeds, tabs and blanks stay as they are.
    """
    return text.replace("\r\n", "\n").translate(DROPPED | SPACES)
