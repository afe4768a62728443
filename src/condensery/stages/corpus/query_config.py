"""The keys that all stages share which make queries for passages; by itself, so that a dry run stays fast."""

from typing import Annotated

from condensery.stages.base import Input, StageConfig
from condensery.stages.work import Read, Work, known, product


class QueryStageConfig(StageConfig):
    """The passages that queries are made for; ``tokenizer`` reads the queries as it read the passages."""

    passages: Annotated[str, Input("passages")]
    tokenizer: Annotated[str, Input("tokenizer")]

    def work(self, read: Read) -> Work:
        """Queries that are read or taken from the passages: a few for each."""
        sizes = known(read)
        passages = sizes.collection.passages
        return Work(sizes, seconds=product(1e-4, passages), disk=product(100.0, passages))
