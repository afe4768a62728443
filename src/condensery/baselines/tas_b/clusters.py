"""Stage ``cluster_queries``: k-means over query vectors (Hofstätter et al. 2021, "Topic Aware Query Sampling")."""

from pathlib import Path
from typing import Any

import faiss
import numpy as np

from condensery.baselines.tas_b.config import ClusterQueriesConfig
from condensery.errors import UserError, number_of
from condensery.randomness import hash64
from condensery.retrieval.finite import check_finite
from condensery.retrieval.indexes.opening import open_index
from condensery.stages.base import Context
from condensery.system.files import load_array
from condensery.text.collection import Collection

QUERIES, CLUSTERS = "queries.npy", "clusters.npy"  # rows of the queries (n,), ascending, and the cluster of each (n,)


def cluster_queries(config: ClusterQueriesConfig, context: Context) -> dict[str, Any]:
    """Write the row of each query and the index of its cluster.

    Raises:
        UserError: the index has no query vectors, or there are fewer queries than clusters.
    """
    collection = Collection(context.input("corpus"))
    index: Any = open_index(context.input("retriever"), collection, context.runtime.threads, device="cpu")
    index = getattr(index, "exact", index)  # an approximate index holds the exact index
    if not hasattr(index, "query_vectors"):
        raise context.error("retriever", f"{config.retriever} has no vectors of queries; name a dense retriever")
    rows = np.sort(collection.qrels(config.split).query_set)  # (n,)
    if len(rows) < config.clusters:
        message = f"{config.clusters:,} clusters of {len(rows):,} queries; set it to {len(rows):,} at most"
        raise context.error("clusters", message)
    vectors = index.query_vectors(rows)  # (n, d)
    check_finite(vectors, f"{context.input('retriever')}: the vector of query", rows)
    faiss.omp_set_num_threads(context.runtime.threads)
    kmeans = faiss.Kmeans(
        vectors.shape[1],
        config.clusters,
        niter=config.iterations,
        seed=hash64(config.seed, "query clusters") % 2**31,
        min_points_per_centroid=1,
        max_points_per_centroid=len(rows),  # all queries, not a sample
    )
    kmeans.train(vectors)
    clusters = kmeans.index.search(vectors, 1)[1][:, 0].astype(np.int32)  # (n,)
    sizes = np.bincount(clusters, minlength=config.clusters)  # (clusters,)
    np.save(context.folder / QUERIES, rows)
    np.save(context.folder / CLUSTERS, clusters)
    found = {"queries": len(rows), "clusters": int((sizes > 0).sum()), "largest": int(sizes.max())}
    context.say(f"{number_of(found['queries'], 'queries')} in {number_of(found['clusters'], 'clusters')}")
    return {**found, "smallest": int(sizes[sizes > 0].min())}


def clusters_of(folder: Path, rows: np.ndarray, where: str) -> np.ndarray:
    """Return the clusters (q,) of the queries ``rows`` (q,).

    Raises:
        UserError: a query has no cluster. ``where`` names the key in the message.
    """
    known, clusters = load_array(folder / QUERIES), load_array(folder / CLUSTERS)  # (n,) each
    places = np.minimum(np.searchsorted(known, rows), len(known) - 1)  # (q,)
    if missing := int((known[places] != rows).sum()):
        raise UserError(
            f"{where}: {missing:,} of {len(rows):,} training queries are in no cluster; cluster the queries of the split that"
            " is trained on, and leave out labels"
        )
    return np.asarray(clusters[places])
