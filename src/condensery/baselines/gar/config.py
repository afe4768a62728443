"""Configs of GAR's stages: they collect texts to learn from, train a generator, expand queries, and search.

Mao et al. 2021, "Generation-Augmented Retrieval for Open-Domain Question Answering", ACL.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge
from pydantic import Field

from condensery.ranges import Count
from condensery.retrieval.indexes.kinds import register_index
from condensery.stages.base import Input, Operational, Precision, StageConfig
from condensery.stages.checks import Split, missing_split
from condensery.stages.queries.config import GeneratorConfig
from condensery.stages.registry import stage
from condensery.stages.warm_start.config import other_dimensions
from condensery.stages.workload import QUESTION, Read, Work, known, product

register_index("expanded_queries", "condensery.baselines.gar.expansion:ExpandedQueries")


@stage("query_contexts", "training:query_contexts", version=1, makes="contexts")
class QueryContextsConfig(StageConfig):
    """Collect what a generator learns to write from a judged query: answer, sentence with the answer, passages' titles.

    The run prints which of these texts the collection lacks. The generator learns only texts that the collection has. Without
    answers, the sentence that is most similar to the query is collected.
    """

    data_checks: ClassVar[Mapping[str, Sequence[str]]] = {"corpus": ["judged"]}
    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    split: Split = "train"
    """the split whose judged queries are used"""
    targets: Annotated[list[Literal["answer", "sentence", "title"]], Field(min_length=1)] | None = None
    """texts that are collected, such as [answer]; null: all three. The paper trains one model for each kind of text"""
    titles: Count = 5
    """maximum number of titles of a query's relevant passages, which are written one after another with commas"""

    def work(self, read: Read) -> Work:
        """Estimate the work of reading the relevant passages of all queries."""
        return Work(known(read), seconds=product(1e-3, known(read).collection.queries.get(self.split)), disk=1e6)

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a split that the collection lacks."""
        return missing_split(self.split, inputs["corpus"])


@stage("train_expander", "training:train_expander", version=1, makes="expander", together=True)
class TrainExpanderConfig(GeneratorConfig):
    """Train a model that expands queries (GAR): from a query it generates an answer, a sentence or titles.

    The model reads the name of the text that it is to write (such as ``answer``), a colon, and the query.
    """

    kind = "train_expander"
    contexts: Annotated[str, Input("contexts")] = "contexts"
    """the stage with the texts that the model learns to generate (query_contexts)"""
    max_input_tokens: Annotated[int, Ge(8)] = 64
    """maximum tokens of a query together with the name before it; a longer query is truncated"""
    max_tokens: Annotated[int, Ge(2)] = 64
    """maximum tokens of a generated text, in training and in generation"""

    def work(self, read: Read) -> Work:
        """Estimate the work: each step reads ``batch_size`` queries, and predicts a text of similar length for each."""
        sizes, written = known(read), min(QUESTION, self.max_tokens)
        return self.writing(sizes, QUESTION, written, sizes.collection.queries.get("train"))

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report token vectors whose dimension differs from the model's."""
        return other_dimensions(self.vectors, inputs["vectors"], self.hidden)


@stage("expand_queries", "expansion:expand_queries", version=1, makes="expansions", together="several_shards")
class ExpandQueriesConfig(StageConfig):
    """Generate the texts that expand the queries of some splits, by greedy decoding."""

    expander: Annotated[str, Input("expander")]
    """the stage with the generator (train_expander)"""
    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    splits: Annotated[list[Split], Field(min_length=1)] | None = None
    """splits whose queries are expanded by this stage; null: all except train. Other queries are expanded in the search"""
    batch_size: Count = 32
    """queries per batch; another size may change a text, because logits are rounded differently"""
    precision: Precision
    """numeric precision of the weights and of computation: fp32, bf16 or fp16"""
    shard_size: Annotated[Count, Operational()] = 1024
    """approximate queries per shard file; devices divide the shards among themselves, and a restart keeps complete shards"""


@stage("expanded_queries", "expansion:expanded_queries", version=1, makes="index")
class ExpandedQueriesConfig(StageConfig):
    """Append each generated text to its query, search with each of these longer queries, and fuse the rankings (GAR).

    The fused ranking lists the first passage of each ranking, then the second passage of each, and so on. To fuse in another
    way, make an index for each kind of text, and name these indexes in a stage fuse.
    """

    retriever: Annotated[str, Input("index")] = "bm25"
    """the stage with an index that searches for words (bm25, expanded_bm25)"""
    expansions: Annotated[list[str], Input("expansions"), Field(min_length=1)]
    """stages with generated texts (expand_queries)"""
    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""

    def work(self, read: Read) -> Work:
        """Estimate no work: nothing is indexed here. A search takes the work of ``retriever`` for each text of a query."""
        return Work(known(read, "retriever", "corpus"), seconds=0.0, disk=1e3)
