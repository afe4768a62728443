"""Stage ``encode``: encodes passages and queries into the index of a dense retriever."""

import shutil
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.models.biencoder import QUERY, BiEncoder
from condensery.models.checkpoints.retrievers import load_retriever
from condensery.retrieval.indexes.encoding import EncoderInput, Encoding, write_dense_index
from condensery.retrieval.indexes.quantisation_loss import described
from condensery.retrieval.indexes.quantiser import FILE as LEVELS
from condensery.retrieval.indexes.quantiser import QUANTISED, Quantiser
from condensery.stages.base import Context
from condensery.stages.devices import on_device
from condensery.stages.frozen_passages import check_encoded_by
from condensery.stages.indexes.config import EncodeConfig
from condensery.stages.sharing import process_group
from condensery.system import memory_growth
from condensery.system.files import read_json
from condensery.text.collection import Collection
from condensery.tokens.artifacts import Tokens
from condensery.tokens.prefixes import Prefixes
from condensery.tokens.text_reader import TextReader
from condensery.tokens.tokenizer import check_same_tokenizer

REPORTED = 0.1  # a line is printed if at least this share of the passages is not read whole


def several_shards(config: EncodeConfig, context: Context) -> bool:

    tokens = Tokens(context.input("tokens"))
    return max(len(tokens.passages), len(tokens.queries)) > config.shard_size


def encode(config: EncodeConfig, context: Context) -> dict[str, Any]:
    """Write the shards of passage vectors, the query vectors and index.json; a restart keeps complete shards."""
    memory_growth.keep_flat()
    group, tokens = process_group(context.runtime), Tokens(context.input("tokens"))
    retriever = load_retriever(context.input("model"))
    what, advice = f"{context.place()}: {config.model}", "set backbone.tokenizer to the encoder's own"
    check_same_tokenizer(context.input("model"), tokens.vocabulary, what, advice)
    vectors = on_device(retriever.model, BiEncoder.vectors, context, config.precision)
    lengths = retriever.query_length, retriever.passage_length
    own = retriever.model.settings
    before = Prefixes.of(context.input("model"), own.query_prefix, own.passage_prefix, lengths)
    reader = TextReader(tokens.passages, tokens.vocabulary, lengths[1], tokens.titles, before.passage)
    passages = EncoderInput(reader, config.windows)
    reader = TextReader(tokens.queries, tokens.vocabulary, lengths[0], prefix=before.query)
    questions = EncoderInput(reader, rows=_asked(config, context))
    if group.rank == 0 and (unread := passages.unread()) >= REPORTED:
        longer = f"{unread:.0%} of the passages are longer than the {lengths[1]} tokens that the encoder reads"
        context.say(f"{longer} (stage.encode.windows={2 * config.windows} reads more)")
    encoder = context.artifact("model").reference
    encoding = Encoding(
        context.folder, config.shard_size, config.chunk_tokens, config.dtype, group, context.stage_name, encoder
    )
    # the queries come first, because they also measure the loss by quantisation
    encoding.queries(lambda chunk: vectors(replace(chunk, tower=QUERY)), questions)
    quantising = encoding.passages(vectors, passages) if config.passages is None else None
    if config.passages is not None:
        group.from_rank_zero(lambda: _take_passages(config, context, len(passages)))
    group.leave_unless_rank_zero()
    about = write_dense_index(context.folder, passages.cut if config.windows > 1 else None, quantising)
    values: dict[str, Any] = {key: about[key] for key in ("passages", "windows", "queries", "dim") if key in about}
    if quantising is None:
        return values
    return {**values, **_lost(about, quantising.quantiser, config.dtype, context)}


def _asked(config: EncodeConfig, context: Context) -> NDArray[np.int64] | None:
    """Return the rows (n,) of the queries of ``query_splits``, ascending; None if all queries are encoded."""
    corpus = context.artifact("tokens").ancestor("corpus") if config.query_splits else None
    if config.query_splits is None or corpus is None:
        return None
    collection = Collection(corpus.path)
    there = [split for split in config.query_splits if split in collection.description["splits"]]
    return np.unique(np.concatenate([np.empty(0, np.int64), *map(collection.questions, there)]))


def _lost(about: dict[str, Any], quantiser: Quantiser, dtype: str, context: Context) -> dict[str, Any]:
    """Print the size in bytes and the recall of quantised vectors, and return both for the manifest."""
    vectors = about.get("windows", about["passages"])
    found = {key: value for key, value in about.items() if key.startswith("recall_")}
    compared = f"{about['compared']:,} queries"
    context.say(described(dtype, vectors, quantiser, found, compared))
    return {"bytes": vectors * quantiser.width, "compared": about["compared"], **found}


def _take_passages(config: EncodeConfig, context: Context, texts: int) -> None:
    """Copy the passage vectors of another encoder that has the same passage tower.

    Raises:
        UserError: the towers, the settings or the passages differ.
    """
    index = context.artifact("passages")
    key, encoder = context.place("passages"), index.ancestor("encoder")
    theirs = index.manifest["config"]
    mine, first = (load_retriever(one) for one in (context.input("model"), encoder.path if encoder else index.path))
    check_encoded_by(mine.model, mine.passage_length, first, f"{key}: {config.passages}")
    for name in ("precision", "dtype", "windows"):
        if theirs.get(name) != getattr(config, name):
            raise UserError(f"{key}: {name} of {config.passages} is {theirs.get(name)}, here {getattr(config, name)}")
    if read_json(index.path / "layout.json")["texts"] != texts:
        raise UserError(f"{key}: {config.passages} has other passages than this stage's tokens; set it to null")
    shutil.rmtree(context.folder / "passages", ignore_errors=True)
    for name in ("layout.json", *([LEVELS] if config.dtype in QUANTISED else [])):
        shutil.copy2(index.path / name, context.folder / name)
    shutil.copytree(index.path / "passages", context.folder / "passages")
