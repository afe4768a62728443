"""A retriever and BM25 in a vector store: dense and sparse vectors, hybrid search, and passages that are added later."""

import json
from collections import Counter
from uuid import NAMESPACE_URL, uuid5

from qdrant_client import QdrantClient, models
from sentence_transformers import SentenceTransformer

from condensery import BM25, Retriever

with open("scifact/corpus.jsonl", encoding="utf-8") as lines:
    passages = {one["_id"]: {"title": one["title"], "text": one["text"]} for one in map(json.loads, lines)}
retriever = Retriever("adapted")
bm25 = BM25().index(passages)

store = QdrantClient(path="store")  # a folder; QdrantClient(url=...) is a server
store.create_collection(
    "passages",
    vectors_config={"dense": models.VectorParams(size=retriever.model.hidden_size, distance=models.Distance.DOT)},
    sparse_vectors_config={"bm25": models.SparseVectorParams(modifier=models.Modifier.IDF)},
)


def sparse(vector):
    return models.SparseVector(indices=list(vector), values=list(vector.values()))


def add(passages):
    texts, titles = ([one[part] for one in passages.values()] for part in ("text", "title"))
    vectors = zip(retriever.encode_passages(texts, titles), bm25.encode_passages(texts, titles), strict=True)
    points = (
        models.PointStruct(
            id=str(uuid5(NAMESPACE_URL, name)),
            vector={"dense": dense.tolist(), "bm25": sparse(words)},
            payload={"id": name, **passage},
        )
        for (name, passage), (dense, words) in zip(passages.items(), vectors, strict=True)
    )
    store.upload_points("passages", points, wait=True)


add(passages)


def vectors_of(query):
    return {"dense": retriever.encode_queries([query])[0].tolist(), "bm25": sparse(bm25.encode_queries([query])[0])}


def search(query, k=10, depth=100):
    sides = [models.Prefetch(query=vector, using=name, limit=depth) for name, vector in vectors_of(query).items()]
    found = store.query_points("passages", prefetch=sides, query=models.RrfQuery(rrf=models.Rrf(k=61)), limit=k)
    return [(point.payload["id"], point.score) for point in found.points]


print(search("what is known of rain"))


def search_weighted(query, k=10, depth=1000):
    vectors, scores = vectors_of(query), Counter()
    for name, weight in (("bm25", 0.6), ("dense", 0.4)):
        found = store.query_points("passages", query=vectors[name], using=name, limit=depth).points
        lowest, highest = (found[-1].score, found[0].score) if found else (0, 0)
        for point in found:
            share = (point.score - lowest) / (highest - lowest) if highest > lowest else 1
            scores[point.payload["id"]] += weight * share
    return scores.most_common(k)


print(search_weighted("what is known of rain"))

add({"news": {"title": "Weather", "text": "Rain is expected in the afternoon."}})
print(search("rain in the afternoon", k=1))

model = SentenceTransformer("adapted")
print(
    model.similarity(model.encode_query(["what is known of rain"]), model.encode_document(["Weather [SEP] Rain fell."]))
)
