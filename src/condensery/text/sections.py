"""Draw triplets of sentences from articles: two from one section, the third from another (Ein Dor et al. 2018)."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from condensery.errors import UserError
from condensery.randomness import generator
from condensery.text.formats.beir import document_of
from condensery.text.formats.documents import sections_of
from condensery.text.lines import check_whole, read_objects

Triplet = tuple[str, str, str]  # anchor, another sentence of its section, a sentence of another section


def read_articles(path: Path) -> Iterator[tuple[str, list[list[str]]]]:
    """Read articles, one JSON object per line: ``{"_id", "title", "passages": [...], "headings": [...]}``.

    ``headings`` holds for each passage the heading of its section. Yields the id of each article and the passages of each of
    its sections, with the sections in the order in which they begin. The text before the first heading is also a section.

    Raises:
        UserError: headings are missing, the numbers of headings and passages differ, or an id occurs twice. The message
            names file and line.
    """
    places: dict[str, str] = {}
    for place, record in read_objects(path):
        document = document_of(record, place)
        if document.id in places:
            raise UserError(f"{place}: this id is also at {places[document.id]}; give each article its own id")
        places[document.id] = place
        for text in (document.id, *document.passages):
            check_whole(text, "article", place)
        yield document.id, list(sections_of(record, document.passages, place).values())


def section_triplets(sections: Sequence[Sequence[str]], number: int, *keys: int | str) -> Iterator[Triplet]:
    """Draw at most ``number`` different triplets of sentences from the sections of one article.

    Anchor, positive and negative are drawn uniformly among the possible sentences. A repeated draw is dropped, so a
    short article yields fewer triplets.

    Args:
        sections: the sentences of each section.
        number: the number of draws.
        keys: the keys of the random generator (see ``randomness.generator``).
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
