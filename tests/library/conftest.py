"""A small model and small texts in the places of those that the examples name."""

import json
import os
from pathlib import Path

import pytest
import torch
from sentences import SENTENCES
from transformers import BertConfig, BertForMaskedLM

from condensery.tokens.tokenizer import train_wordpiece


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``notes/`` (text), ``scifact/`` (BEIR) and ``bert`` (a model with its tokenizer)."""
    root = tmp_path_factory.mktemp("world")
    (root / "notes").mkdir()
    for number in range(24):
        turned = [SENTENCES[(number + step * (1 + number % 5)) % 6] for step in range(8)]
        (root / "notes" / f"{number}.txt").write_text(" ".join(turned) + "\n")
    beir = root / "scifact"
    (beir / "qrels").mkdir(parents=True)
    corpus = [{"_id": f"p{n}", "title": f"note {n}", "text": SENTENCES[n % 6] + f" Note {n}."} for n in range(18)]
    asked = [{"_id": f"q{n}", "text": " ".join(SENTENCES[n % 6].split()[:4]) + f" {n}"} for n in range(18)]
    for name, rows in (("corpus", corpus), ("queries", asked)):
        (beir / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split, which in (("train", range(10)), ("dev", range(10, 14)), ("test", range(14, 18))):
        lines = ["query-id\tcorpus-id\tscore", *(f"q{n}\tp{n}\t1" for n in which)]
        (beir / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    tokenizer = train_wordpiece(SENTENCES * 3 + ["note query 0 1 2 3 4 5 6 7 8 9"], 300, root / "bert")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=512, **sizes)
    BertForMaskedLM(config).save_pretrained(root / "bert")
    return root


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["CONDENSERY_CACHE"] = str(tmp_path_factory.mktemp("cache"))
