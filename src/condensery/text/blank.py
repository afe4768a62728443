"""Tells which texts are blank: empty, or only of characters that no reader sees."""

import regex

# Any character except white space, control characters, the empty Braille pattern, and the characters that Unicode lets a
# program leave out (zero-width spaces and joiners, soft hyphens, fillers, selectors).
SEEN = regex.compile(r"[^\s\p{Cc}\p{Default_Ignorable_Code_Point}\u2800]")


def is_blank(text: str) -> bool:
    """Whether ``text`` holds no visible character."""
    return SEEN.search(text) is None
