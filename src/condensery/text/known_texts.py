"""Checks passages that stand in an input more than once: one id must have the same text everywhere."""

from array import array

from condensery.errors import UserError, shown
from condensery.text.ids import id_hash
from condensery.text.line_numbers import Places
from condensery.text.records import Passage


class KnownTexts:
    """Remembers by id the passages that queries bring along: a hash of the text and the place, some 150 bytes each.

    Args:
        with_titles: whether passages with different titles count as different texts. False where there is a corpus: it
            may have titles that the passages of the queries lack.
    """

    def __init__(self, with_titles: bool) -> None:
        self.with_titles, self.rows, self.hashes, self.places = with_titles, dict[int, int](), array("Q"), Places()

    def take(self, passage: Passage, place: str) -> bool:
        """Remember the passage. Returns whether its id is new. Raises ``UserError`` as ``check``."""
        if self.check(passage, place):
            return False
        self.rows[id_hash(passage.id)] = len(self.hashes)
        self.hashes.append(self._hash(passage))
        self.places.add(place)
        return True

    def check(self, passage: Passage, place: str) -> bool:
        """Whether the id is known. Raises ``UserError`` where the id has another text; white space does not count."""
        row = self.rows.get(id_hash(passage.id))
        if row is not None and self.hashes[row] != self._hash(passage):
            raise UserError(
                f"{place}: the passage {shown(passage.id)!r} has another text at {self.places[row]}; one id, one text"
            )
        return row is not None

    def _hash(self, passage: Passage) -> int:
        title = passage.title if self.with_titles else ""
        return id_hash(" ".join(title.split()) + "\n" + " ".join(passage.text.split()))
