"""Config of the stage that makes an index of sparse vectors."""

from dataclasses import replace
from typing import Annotated

from condensery.models.flops import Step
from condensery.ranges import Count
from condensery.retrieval.indexes.kinds import register_index
from condensery.stages.base import Input, Operational, Precision, StageConfig
from condensery.stages.registry import stage
from condensery.stages.workload import Read, Work, known

register_index("splade", "condensery.baselines.splade_index.index:open_splade")


@stage("splade_index", "index:build", version=1, makes="index", adapts="model")
class SpladeIndexConfig(StageConfig):
    """Store the sparse vectors of all passages as inverted lists, and search them exactly by inner product.

    Queries are encoded during the search. The manifest records, per passage, the size of the index in bytes and the
    mean number of terms. If a key needs an index but names a stage finetune_splade or sparse_encoder, this index is added
    automatically.
    """

    model: Annotated[str, Input("sparse_encoder")]
    """the stage with the encoder (finetune_splade, sparse_encoder)"""
    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    tokens: Annotated[str, Input("tokens")] = "tokens"
    """the stage with the token ids of the collection, of the encoder's tokenizer"""
    precision: Precision
    """numeric precision of the encoder: fp32, bf16 or fp16"""
    chunk_tokens: Count = 2048
    """padded tokens that the encoder processes at once; each has a logit for every token of the vocabulary"""
    shard_size: Annotated[Count, Operational()] = 20000
    """passages per shard; a restart keeps complete shards"""

    def work(self, read: Read) -> Work:
        """Estimate the work of encoding all passages.

        The number of terms that a passage keeps is known only after training. Two terms per token are assumed. On disk, a
        term takes four bytes for its weight and four for its token id. Each passage takes four more bytes for its number of
        terms.
        """
        sizes = known(read)
        texts, size, longest = sizes.collection, sizes.encoder, sizes.passage_length or 256
        if size is None or texts.passages is None or texts.passage_tokens is None:
            return Work(sizes)
        length = min(texts.passage_tokens + 2, longest)
        step = Step(size, texts.passages, length, self.chunk_tokens, trained=False, precision=self.precision)
        return Work(replace(sizes, dimensions=0), 1, step, seconds=0.0, disk=(16 * length + 4) * texts.passages)
