"""Which texts show nothing: blank, or of characters alone that no reader sees."""

import regex

# What Unicode lets a program leave out (zero-width spaces and joiners, soft hyphens, fillers, selectors), control
# characters, white space, and the empty Braille pattern.
SEEN = regex.compile(r"[^\s\p{Cc}\p{Default_Ignorable_Code_Point}\u2800]")


def is_blank(text: str) -> bool:
    """Whether there is nothing in ``text`` to be read."""
    return SEEN.search(text) is None
