"""Stage ``extract_queries``: takes sentences or titles of the passages as queries, without a model."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from condensery.errors import UserError
from condensery.stages.base import Context
from condensery.stages.corpus.config import ExtractQueriesConfig
from condensery.stages.corpus.queries import write_queries
from condensery.system.progress import progress
from condensery.text.queries import Pair, distinct
from condensery.text.salience import Salience
from condensery.text.words import number_of_plain_words
from condensery.tokens.artifacts import Passages, Queries
from condensery.tokens.grouping import sentences


class _Refused:
    """Counts of passages without a query, by reason.

    Attributes:
        single: number of passages that have only one sentence.
        apart: number of passages whose token ids do not show where a sentence ends.
        fewest, most: number of words of the shortest and of the longest sentence in the other passages.
    """

    def __init__(self) -> None:
        self.single, self.apart, self.fewest, self.most = 0, 0, sys.maxsize, 0

    def unfit(self, numbers: Iterable[int]) -> None:
        """Count a passage whose sentences have these numbers of words, all outside the allowed range."""
        for number in numbers:
            self.fewest, self.most = min(self.fewest, number), max(self.most, number)

    def why(self, config: ExtractQueriesConfig, key: str) -> str:
        """Return the error message for the case that no passage has a query; ``key`` is the config key of the stage."""
        reasons = []
        if self.most:
            limits = {
                "minimum_words": self.fewest < config.minimum_words,
                "maximum_words": self.most > config.maximum_words,
            }
            keys = " or ".join(f"{key}.{name}" for name, wrong in limits.items() if wrong)
            has = f"{self.fewest:,}" if self.fewest == self.most else f"{self.fewest:,} to {self.most:,}"
            wanted = f"{config.minimum_words} to {config.maximum_words} words"
            reasons.append(f"none has a sentence of {wanted}, but sentences of {has}; set {keys}")
        if self.apart:
            reasons.append(f"the tokens of {self.apart:,} do not tell their sentences apart; make the passages again")
        if self.single:
            each = f"each of the other {self.single:,}" if reasons else "each"
            reasons.append(
                f"{each} is a single sentence, which training could not hide from itself; without queries (null for this"
                " stage, for the one of its passages, and for `queries` of what reads it) coCondenser trains on two spans of"
                " a document"
            )
        return "; ".join(reasons) or "none has a sentence"


def extract_queries(config: ExtractQueriesConfig, context: Context) -> dict[str, Any]:
    """Write the queries; for sentences also places.npy (queries, 2): each query's span in the passage's token ids.

    Raises:
        UserError: titles are requested and the passages have none, or no passage has a query.
    """
    passages = Passages(context.input("passages"))
    column = passages.table.column("title" if config.kind == "title" else "text")
    places: list[tuple[int, int]] = []
    refused = _Refused()
    if config.kind == "title":
        if passages.titles is None:
            raise UserError(
                f"stages.{context.stage_name}.kind: title, but the passages have none; set titles: true in their stage"
            )
        counts = write_queries(enumerate(column), context)
        return {**counts, "remove": config.remove}
    titles = passages.table.column("title") if config.kind == "both" else None
    times = Counter(titles or ())
    with progress(f"{context.stage_name}: words", len(column), "passages") as task:
        salience = Salience.of(column, task.advance)

    def pairs() -> Iterator[Pair]:
        with progress(context.stage_name, len(column), "passages") as task:
            for row, text in enumerate(column):
                title = "" if titles is None or times[titles[row]] > 1 else " ".join(distinct([titles[row]]))
                if title:
                    places.append((-1, -1))
                    yield row, title
                pieces = [text[begin:end] for begin, end in sentences(text)]
                known = passages.store.sentence_spans(row)
                seen = {title} if title else set[str]()
                most = config.number + len(seen)
                aligned = len(known) == len(pieces)
                if config.remove and (len(pieces) < 2 or not aligned):
                    refused.single += len(pieces) < 2
                    refused.apart += len(pieces) > 1
                    task.advance()
                    continue
                ranked = salience.ranked(pieces, config.minimum_words, config.maximum_words)
                if not ranked:
                    refused.unfit(map(number_of_plain_words, pieces))
                for number in ranked:
                    query = " ".join(distinct([pieces[number]]))
                    if not query or query in seen:
                        continue
                    if len(seen) == most:
                        break
                    seen.add(query)
                    places.append(known[number] if aligned else (-1, -1))
                    yield row, query
                task.advance()

    counts = write_queries(pairs(), context, none=lambda: refused.why(config, f"stages.{context.stage_name}"))
    np.save(context.folder / "places.npy", np.asarray(places, dtype=np.int64).reshape(-1, 2))
    assert len(Queries(context.folder).store) == len(places), "one place a query"
    return {**counts, "remove": config.remove}
