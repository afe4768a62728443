"""coCondenser on a folder of texts, in a Trainer of your own."""

import pytorch_lightning as pl

from condensery import CoCondenserModule, SpanPairDataModule

data = SpanPairDataModule("notes/", tokenizer="google-bert/bert-base-uncased", length=128, batch_size=256)
module = CoCondenserModule("google-bert/bert-base-uncased", learning_rate=1e-4)
pl.Trainer(max_steps=1000).fit(module, data)
module.save_pretrained("cocondenser")  # opens in transformers and sentence-transformers
