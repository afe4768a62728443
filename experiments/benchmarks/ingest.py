"""Time reading and tokenising a collection, and tokenising its texts in memory by the tokenizer alone, in the same run.

    python experiments/benchmarks/ingest.py [passages=50000] [rounds=3]

The program makes a BEIR corpus of ``passages`` passages of 20 to 100 words, and trains a WordPiece tokenizer on them. The
words are drawn by their frequency from a vocabulary as large as that of a language. The project reads and checks the file,
writes the collection, tokenises every passage, and writes the token store. The tokenizer alone gets lists of strings. Both
use one thread. The program prints one JSON line:

    read_cpu_s               JSON lines to a collection on disk
    tokenise_cpu_s           the collection to a token store
    sentences_cpu_s          tokenise_cpu_s with the starts of sentences, which spans for pre-training need
    tokenizer_cpu_s          the tokenizer alone, encode_batch_fast
    offsets_cpu_s            the tokenizer alone, encode_batch, which also returns the offsets that sentences need
    ratio                    tokenizer_cpu_s / (read_cpu_s + tokenise_cpu_s)
    ratio_with_sentences     offsets_cpu_s / (read_cpu_s + sentences_cpu_s)
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import rmtree

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
from sizes import given, in_turn

from condensery.text.collection import Collection
from condensery.text.formats.beir import BeirSource
from condensery.text.formats.beir import read as read_beir
from condensery.text.source import Splits
from condensery.text.writer import CollectionWriter
from condensery.tokens.store import tokenise
from condensery.tokens.tokenizer import train_wordpiece
from condensery.tokens.workers import read_tokenizer

WORDS, BATCH = 40_000, 512


def passages_of(number: int) -> Iterator[str]:
    """Yield texts of made-up words in sentences of 5 to 25 words. A few words occur in most texts, and most words in few."""
    random = np.random.default_rng(1)
    letters = np.array(list("etaoinshrdlucmfwyp"))
    words = ["".join(random.choice(letters, random.integers(2, 11))) for _ in range(WORDS)]
    chances = 1.0 / np.arange(2, WORDS + 2)
    drawn = iter(random.choice(WORDS, size=100 * number, p=chances / chances.sum()))
    for length in random.integers(20, 101, number):
        text: list[str] = []
        while len(text) < length:
            sentence = [words[next(drawn)] for _ in range(min(random.integers(5, 26), length - len(text)))]
            text += [sentence[0].capitalize(), *sentence[1:]]
            text[-1] += "."
        yield " ".join(text)


def main(passages: str, rounds: str) -> None:
    """Run the benchmark and print its line."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = list(passages_of(int(passages)))
        with open(folder / "corpus.jsonl", "w", encoding="utf-8") as stream:
            stream.writelines(json.dumps({"_id": f"p{i}", "text": text}) + "\n" for i, text in enumerate(texts))
        source = BeirSource(
            name="made up",
            root=str(folder),
            splits=Splits(train=None, dev=None, test=None),
            documents=None,
            empty_passages="error",
            dev_queries=0,
            unlabelled_queries=0,
        )
        train_wordpiece(texts[:5_000], 8_000, folder / "tokenizer")
        bare = read_tokenizer(folder / "tokenizer")

        def read() -> None:
            rmtree(folder / "collection", ignore_errors=True)
            with CollectionWriter(folder / "collection", "made up") as writer:
                read_beir(source, writer)

        read()
        column = Collection(folder / "collection").passages.column("text")

        def tokens(sentences: bool) -> None:
            tokenise(column, folder / "tokenizer", folder / "tokens", sentences=sentences)

        def alone(encode: Callable[..., object]) -> None:
            for first in range(0, len(texts), BATCH):
                encode(texts[first : first + BATCH], add_special_tokens=False)

        reading, plain, split, fast, offsets = in_turn(
            int(rounds),
            read,
            lambda: tokens(False),
            lambda: tokens(True),
            lambda: alone(bare.encode_batch_fast),
            lambda: alone(bare.encode_batch),
        )
    result = {
        "passages": len(texts),
        "read_cpu_s": round(reading, 2),
        "tokenise_cpu_s": round(plain, 2),
        "sentences_cpu_s": round(split, 2),
        "tokenizer_cpu_s": round(fast, 2),
        "offsets_cpu_s": round(offsets, 2),
        "ratio": round(fast / (reading + plain), 2),
        "ratio_with_sentences": round(offsets / (reading + split), 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(**given(__doc__, passages="50000", rounds="3"))
