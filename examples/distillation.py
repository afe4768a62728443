"""Fine-tuning on a teacher's scores. BM25 is the teacher here; a `CrossEncoder(NAME)` of sentence-transformers is better."""

import pytorch_lightning as pl

from condensery import BM25, BiEncoderModule, Retriever, TripleDataModule, evaluate

data = TripleDataModule("scifact/", tokenizer="cocondenser", negatives=BM25, negatives_per_query=7, teacher=BM25)
loss = {"name": "kl", "teacher_temperature": 5.0, "contrast_weight": 0.5}
module = BiEncoderModule("cocondenser", loss=loss, learning_rate=2e-5)
pl.Trainer(max_epochs=3).fit(module, data)
print(evaluate(Retriever(module), "scifact/", metrics=["NDCG@10"]))
