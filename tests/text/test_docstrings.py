"""Docstrings: the first sentence and the rest, without mark-up and code."""

from pathlib import Path

import pytest

from condensery.text.docstrings import clean, cut, first_sentence, read_file

LONG = "It explains at some length, in more than fifteen words, what one has to know before one calls this function."


@pytest.mark.parametrize(
    ("paragraph", "sentence", "rest"),
    [
        ("Open a file. Then close it.", "Open a file.", "Then close it."),
        ("Use e.g. Adam or i.e. SGD here. Done.", "Use e.g. Adam or i.e. SGD here.", "Done."),
        ("See Fig. 3 for it. Done.", "See Fig. 3 for it.", "Done."),
        ("Version 2.0 of torch.nn is out! Done.", "Version 2.0 of torch.nn is out!", "Done."),
        ('Says "stop." Then goes.', 'Says "stop."', "Then goes."),
        ("No full stop", "No full stop", ""),
    ],
)
def test_a_sentence_ends_where_a_reader_says(paragraph: str, sentence: str, rest: str) -> None:
    assert first_sentence(paragraph) == (sentence, rest)


@pytest.mark.parametrize(
    ("marked", "plain"),
    [
        (":class:`~torch.nn.Module` of ``x``", "torch.nn.Module of x"),
        (":func:`the name <os.path.join>`", "the name"),
        ("[`~transformers.BertModel`] and [docs](https://a.b/c)", "transformers.BertModel and docs"),
        ("    :param name: its name", "    name: its name"),
        (":returns: a list", "Returns: a list"),
        ("**bold** and *thin*, but *args and 2 * 3 * 4", "bold and thin, but *args and 2 * 3 * 4"),
        ("`Paper <https://arxiv.org/abs/1>`_", "Paper"),
        ("## Title", "Title"),
    ],
)
def test_mark_up_is_taken_away(marked: str, plain: str) -> None:
    assert clean(marked) == plain


def test_the_query_is_the_first_sentence_and_not_in_the_passage() -> None:
    query, passage = cut(f"Open the given file. {LONG}\n\nArgs:\n    name: which\n        one\n    mode: how", 15) or (
        "",
        "",
    )
    assert query == "Open the given file."
    assert passage == f"{LONG}\nArgs: name: which one\nmode: how"


@pytest.mark.parametrize(
    "code",
    [
        ">>> open('x')\n... more\n'output'\n",
        "Examples\n--------\n>>> open('x')\n",
        "```python\n\nopen('x')\n```\n",
        ".. code-block:: python\n\n    open('x')\n\n    more\n",
        "::\n\n    open('x')\n",
        ".. math::\n    open^2\n",
        "<Tip>\n",
    ],
)
def test_code_is_stripped(code: str) -> None:
    text = f"Open the given file.\n\n{LONG}\n\n{code}\nThe end."
    assert cut(text, 15) == ("Open the given file.", f"{LONG}\nThe end.")


def test_notes_keep_their_text() -> None:
    assert cut(f"Open the given file.\n\n.. note:: {LONG}\n    And so on.", 15) == (
        "Open the given file.",
        f"{LONG} And so on.",
    )


@pytest.mark.parametrize(
    "text",
    [
        f"Base class. {LONG}",  # two words
        f"See https://example.org/a for more. {LONG}",
        f"{'word ' * 40}end. {LONG}",
        f"1 + 2 = 3. {LONG}",
    ],
)
def test_what_is_no_query_stays_in_the_passage(text: str) -> None:
    query, passage = cut(text, 15) or ("none", "")
    assert query == ""
    assert passage == text


@pytest.mark.parametrize(
    ("query", "passage"),
    [
        ("读取一个文件并返回其中的所有行。", "文件必须是文本文件，每一行都会去掉结尾的换行符，空行会被跳过。"),
        ("Читает файл и возвращает его строки.", "Файл должен быть текстовым, пустые строки пропускаются."),
        ("फ़ाइल को पढ़कर सभी पंक्तियाँ लौटाता है।", "फ़ाइल में केवल पाठ होना चाहिए और खाली पंक्तियाँ छोड़ी जाती हैं।"),
    ],
)
def test_docstrings_of_other_languages_are_cut_as_well(query: str, passage: str) -> None:
    assert cut(f"{query} {passage}", 5) == (query, passage)
    assert cut(f"{query}\n\n{passage}", 5) == (query, passage)
    assert cut(f"{query} {passage}", 40) is None


def test_a_signature_is_skipped() -> None:
    assert cut(f"abs(input, *, out=None) -> Tensor\n\nOpen the given file. {LONG}", 15) == (
        "Open the given file.",
        LONG,
    )


@pytest.mark.parametrize(
    "text",
    ["Too short to be a passage.", f"x (int, optional): {LONG}", f"Args:\n    x (int): {LONG}", "First. " + "a " * 13],
)
def test_short_texts_and_lists_of_parameters_are_left_out(text: str) -> None:
    assert cut(text, 15) is None


def test_docstrings_of_modules_classes_and_functions_are_found(tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_text(
        f'"""Of the whole module. {LONG}"""\n'
        f'class A:\n    """Of the first class. {LONG}"""\n'
        f'    async def f(self):\n        """Of an async method. {LONG}"""\n'
        f'if True:\n    def g():\n        r"""Of a conditional function. {LONG}"""\n'
        f'        def h():\n            """Of a nested function. {LONG}"""\n'
        f'try:\n    pass\nexcept ValueError:\n    def i():\n        """Of a handled function. {LONG}"""\n'
    )
    assert [found.query for found in read_file("code", path, 15)] == [
        "Of the whole module.",
        "Of the first class.",
        "Of an async method.",
        "Of a conditional function.",
        "Of a handled function.",
    ]
    assert [found.line for found in read_file("code", path, 15)][:2] == [1, 3]


def test_files_that_cannot_be_parsed_are_skipped(tmp_path: Path) -> None:
    broken, binary = tmp_path / "broken.py", tmp_path / "binary.py"
    broken.write_text("def f(:\n")
    binary.write_bytes(b"\x00\xff\xfe")
    assert [read_file("m", path, 15) for path in (broken, binary)] == [[], []]
