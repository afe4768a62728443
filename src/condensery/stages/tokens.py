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
    from condensery.stages.texts import pretraining_texts, unknown_words
    from condensery.text.collection import Collection
    from condensery.tokens.store import tokenise
    from condensery.tokens.tokenizer import load_tokenizer
    from condensery.tokens.vocabulary import Vocabulary

    collection, folder = Collection(context.input("corpus")), context.input("tokenizer")
    vocabulary = Vocabulary.of(load_tokenizer(folder))
    vocabulary.save(context.folder)
    texts, documents = pretraining_texts(collection)
    separate = collection.documents is not None
    passages = collection.passages.column("text")
    plan: list[tuple[str, Any, bool, Any]] = [
        ("passages", passages, not separate, None if separate else documents),
        ("queries", collection.queries.column("text"), False, None),
    ]
    if separate:
        plan.append(("documents", texts, True, documents))
    if config.titles:
        plan.append(("titles", collection.passages.column("title"), False, None))
    stores = {}
    for name, column, sentences, starts in plan:
        stores[name] = tokenise(
            column,
            folder,
            context.folder / name,
            sentences=sentences,
            documents=starts,
            workers=config.workers,
            label=f"{context.stage_name}: {name}",
        )
    counts = {name: store.token_count for name, store in stores.items()}
    return {**counts, **unknown_words(stores, vocabulary.unk)}
