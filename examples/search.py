"""Searching with a checkpoint, and measuring it beside BM25."""

from condensery import BM25, Retriever, evaluate

retriever = Retriever("cocondenser")  # or another encoder, by folder or hub name
retriever.index({"a": {"title": "json", "text": "Parse a JSON document."}, "b": "Walk a directory tree."})
print(retriever.search("read json", k=1))
print(evaluate(retriever, "scifact/", ["NDCG@10"]), evaluate(BM25(), "scifact/", ["NDCG@10"]))  # a BEIR folder
