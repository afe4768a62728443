"""Fine-tuning on judged queries with hard negatives from BM25, then searching and measuring."""

import pytorch_lightning as pl
from pytorch_lightning.callbacks import LearningRateMonitor

from condensery import BM25, BiEncoderModule, Retriever, TripleDataModule, evaluate

data = TripleDataModule("scifact/", tokenizer="cocondenser", negatives=BM25, negatives_per_query=7)
module = BiEncoderModule("cocondenser", loss="info_nce", learning_rate=2e-5)
pl.Trainer(max_epochs=3, callbacks=[LearningRateMonitor()]).fit(module, data)

retriever = Retriever(module)  # or Retriever("folder or hub name")
retriever.index(["rain falls when drops grow heavy", "iron rusts in water and air"])
print(retriever.search("what causes rain", k=1)[0].text)
print(evaluate(retriever, "scifact/", metrics=["NDCG@10"]))
