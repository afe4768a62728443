"""Stage ``extract_queries``: queries without any model, taken from the passages themselves: a sentence, or the title."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from condensery.stages.base import Context, stage
from condensery.stages.corpus.query_config import QueryStageConfig


class ExtractQueriesConfig(QueryStageConfig):
    """The ``number`` most salient sentences of ``minimum_words`` to ``maximum_words`` words, or the title.

    ``remove`` tells training to hide the sentence from the passage that it is a query of; a passage of one sentence,
    of which nothing would be left, then has no query, nor has one whose sentences cannot be told in its tokens.
    """

    kind: Literal["sentence", "title"]
    number: Annotated[int, Field(ge=1)]
    minimum_words: Annotated[int, Field(ge=1)]
    maximum_words: Annotated[int, Field(ge=1)]
    remove: bool

    @model_validator(mode="after")
    def _some_length_fits(self) -> Self:
        if self.minimum_words > self.maximum_words:
            raise ValueError("minimum_words is more than maximum_words")
        return self


@stage("extract_queries", version=1, makes="queries")
def extract_queries(config: ExtractQueriesConfig, context: Context) -> dict[str, Any]:
    """Write the queries; for sentences also places.npy, where each stands in the tokens of its passage."""
    from collections.abc import Iterator

    import numpy as np

    from condensery.errors import UserError
    from condensery.stages.corpus.queries import write_queries
    from condensery.system.progress import progress
    from condensery.text.queries import Pair, distinct
    from condensery.text.salience import Salience
    from condensery.tokens.artifacts import Passages, Queries
    from condensery.tokens.grouping import sentences

    passages = Passages(context.input("passages"))
    column = passages.table.column("text" if config.kind == "sentence" else "title")
    places: list[tuple[int, int]] = []
    if config.kind == "title":
        if passages.titles is None:
            raise UserError(
                f"stages.{context.stage_name}.kind: title, but the passages have none; set titles: true in their stage"
            )
        counts = write_queries(enumerate(column), context)
        return {**counts, "remove": config.remove}
    with progress(f"{context.stage_name}: words", len(column), "passages") as task:
        salience = Salience.of(column, task.advance)

    def pairs() -> Iterator[Pair]:
        with progress(context.stage_name, len(column), "passages") as task:
            for row, text in enumerate(column):
                pieces = [text[begin:end] for begin, end in sentences(text)]
                known = passages.store.sentence_spans(row)
                seen: set[str] = set()
                aligned = len(known) == len(pieces)
                candidates = [] if config.remove and (len(pieces) < 2 or not aligned) else pieces
                for number in salience.ranked(candidates, config.minimum_words, config.maximum_words):
                    query = " ".join(distinct([pieces[number]]))
                    if not query or query in seen:
                        continue
                    if len(seen) == config.number:
                        break
                    seen.add(query)
                    places.append(known[number] if aligned else (-1, -1))
                    yield row, query
                task.advance()

    alone = (
        "each is a single sentence, which training could not hide from itself; without queries (null for this stage, for the"
        " one of its passages, and for `queries` of what reads it) coCondenser trains on two spans of a document"
    )
    short = f"none has a sentence of {config.minimum_words} to {config.maximum_words} words"
    counts = write_queries(pairs(), context, none=alone if config.remove else short)
    np.save(context.folder / "places.npy", np.asarray(places, dtype=np.int64).reshape(-1, 2))
    assert len(Queries(context.folder).store) == len(places), "one place a query"
    return {**counts, "remove": config.remove}
