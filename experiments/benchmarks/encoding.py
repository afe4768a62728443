"""Encode passages as the stage `encode` does, against the bare backbone on the same tokens, in the same run.

    python experiments/benchmarks/encoding.py [shape=B] [precision=fp32] [passages=2000] [rounds=5] [threads=1] \
        [device=cpu]

Shape A is BERT-base, shape B 4 layers x 256, shape S 2 x 64; passages have 20 to 126 tokens, a chunk at most 8,192 with its
padding. Ours reads the token store, makes chunks, encodes and writes the shards of vectors; the backbone gets the chunks
ready made, runs
the library's layers with fused attention, and its CLS states are thrown away. Prints one JSON line:

    tokens_per_cpu_s, backbone_tokens_per_cpu_s    tokens without padding
    ratio                                          the first over the second
    difference                                     largest, of any number of any vector, over the largest number

With device=cuda seconds are those until the GPU has done the work.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from sizes import SHAPES, VOCABULARY, given, in_turn, language_model, mixed
from torch import Tensor

from condensery.models.encoder import Encoder
from condensery.retrieval.indexes.dense import shard_path
from condensery.retrieval.indexes.encoding import EncoderInput, encode_store
from condensery.system.files import write_json
from condensery.tokens.batches import Chunk
from condensery.tokens.store import TokenStore
from condensery.tokens.vocabulary import Vocabulary

LENGTH, BUDGET, SHARD = 128, 8_192, 1_000


def random_store(folder: Path, texts: int) -> TokenStore:
    """Texts of 18 to 126 random tokens."""
    random = np.random.default_rng(1)
    starts = np.concatenate([[0], np.cumsum(random.integers(18, LENGTH - 1, texts))]).astype(np.int64)
    folder.mkdir()
    random.integers(1_000, VOCABULARY, starts[-1]).astype(np.uint16).tofile(folder / "tokens.bin")
    np.save(folder / "starts.npy", starts)
    counts = {"texts": texts, "tokens": int(starts[-1]), "sentences": -1, "documents": -1}
    write_json(folder / "store.json", {"dtype": "uint16", **counts})
    return TokenStore(folder)


def bert_vocabulary() -> Vocabulary:
    """The ids of BERT's special tokens."""
    special = np.array([0, 100, 101, 102, 103])
    return Vocabulary(VOCABULARY, *special[[0, 2, 3, 4, 1]].tolist(), special, np.zeros(VOCABULARY, np.bool_))


def main(shape: str, precision: str, passages: str, rounds: str, threads: str, device: str) -> None:
    """Run the benchmark and print its line."""
    torch.set_num_threads(int(threads))
    ours = Encoder(language_model(SHAPES[shape], 0.1, "eager").base_model).eval().to(device)
    bare = language_model(SHAPES[shape], 0.1, "sdpa").base_model.eval().to(device)

    def cls(chunk: Chunk) -> Tensor:
        with torch.inference_mode(), mixed(precision, device):
            return ours.cls(chunk.to(device))

    def backbone(chunk: Chunk) -> Tensor:
        with torch.inference_mode(), mixed(precision, device):
            found = bare(input_ids=chunk.input_ids, attention_mask=chunk.attention_mask.long())
            return found.last_hidden_state[:, 0]

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = random_store(folder / "tokens", int(passages))
        source = EncoderInput(store, bert_vocabulary(), LENGTH)

        def stage() -> None:
            for path in (folder / "index").glob("passages/*"):
                path.unlink()
            encode_store(cls, source, folder / "index", shard_size=SHARD, budget=BUDGET)

        made = [
            chunk
            for first in range(0, len(store), SHARD)
            for chunk in source.chunks(first, min(first + SHARD, len(store)), BUDGET)
        ]
        made = [chunk.to(device) for chunk in made]
        seconds, alone = in_turn(int(rounds), stage, lambda: [backbone(chunk) for chunk in made], device=device)
        first = np.load(shard_path(folder / "index", 0))
        wanted = backbone(made[0]).float().cpu().numpy()
        difference = np.abs(first[made[0].rows.cpu().numpy()] - wanted).max() / np.abs(wanted).max()
    tokens = sum(int(chunk.lengths.sum()) for chunk in made)
    result = {
        "shape": shape,
        "precision": precision,
        "device": device,
        "passages": int(passages),
        "tokens_per_cpu_s": round(tokens / seconds),
        "backbone_tokens_per_cpu_s": round(tokens / alone),
        "ratio": round(alone / seconds, 2),
        "difference": float(f"{difference:.1e}"),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(**given(__doc__, shape="B", precision="fp32", passages="2000", rounds="5", threads="1", device="cpu"))
