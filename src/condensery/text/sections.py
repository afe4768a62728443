"""Sections of articles, and triplets of sentences out of them: two of one section, one of another (Ein Dor et al. 2018)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from condensery.errors import UserError
from condensery.randomness import generator
from condensery.text.formats.beir import document_of
from condensery.text.lines import check_whole, field, read_objects

Triplet = tuple[str, str, str]  # anchor, another sentence of its section, a sentence of another section


@dataclass(frozen=True)
class Article:
    """The texts of each section, in the order in which the sections begin; what stands before the first heading is one."""

    id: str
    sections: list[list[str]]


def read_articles(path: Path) -> Iterator[Article]:
    """Read ``{"_id", "title", "passages": [...], "headings": [...]}``, one object a line, the two lists in parallel.

    Raises ``UserError`` with file and line where there are no headings, or another number of them than of passages, and
    for an id that is there twice.
    """
    places: dict[str, str] = {}
    for place, record in read_objects(path):
        document = document_of(record, place)
        if document.id in places:
            raise UserError(
                f"{place}: this id is already that of {places[document.id]} (articles need ids of their own)"
            )
        places[document.id] = place
        for text in (document.id, *document.passages):
            check_whole(text, "article", place)
        headings = field(record, "headings", place, list)
        if len(headings) != len(document.passages) or not all(isinstance(one, str) for one in headings):
            raise UserError(
                f'{place}: "headings" must be a string for each of the {len(document.passages)} passages, that of its'
                f" section (empty before the first); it has {len(headings)} entries"
            )
        sections: dict[str, list[str]] = {}
        for heading, passage in zip(headings, document.passages, strict=True):
            sections.setdefault(heading, []).append(passage)
        yield Article(document.id, list(sections.values()))


def section_triplets(sections: Sequence[Sequence[str]], number: int, *keys: int | str) -> Iterator[Triplet]:
    """Yield at most ``number`` different triplets of the sentences of an article's sections, drawn with ``keys``.

    Anchor, positive and negative are uniform among what is possible; a draw that is there already is left out, so that
    a short article gives fewer.
    """
    flat = [(section, at) for section, sentences in enumerate(sections) for at in range(len(sentences))]
    anchors = [(section, at) for section, at in flat if 1 < len(sections[section]) < len(flat)]
    random, seen = generator(*keys), set()
    for _ in range(number if anchors else 0):
        section, at = anchors[random.integers(len(anchors))]
        positive = (at + int(random.integers(1, len(sections[section])))) % len(sections[section])
        first = sum(len(one) for one in sections[:section])
        place = int(random.integers(len(flat) - len(sections[section])))
        negative = flat[place if place < first else place + len(sections[section])]
        triplet = sections[section][at], sections[section][positive], sections[negative[0]][negative[1]]
        if len({*triplet}) == 3 and triplet not in seen:
            seen.add(triplet)
            yield triplet
