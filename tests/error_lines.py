"""Check an error message without its exact text: it must name the place, and contain words that help the user."""

import re


def names(line: str, place: str, *words: str) -> None:
    """Check that ``line`` is one line that names ``place`` and contains each of ``words``.

    Args:
        line: the text of a ``UserError``, or the output of a command on stderr.
        place: a file, ``file:number`` or a key. ``a.jsonl:3`` is not found in ``a.jsonl:31``, nor ``stages.a`` in
            ``stages.ab`` or ``stages.a.b``.
        words: words that distinguish this fault from other faults at the same place: a value, a limit, a valid name.
            Case is ignored.
    """
    line = line.removesuffix("\n")
    assert "\n" not in line, line
    assert re.search(rf"(?<![\w.]){re.escape(place)}(?!\w|\.\w)", line), f"{place!r} is not named in: {line}"
    for word in words:
        assert word.lower() in line.lower(), f"{word!r} is not in: {line}"
