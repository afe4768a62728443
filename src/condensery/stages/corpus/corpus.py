"""Stage ``corpus``: the user's files, in any format, become a collection on disk."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from condensery.stages.base import Context, StageConfig, stage
from condensery.stages.work import Read, Sizes, Work, over, product, total
from condensery.text.config import DataConfig
from condensery.text.sizes import CHARACTERS, HELD_OUT_SHARE, CollectionSizes


class CorpusConfig(StageConfig):
    """``data`` says what is read; see ``conf/data/``."""

    data: DataConfig

    def work(self, read: Read) -> Work:
        """As large as the input; the text lies there once."""
        sizes = Sizes(self._sizes())
        texts = total([sizes.tokens, product(sizes.collection.passages, sizes.collection.passage_tokens)])
        if sizes.collection.documents is None:
            texts = sizes.tokens
        return Work(sizes, seconds=sizes.collection.reading, disk=product(1.15 * CHARACTERS, texts))

    def actual_sizes(self, expected: Sizes, metrics: Mapping[str, Any]) -> Sizes:
        """Passages, separate documents and judged queries, as they were counted."""
        tokens = metrics["passage_characters"] / CHARACTERS / max(1, metrics["passages"])
        queries = {split: one["queries"] for split, one in metrics["splits"].items()}
        unjudged = metrics["queries"] - sum(queries.values())
        counted = CollectionSizes(metrics["passages"], tokens, metrics["documents"] or None, None, queries, unjudged)
        return Sizes(over(expected.collection, counted))

    def _sizes(self) -> CollectionSizes:
        """Of the input; some training queries become dev where there is none, and some lose their judgements."""
        sizes, aside = self.data.sizes(), self.data.unlabelled_queries
        train, unjudged = sizes.queries.get("train"), sizes.unjudged
        if train is None:
            return sizes
        judged = dict(sizes.queries)
        if self.data.dev_queries and "dev" not in {*judged, *self.data.answered_splits()}:
            judged["dev"] = min(float(self.data.dev_queries), train / HELD_OUT_SHARE)
            train -= judged["dev"]
        if isinstance(aside, int):
            unjudged = min(float(aside), train / 2)
            train -= unjudged
        return replace(sizes, queries={**judged, "train": train}, unjudged=unjudged)


@stage("corpus", version=1, makes="corpus")
def corpus(config: CorpusConfig, context: Context) -> dict[str, Any]:
    """Read the input and check it; the counts and the content hash go into the manifest."""
    from condensery.text import read_collection

    return dict(read_collection(config.data, context.folder).description)
