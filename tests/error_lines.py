"""What a line about a fault must hold, however it is worded: the place, and the words that tell what to mend."""

import re


def names(line: str, place: str, *words: str) -> None:
    """Check that ``line`` is one line that names ``place`` and holds each of ``words``.

    Args:
        line: the text of a ``UserError``, or what a command wrote to stderr.
        place: a file, ``file:number`` or a key. ``a.jsonl:3`` is not found in ``a.jsonl:31``, nor ``stages.a`` in
            ``stages.ab`` or ``stages.a.b``.
        words: what sets this fault apart from others at the same place: a value, a limit, a name to choose. Capitals
            and small letters are the same.
    """
    line = line.removesuffix("\n")
    assert "\n" not in line, line
    assert re.search(rf"(?<![\w.]){re.escape(place)}(?!\w|\.\w)", line), f"{place!r} is not named in: {line}"
    for word in words:
        assert word.lower() in line.lower(), f"{word!r} is not in: {line}"
