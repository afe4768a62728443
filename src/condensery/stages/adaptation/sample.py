"""Comparison of retrievers before the final evaluation: MRR@10 on dev queries and on queries of held-out passages."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from condensery.errors import UserError
from condensery.models.biencoder import BiEncoder
from condensery.models.blending import same_weights
from condensery.models.checkpoints.retrievers import SavedRetriever
from condensery.reporting.choice import HELD_OUT
from condensery.stages.adaptation.config import SampleConfig
from condensery.stages.base import Context
from condensery.stages.devices import on_device
from condensery.text.collection import Collection
from condensery.tokens.artifacts import Passages, Queries, Tokens, text_readers
from condensery.tokens.batches import Chunk
from condensery.tokens.prefixes import Prefixes
from condensery.tokens.tokenizer import load_tokenizer
from condensery.training.held_out import held_out_sample
from condensery.training.validation import ValidationSample, bm25_scores, encoded, reciprocal_ranks, sample_of

DEV = "dev queries"
LEFT_OUT = f"{DEV} and training queries that were left out"
Encode = Callable[[BiEncoder], Callable[[Chunk], torch.Tensor]]


class Judge:
    """Measures retrievers on samples, whose texts are tokenised for the retriever ``start``.

    A retriever with the same passage tower as ``start`` reuses the passage vectors of ``start``.

    Args:
        start: the retriever that other retrievers are compared with.
        folder: folder of ``start``.
        samples: the samples, by the name of their queries.
        encode: function that takes a retriever and returns the function that encodes chunks with it.
        weight: weight of BM25 in its fusion with each measured retriever; 0 = the retriever alone.

    Attributes:
        by: the names of the samples, joined by "and".
        first: for each sample, the reciprocal ranks (q,) of its queries with ``start``.

    Raises:
        UserError: the vectors of ``start`` are not finite.
    """

    def __init__(
        self, start: BiEncoder, folder: Path, samples: Mapping[str, ValidationSample], encode: Encode, weight: float
    ) -> None:
        self.start, self.samples, self.encode, self.weight = start, samples, encode, weight
        self.by = " and ".join(samples)
        self.passages = [encoded(encode(start), sample.passages) for sample in samples.values()]
        tokenizer = load_tokenizer(folder) if weight else None
        self.bm25 = [None if tokenizer is None else bm25_scores(sample, tokenizer) for sample in samples.values()]
        first = self.reciprocal_ranks(start)
        if first is None:
            raise UserError(f"{folder}: its vectors are not finite; start from another checkpoint")
        self.first = first

    def reciprocal_ranks(self, model: BiEncoder, bm25_weight: float | None = None) -> list[np.ndarray] | None:
        """Return the reciprocal ranks (q,) of each sample's queries, or None if any vector is not finite.

        ``bm25_weight`` replaces ``weight`` if the judge fuses BM25; 1 = BM25 alone.
        """
        weight = self.weight if bm25_weight is None else bm25_weight
        encode, found = self.encode(model), []
        same = same_weights(model.passage, self.start.passage)
        for sample, of_start, bm25 in zip(self.samples.values(), self.passages, self.bm25, strict=True):
            try:
                passages = of_start if same else encoded(encode, sample.passages)
                queries = encoded(encode, sample.queries)
            except UserError:  # not finite
                return None
            found.append(reciprocal_ranks(queries, passages, sample, bm25, weight).cpu().numpy().astype(np.float64))
        return found


def judge_of(
    config: SampleConfig, context: Context, folder: Path, start: SavedRetriever, left_out: bool = False
) -> Judge | None:
    """Return the judge that compares retrievers with ``start``; None if there are no queries for the comparison.

    Args:
        config: config with the keys of the sample.
        context: context of the stage.
        folder: folder of ``start``.
        start: the retriever that other retrievers are compared with.
        left_out: whether the training queries that ``leave_out_dev_passages`` excluded from training are added, if there
            are fewer than ``number`` dev queries.
    """
    collection = Collection(context.input("corpus"))
    lengths, own = (start.query_length, start.passage_length), start.model.settings
    prefixes = Prefixes.of(folder, own.query_prefix, own.passage_prefix, lengths)
    sizes = (config.number, config.passages)
    found: dict[str, ValidationSample | None] = {}
    if config.by != "queries":
        name, readers = LEFT_OUT if left_out else DEV, text_readers(Tokens(context.input("tokens")), lengths, prefixes)
        found[name] = sample_of(collection, readers, *sizes, budget=config.chunk_tokens, left_out=left_out)
    if config.by != "dev" and config.queries is not None:
        artifact = context.artifact("queries")
        texts = Passages(artifact.input("passages").path)
        how: dict[str, Any] = {"budget": config.chunk_tokens, "prefixes": prefixes}
        found[HELD_OUT] = held_out_sample(Queries(artifact.path), texts, lengths, *sizes, **how)
    samples = {name: sample for name, sample in found.items() if sample is not None}
    encode = partial(on_device, compute=BiEncoder.vectors, context=context, precision=config.precision)
    return Judge(start.model, folder, samples, encode, config.bm25_weight) if samples else None
