"""Stage ``tokens``: every text of a collection tokenised once."""

from typing import Annotated, Any

from pydantic import Field

from condensery.stages.base import Context, Input, Operational, StageConfig, stage


class TokensConfig(StageConfig):
    """``titles``: passages are read as title [SEP] text."""

    corpus: Annotated[str, Input("corpus")]
    tokenizer: Annotated[str, Input("tokenizer")]
    titles: bool
    workers: Annotated[int, Field(ge=1), Operational()]


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
