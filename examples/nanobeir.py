"""A retriever measured on NanoBEIR by sentence-transformers and by Condensery, with the same figures."""

from pathlib import Path

from datasets import load_dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.evaluation import NanoBEIREvaluator

from condensery import Retriever, evaluate

theirs = NanoBEIREvaluator(["scifact"], dataset_id="nanobeir", write_csv=False)(SentenceTransformer("adapted"))
print(theirs["NanoSciFact_dot_ndcg@10"], theirs["NanoSciFact_dot_mrr@10"], theirs["NanoSciFact_dot_recall@10"])

beir = Path("nano-scifact")
(beir / "qrels").mkdir(parents=True)
for part in ("corpus", "queries"):
    load_dataset("nanobeir", part, split="NanoSciFact").to_json(beir / f"{part}.jsonl")
judged = load_dataset("nanobeir", "qrels", split="NanoSciFact")
judged.add_column("score", [1] * len(judged)).to_csv(beir / "qrels" / "test.tsv", sep="\t")
print(evaluate(Retriever("adapted", precision="fp32"), beir, ["NDCG@10", "MRR@10", "Recall@10"]))
