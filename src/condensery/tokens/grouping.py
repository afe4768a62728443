"""Group the sentences of documents into passages that fit into an encoder's input (Wu et al. 2023, §4.1).

Every limit counts the tokens of the finished passage, tokenised by itself. So no passage has to be truncated later.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

from tokenizers import Tokenizer

from condensery.text.words import between_letters
from condensery.tokens.workers import ENGLISH, sentence_begins

SPECIAL_TOKENS = 2  # [CLS] and [SEP]; a title adds another [SEP]


@dataclass(frozen=True)
class DocumentTexts:
    """The texts of a document in reading order, and the title of each text (empty = no title)."""

    id: str
    texts: Sequence[str]
    titles: Sequence[str]


@dataclass(frozen=True)
class Grouped:
    """A passage. Its encoder input, [CLS] title [SEP] text [SEP], fits the ``length`` of ``group_documents``."""

    title: str
    text: str


@dataclass(frozen=True)
class _Unit:
    """A sentence, or a piece of a long sentence.

    A unit consists of the characters ``begin`` to ``end`` of the document's text with index ``text``.
    """

    text: int
    begin: int
    end: int
    tokens: int


_Groups = list[tuple[int, list[_Unit]]]  # index of the document, and consecutive units of its texts


def group_documents(
    tokenizer: Tokenizer, documents: Sequence[DocumentTexts], length: int, language: str = ENGLISH
) -> list[tuple[str, list[Grouped]]]:
    """Group the sentences of each document into passages of at most ``length`` tokens.

    A passage holds as many consecutive sentences as fit. A sentence that is longer than a passage is cut, between words
    if possible. Only white space between sentences is lost. A passage that continues in the next text of the document
    joins the two texts with a space. A passage has the title of the text in which it begins. A title that takes more than
    half of the available length is cut. ``language``: see ``sentence_begins``.

    Returns:
        The id and the passages of each document; a document without words has no passages.
    """
    titles = {title: _first_piece(tokenizer, title, (length - 3) // 2) for one in documents for title in one.titles}
    rooms = {title: length - SPECIAL_TOKENS - (tokens + 1 if tokens else 0) for title, (_, tokens) in titles.items()}
    units_of_each = _units(tokenizer, documents, rooms, language)
    every = [
        (number, list(_groups(units, [rooms[title] for title in document.titles])))
        for number, (document, units) in enumerate(zip(documents, units_of_each, strict=True))
    ]
    passages: list[list[Grouped]] = [[] for _ in documents]
    flat = [(number, group) for number, groups in every for group in groups]
    for number, group in _fitting(tokenizer, documents, flat, rooms):
        document = documents[number]
        title, _ = titles[document.titles[group[0].text]]
        passages[number].append(Grouped(title, _joined(document, group)))
    return [(document.id, of_it) for document, of_it in zip(documents, passages, strict=True)]


def cut(tokenizer: Tokenizer, text: str, limit: int) -> list[tuple[int, int]]:
    """Cut ``text`` into pieces of at most ``limit`` tokens. Returns the character range (begin, end) of each piece.

    White space around pieces is left out. A cut lies between words if there is white space within ``limit`` tokens. A
    single character is never cut.
    """
    pieces, waiting = [], [(0, len(text))]
    while waiting:
        begin, end = _stripped(text, *waiting.pop())
        if begin == end:
            continue
        places = [at for at, _ in tokenizer.encode(text[begin:end], add_special_tokens=False).offsets]
        cuts = [0, *_cuts(text[begin:end], places, limit), end - begin]
        if len(cuts) == 2:
            pieces.append((begin, end))
        else:  # a piece may be tokenised differently by itself than within the text, so it is checked again
            waiting += [(begin + first, begin + last) for first, last in reversed(list(pairwise(cuts)))]
    return pieces


def _cuts(text: str, places: Sequence[int], limit: int) -> Iterator[int]:
    """Yield the characters at which a text is cut. The tokens of the text begin at the characters ``places``."""
    first, before = 0, 0
    while len(places) - first > limit:
        inside = [token for token in range(first + limit, first, -1) if before < places[token] < len(text)]
        if not inside:  # one character has more tokens than the limit, so the cut lies after this character
            beyond = (t for t in range(first + limit + 1, len(places)) if before < places[t] < len(text))
            inside = [*islice(beyond, 1)]
        if not inside:
            return
        blank = (t for t in inside if text[places[t]].isspace() or text[places[t] - 1].isspace())
        first = next(blank, inside[0])
        whole = between_letters(text, places[first])  # a token may begin within a letter
        before = whole if whole > before else places[first]
        yield before


def _stripped(text: str, begin: int, end: int) -> tuple[int, int]:
    piece = text[begin:end]
    bare = piece.strip()
    begin += len(piece) - len(piece.lstrip()) if bare else 0
    return begin, begin + len(bare)


def _first_piece(tokenizer: Tokenizer, title: str, limit: int) -> tuple[str, int]:
    """Return the beginning of a title, at most ``limit`` tokens long, and the number of tokens of this beginning."""
    pieces = cut(tokenizer, title, limit)
    first = title[slice(*pieces[0])] if pieces else ""
    return first, _count(tokenizer, [first])[0]


def _count(tokenizer: Tokenizer, texts: list[str]) -> list[int]:
    return [len(encoding) for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def _units(
    tokenizer: Tokenizer, documents: Sequence[DocumentTexts], rooms: dict[str, int], language: str
) -> Iterator[list[_Unit]]:
    """Yield the units of each document. Each unit is tokenised by itself, the units of all documents in one call."""
    ranges = [[sentences(text, language) for text in document.texts] for document in documents]
    texts = [document.texts[n] for document in documents for n in range(len(document.texts))]
    flat = [text[b:e] for text, spans in zip(texts, (r for one in ranges for r in one), strict=True) for b, e in spans]
    counts = iter(_count(tokenizer, flat))
    for document, of_texts in zip(documents, ranges, strict=True):
        units: list[_Unit] = []
        for number, spans in enumerate(of_texts):
            limit, text = rooms[document.titles[number]], document.texts[number]
            for begin, end in spans:
                tokens = next(counts)
                if tokens <= limit:
                    units.append(_Unit(number, begin, end, tokens))
                    continue
                pieces = [(begin + first, begin + last) for first, last in cut(tokenizer, text[begin:end], limit)]
                sizes = _count(tokenizer, [text[first:last] for first, last in pieces])
                units += [_Unit(number, *piece, size) for piece, size in zip(pieces, sizes, strict=True)]
        yield units


def sentences(text: str, language: str = ENGLISH) -> list[tuple[int, int]]:
    """Return the character range (begin, end) of each sentence, without white space around it."""
    spans = (_stripped(text, begin, end) for begin, end in pairwise([*sentence_begins(text, language), len(text)]))
    return [(begin, end) for begin, end in spans if begin < end]


def _groups(units: Sequence[_Unit], rooms: Sequence[int]) -> Iterator[list[_Unit]]:
    """Group consecutive units, as many as fit into the limit of the text in which the group begins."""
    group: list[_Unit] = []
    tokens = 0
    for unit in units:
        if group and tokens + unit.tokens > rooms[group[0].text]:
            yield group
            group, tokens = [], 0
        group.append(unit)
        tokens += unit.tokens
    if group:
        yield group


def _fitting(
    tokenizer: Tokenizer, documents: Sequence[DocumentTexts], groups: _Groups, rooms: dict[str, int]
) -> _Groups:
    """Return the groups, each with the index of its document; a group with too many tokens is halved until it fits.

    A group may have more tokens than its units have separately. This never happens with WordPiece. It can happen with
    byte-level tokenizers, because they split a word after a space into other tokens than at the beginning of a text.
    """
    fitting = []
    counts = _count(tokenizer, [_joined(documents[number], group) for number, group in groups])
    for (number, group), tokens in zip(groups, counts, strict=True):
        if tokens <= rooms[documents[number].titles[group[0].text]] or len(group) == 1:
            fitting.append((number, group))
        else:
            half = len(group) // 2
            fitting += _fitting(tokenizer, documents, [(number, group[:half]), (number, group[half:])], rooms)
    return fitting


def _joined(document: DocumentTexts, group: Sequence[_Unit]) -> str:
    """Return the characters from the first unit to the last, with a space between two texts."""
    parts = []
    for number in sorted({unit.text for unit in group}):
        of_text = [unit for unit in group if unit.text == number]
        parts.append(document.texts[number][of_text[0].begin : of_text[-1].end])
    return " ".join(parts)
