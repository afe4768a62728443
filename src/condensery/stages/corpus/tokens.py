"""Stage ``tokens``: every text of a collection tokenised once."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from condensery.stages.base import Context, Input, Operational, StageConfig, stage
from condensery.stages.work import Read, Sizes, Work, known, over, product, total
from condensery.text.sizes import CollectionSizes


class TokensConfig(StageConfig):
    """``titles``: passages are read as title [SEP] text."""

    corpus: Annotated[str, Input("corpus")]
    tokenizer: Annotated[str, Input("tokenizer")]
    titles: bool
    workers: Annotated[int, Field(ge=1), Operational()]

    def work(self, read: Read) -> Work:
        """Every text is tokenised once; a token takes two bytes, and four where the vocabulary is larger than 65,536."""
        sizes = known(read)
        texts = product(sizes.collection.passages, sizes.collection.passage_tokens)
        if sizes.collection.documents is not None:
            texts = total([texts, sizes.tokens])
        each = 4.0 if (sizes.vocabulary or 0) > 1 << 16 else 2.0
        return Work(sizes, seconds=product(2.4e-6, texts), disk=product(each, texts))

    def actual_sizes(self, expected: Sizes, metrics: Mapping[str, Any]) -> Sizes:
        """The mean lengths, as they were counted."""
        texts = expected.collection
        counted = CollectionSizes(
            passage_tokens=metrics["passages"] / (texts.passages or 1),
            document_tokens=metrics["documents"] / texts.documents if texts.documents else None,
        )
        return over(expected, Sizes(counted))


@stage("tokens", version=1, makes="tokens")
def tokens(config: TokensConfig, context: Context) -> dict[str, Any]:
    """Write the token stores of passages, queries, titles and separate documents."""
    from condensery.text.collection import Collection
    from condensery.tokens.artifacts import Tokens, tokenise_collection, unknown_words

    collection, folder = Collection(context.input("corpus")), context.input("tokenizer")
    how: Any = {"titles": config.titles, "workers": config.workers, "label": context.stage_name}
    stores = tokenise_collection(collection, folder, context.folder, **how)
    counts = {name: store.token_count for name, store in stores.items()}
    return {**counts, **unknown_words(stores, Tokens(context.folder).vocabulary.unk)}
