"""Stage ``extract_queries``: takes sentences or titles of the passages as queries, without a model."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from condensery.errors import number_of
from condensery.stages.base import Context
from condensery.stages.queries.config import ExtractQueriesConfig
from condensery.stages.queries.writing import write_queries
from condensery.system.progress import progress
from condensery.text.queries import Pair, distinct
from condensery.text.salience import Salience
from condensery.tokens.artifacts import Passages, Queries
from condensery.tokens.grouping import sentences

ALONE = (
    "only one sentence, which cannot be a query and be removed from its passage; to train coCondenser on two spans of a"
    " document instead, set this stage, the stage of its passages and the key `queries` of its readers to null"
)


def extract_queries(config: ExtractQueriesConfig, context: Context) -> dict[str, Any]:
    """Write the queries; for sentences also places.npy (queries, 2): each query's span in the passage's token ids.

    Raises:
        UserError: titles are requested and the passages have none, or no passage has a query.
    """
    passages = Passages(context.input("passages"))
    column = passages.table.column("title" if config.kind == "title" else "text")
    places: list[tuple[int, int]] = []
    alone = 0  # passages of a single sentence
    if config.kind == "title":
        if passages.titles is None:
            raise context.error("kind", "title, but the passages have none; set titles: true in their stage")
        return {**write_queries(enumerate(column), context), "remove": config.remove}
    titles = passages.table.column("title") if config.kind == "both" else None
    times = Counter(titles or ())
    with progress(f"{context.stage_name}: words", len(column), "passages") as task:
        salience = Salience.of(column, task.advance)

    def pairs() -> Iterator[Pair]:
        nonlocal alone
        with progress(context.stage_name, len(column), "passages") as task:
            for row, text in enumerate(column):
                title = "" if titles is None or times[titles[row]] > 1 else " ".join(distinct([titles[row]]))
                if title:
                    places.append((-1, -1))
                    yield row, title
                pieces = [text[begin:end] for begin, end in sentences(text, config.sentence_language)]
                known = passages.store.sentence_spans(row)
                seen = {title} if title else set[str]()
                most = config.number + len(seen)
                aligned = len(known) == len(pieces)
                if config.remove and (len(pieces) < 2 or not aligned):
                    alone += len(pieces) < 2
                    task.advance()
                    continue
                for number in salience.ranked(pieces, config.minimum_words, config.maximum_words):
                    query = " ".join(distinct([pieces[number]]))
                    if not query or query in seen:
                        continue
                    if len(seen) == most:
                        break
                    seen.add(query)
                    places.append(known[number] if aligned else (-1, -1))
                    yield row, query
                task.advance()

    def why() -> str:
        advice = f"set {context.place('minimum_words')}=1, or raise maximum_words"
        fit = f"a sentence of {config.minimum_words} to {config.maximum_words} words; {advice}"
        others = [f"no {'other ' * bool(alone)}passage has {fit}"] if alone < len(column) else []
        return "; ".join(others + [number_of(alone, f"passages have {ALONE}")] * bool(alone))

    counts = write_queries(pairs(), context, none=why)
    np.save(context.folder / "places.npy", np.asarray(places, dtype=np.int64).reshape(-1, 2))
    assert len(Queries(context.folder).store) == len(places), "one place a query"
    return {**counts, "remove": config.remove}
