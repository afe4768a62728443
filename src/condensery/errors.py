"""The one error that a person sees: bad input, said in one line."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input. The message is one line that names the file and line, or the config key, and what to do.

    The command line prints it as ``error: <message>`` and exits with code 1; no traceback is shown.
    """


def close_to(word: str, known: Iterable[str]) -> str:
    """The hint `` (did you mean 'x'?)`` where a known word is near, otherwise the known words."""
    words = sorted(known)
    near = difflib.get_close_matches(word, words, 1)
    if near:
        return f" (did you mean {near[0]!r}?)"
    return f" (known: {', '.join(words)})" if words else ""
