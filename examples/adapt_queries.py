"""A released retriever, fine-tuned on judged queries with fixed passage vectors, and kept if it is better on dev queries."""

import json

import pytorch_lightning as pl

from condensery import BM25, BiEncoderModule, Fused, Retriever, TripleDataModule, evaluate

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
with open("scifact/corpus.jsonl") as lines:
    passages = {row["_id"]: row for row in map(json.loads, lines)}
titles = [(passage["title"], name) for name, passage in passages.items()]  # queries, each with the passage it asks for

student = Retriever(MODEL).index(passages)
data = TripleDataModule(
    "scifact",
    student=student,
    negatives=student,
    negatives_per_query=50,
    mining_depth=100,
    text_queries=titles,
    batch_size=64,
    shared_negatives=4096,
)
module = BiEncoderModule(MODEL, train_passages=False, temperature=0.05, learning_rate=1e-4)
pl.Trainer(max_steps=100).fit(module, data)
module.save_pretrained("tuned")

tuned = Retriever("tuned")
best = max(student, tuned, key=lambda one: evaluate(one, "scifact/", split="dev")["NDCG@10"])
print("kept: " + ("tuned" if best is tuned else "the start"))
print(evaluate(student, "scifact/"), evaluate(best, "scifact/"))
print(evaluate(Fused([BM25(), best], weights=[0.6, 0.4]), "scifact/"))
