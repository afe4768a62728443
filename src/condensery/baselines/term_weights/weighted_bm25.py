"""Stage ``weighted_bm25``: BM25 with predicted weights as term frequencies (DeepCT-Index: Dai and Callan 2019, §3.3)."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.baselines.term_weights.config import WeightedBm25Config
from condensery.baselines.term_weights.model import load_term_weights
from condensery.baselines.term_weights.words import ReadText, read_texts, term_frequencies, weighted_text
from condensery.models.precision import inference, with_cast_weights
from condensery.retrieval.finite import check_finite
from condensery.retrieval.indexes.bm25 import index_texts
from condensery.retrieval.indexes.terms import Analyser
from condensery.retrieval.shards import compute_in_shards
from condensery.stages.base import Context
from condensery.stages.devices import torch_device
from condensery.system.files import load_array
from condensery.system.progress import ProgressTask
from condensery.text.collection import Collection
from condensery.tokens.batches import chunks, flatten
from condensery.tokens.tokenizer import load_tokenizer

BLOCK = 1024  # passages that are tokenised at a time


class _Passages:
    """The passages of a collection as the model reads them."""

    def __init__(self, config: WeightedBm25Config, context: Context) -> None:
        folder = context.input("weights")
        self.table, self.tokenizer = Collection(context.input("corpus")).passages, load_tokenizer(folder)
        self.config, self.label, self.device = config, context.stage_name, torch_device(context.runtime.accelerator)
        model, self.length = load_term_weights(folder)
        self.model = with_cast_weights(model.to(self.device).eval(), config.precision)

    def blocks(self, part: slice) -> Iterator[tuple[int, list[ReadText]]]:
        """Yield the row of the first passage of each block of ``part``, and the block's passages."""
        for first in range(part.start, part.stop, BLOCK):
            texts = self.table.full_texts(np.arange(first, min(first + BLOCK, part.stop)))
            yield first, read_texts(texts, self.tokenizer, self.length)

    def frequencies(self, part: slice, task: ProgressTask) -> NDArray[np.int16]:
        """Return the term frequency of each word of the passages ``part`` (n,): (n, length), padded with 0."""
        found, pad = np.zeros((part.stop - part.start, self.length), np.int16), self.tokenizer.pad_token_id
        for first, read in self.blocks(part):
            for chunk in chunks(*flatten([text.ids for text in read]), self.config.chunk_tokens, pad):
                with inference(self.device, self.config.precision):
                    weights = self.model.weights(chunk.to(self.device)).float().cpu().numpy()  # (b, t)
                for row, own in zip(chunk.rows.tolist(), weights, strict=True):
                    words = own[read[row].places]  # (w,)
                    check_finite(words[None], f"{self.label}: a weight of passage", [first + row])
                    found[first - part.start + row, : len(words)] = term_frequencies(words, self.config.scale)
            task.advance(len(read))
        return found

    def texts(self, frequencies: NDArray[np.int16]) -> Iterator[str]:
        """Yield the text that BM25 indexes for each of the N passages, from the frequencies (N, length) of their words."""
        for first, read in self.blocks(slice(0, len(self.table))):
            for text, own in zip(read, frequencies[first : first + len(read)], strict=True):
                yield weighted_text(text.words, own[: len(text.words)])


def weighted_bm25(config: WeightedBm25Config, context: Context) -> dict[str, Any]:
    """Write frequencies.npy, int16 (passages, length), and the BM25 index made from it; a restart keeps complete shards."""
    passages, path, label = _Passages(config, context), context.folder / "frequencies.npy", context.stage_name
    number, own_texts = len(passages.table), passages.table.column("text")

    def work(part: slice, task: ProgressTask) -> dict[str, NDArray[Any]]:
        return {path.stem: passages.frequencies(part, task)}

    compute_in_shards(work, number, path, label, size=config.shard_size, unit="passages")
    terms = (config.stopwords, config.stemmer, config.language)
    analyser = Analyser.of(own_texts, *terms, f"[{label}]", f"stages.{label}.language")
    texts = passages.texts(load_array(path, mapped=True))
    return index_texts(texts, number, context.folder, config.k1, config.b, analyser, "the weighted passages")
