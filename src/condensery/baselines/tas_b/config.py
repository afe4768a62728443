"""Configs of the stages of TAS-Balanced (Hofstätter et al. 2021)."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from condensery.ranges import Count, CountOrZero, Positive
from condensery.stages.base import Input, Seed, StageConfig, TextLength
from condensery.stages.checks import Split, missing_split, not_encoded
from condensery.stages.finetuning.config import FinetuneConfig
from condensery.stages.registry import stage
from condensery.stages.workload import Read, Work, known, product


@stage("cluster_queries", "clusters:cluster_queries", version=1, makes="query_clusters")
class ClusterQueriesConfig(StageConfig):
    """Cluster the queries of a split by topic: k-means over the queries' vectors from a retriever (TAS-B)."""

    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    retriever: Annotated[str, Input("index")]
    """the stage with a dense index, or with an encoder (the index is then built); the query vectors are clustered"""
    split: Split = "train"
    """the split whose queries are clustered"""
    clusters: Count = 2000
    """number of clusters; in the paper a cluster has about 200 queries"""
    iterations: Count = 25
    """iterations of k-means"""
    seed: Seed
    """random seed of the first centroids"""

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a split that the collection lacks, or whose queries the index does not hold."""
        missing = missing_split(self.split, inputs["corpus"])
        return missing or not_encoded(self.split, "retriever", inputs["retriever"])

    def work(self, read: Read) -> Work:
        """Estimate the work of comparing each query with each centroid in each iteration."""
        sizes = known(read)
        queries = sizes.collection.queries.get(self.split)
        products = product(2.0 * self.clusters * self.iterations, queries, sizes.dimensions)
        return Work(sizes, products=products, seconds=1.0, disk=product(12.0, queries))


@stage("finetune_tas_b", "batches:finetune_tas_b", version=1, makes="encoder", together=True)
class FinetuneTasBConfig(FinetuneConfig):
    """Train a bi-encoder on batches of one topic with balanced margins (TAS-Balanced), by default with dual supervision.

    Each batch draws its queries from random clusters. An epoch has as many batches as one pass over the queries.
    """

    clusters: Annotated[str, Input("query_clusters")]
    """the stage with the queries' clusters (cluster_queries)"""
    clusters_per_batch: Count = 1
    """number of clusters that a batch is drawn from; more if these have too few queries"""
    margin_bins: CountOrZero = 10
    """number of bins of the teacher's margins (positive minus negative); all bins are equally likely; 0: all pairs are
    equally likely"""
    negatives_per_query: CountOrZero = 1
    """hard negatives sampled from the pool each time a query is used"""
    query_length: TextLength = 30
    """maximum tokens of a query, including [CLS] and [SEP]"""
    passage_length: TextLength = 200
    """maximum tokens of a passage; with ``passages``, the length of that index is used instead"""
    loss: str | dict[str, Any] = "dual_supervision"
    """dual_supervision, with a ``teacher`` and an ``in_batch_teacher``; margin_mse or kl, with one of the two teachers;
    or any other loss of finetune"""
    batch_size: Count = 32
    """queries per step"""
    learning_rate: Positive = 7e-6
    """peak learning rate of AdamW"""

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Also report another ``batching``, queries without clusters, margins without a teacher, and weighted negatives."""
        if self.batching != "random":
            return "batching", f"{self.batching}, but the batches of finetune_tas_b are those of clusters; leave it out"
        if self.labels:
            return "labels", "queries without judgements are in no cluster; leave labels out"
        for clusters in inputs["clusters"]:
            if (split := getattr(clusters, "split", self.split)) != self.split:
                return "clusters", f"the queries of {self.clusters} are those of {split}, not of {self.split}"
        if self.margin_bins and not self.teacher:
            return "margin_bins", "balances the margins of a teacher, but none is set; set teacher, or this key to 0"
        if self.margin_bins and self.negative_weights:
            return "negative_weights", "pairs are drawn by their margins; set this to null, or margin_bins to 0"
        if self.clusters_per_batch > self.batch_size:
            return "clusters_per_batch", f"{self.clusters_per_batch}, more than batch_size; lower it"
        return super().input_error(inputs)
