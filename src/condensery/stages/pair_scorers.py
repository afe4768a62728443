"""Cross-encoders for the stages that score pairs of a query and a passage."""

from dataclasses import replace

from condensery.models.cross_encoder import CrossEncoder, load_reranker
from condensery.retrieval.cross_encoders import PairScorer
from condensery.stages.base import Artifact, Context
from condensery.stages.devices import on_device
from condensery.text.collection import Collection
from condensery.tokens.artifacts import Tokens, pair_reader
from condensery.tokens.store import TokenStore


def cross_encoder(
    artifact: Artifact, collection: Collection, precision: str, context: Context, queries: TokenStore | None = None
) -> PairScorer:
    """Load a cross-encoder. It reads token ids of its own tokenizer, so the tokenizers of an ensemble may differ.

    Args:
        artifact: artifact of the cross-encoder.
        collection: the collection whose pairs are scored.
        precision: fp32, bf16 or fp16.
        context: context of the stage that scores.
        queries: token ids, from the same tokenizer, of queries that replace the collection's queries; None = no replacement.

    Raises:
        UserError: the cross-encoder was trained on another collection.
    """
    tokens, reranker = Tokens(artifact.input("tokens").path), load_reranker(artifact.path)
    if (len(tokens.queries), len(tokens.passages)) != (len(collection.queries), len(collection.passages)):
        raise context.error("cross_encoders", f"{artifact.kind}/{artifact.id} was trained on another collection")
    reader = pair_reader(tokens, reranker.query_length, reranker.length, reranker.separators)
    if queries is not None:
        reader = replace(reader, queries=queries)
    return PairScorer(reader, on_device(reranker.model, CrossEncoder.scores, context, precision))
