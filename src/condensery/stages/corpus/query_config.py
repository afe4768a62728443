"""The keys that all stages share which make queries for passages; by itself, so that a dry run stays fast."""

from typing import Annotated

from condensery.stages.base import Input, StageConfig


class QueryStageConfig(StageConfig):
    """The passages that queries are made for; ``tokenizer`` reads the queries as it read the passages."""

    passages: Annotated[str, Input("passages")]
    tokenizer: Annotated[str, Input("tokenizer")]
