"""Config of the stage that makes an index of token vectors."""

from dataclasses import replace
from typing import Annotated, Literal

from condensery.models.flops import Step
from condensery.ranges import Count
from condensery.retrieval.indexes.kinds import register_index
from condensery.stages.base import Input, Operational, Precision, StageConfig
from condensery.stages.registry import stage
from condensery.stages.workload import Read, Work, known

register_index("late_interaction", "condensery.baselines.late_interaction_index.index:open_late_interaction")


@stage("late_interaction_index", "index:build", version=1, makes="index", adapts="model")
class LateInteractionIndexConfig(StageConfig):
    """Store the token vectors of all passages, and search them exactly, or only the candidates of another index.

    Queries are encoded during the search. The manifest records the size of the index in bytes per passage. If a key
    needs an index but names a stage finetune_late_interaction or token_encoder, this index is added automatically, with
    exact search.
    """

    model: Annotated[str, Input("token_encoder")]
    """the stage with the encoder (finetune_late_interaction, token_encoder)"""
    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    tokens: Annotated[str, Input("tokens")] = "tokens"
    """the stage with the token ids of the collection, of the encoder's tokenizer"""
    retriever: Annotated[str | None, Input("index")] = None
    """a stage with an index or an encoder: only its best passages are scored; null: all passages are searched exactly,
    one block at a time"""
    depth: Count = 1000
    """number of best passages of ``retriever`` that are scored for each query"""
    precision: Precision
    """numeric precision of the encoder: fp32, bf16 or fp16"""
    dtype: Literal["float32", "float16"] = "float16"
    """format of the vectors on disk"""
    chunk_tokens: Count = 4096
    """padded tokens that the encoder processes at once"""
    shard_size: Annotated[Count, Operational()] = 20000
    """passages per shard; a restart keeps complete shards"""

    def work(self, read: Read) -> Work:
        """Estimate the work of encoding all passages.

        A vector has its numbers and a key of four bytes; a passage has a count of eight bytes.
        """
        sizes = known(read)
        texts, size, longest = sizes.collection, sizes.encoder, sizes.passage_length or 180
        if size is None or texts.passages is None or texts.passage_tokens is None:
            return Work(sizes)
        length = min(texts.passage_tokens + 2, longest)
        step = Step(size, texts.passages, length, self.chunk_tokens, trained=False, precision=self.precision)
        numbers, vectors = sizes.token_numbers or length * 128, sizes.token_vectors or length
        compared = 0 if self.retriever else int(32 * numbers)  # as if each passage had one vector of this size
        each = numbers * (2 if self.dtype == "float16" else 4) + 4 * vectors + 8
        return Work(replace(sizes, dimensions=compared), 1, step, seconds=0.0, disk=each * texts.passages)
