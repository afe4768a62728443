"""A released retriever adapted to your text: its query tower learns to find what the fusion of BM25 and it finds."""

import json

import pytorch_lightning as pl

from condensery import BM25, Fused, QueryTowerModule, RankingDataModule, Retriever, evaluate

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
with open("scifact/corpus.jsonl") as lines:
    passages = {row["_id"]: row for row in map(json.loads, lines)}  # or a list of texts
queries = [passage["title"] for passage in passages.values()]  # or sentences, or what people have asked

student = Retriever(MODEL).index(passages)
teacher = Fused([BM25().index(passages), student], weights=[0.6, 0.4])
data = RankingDataModule(queries, student, teacher, batch_size=64)
module = QueryTowerModule(MODEL, learning_rate=5e-5)
pl.Trainer(max_steps=100).fit(module, data)
module.save_pretrained("adapted")

adapted = Retriever("adapted")
print(evaluate(student, "scifact/"), evaluate(adapted, "scifact/"))
print(evaluate(Fused([BM25(), adapted], weights=[0.6, 0.4]), "scifact/"))
