"""What retrievers are compared by before they are measured: MRR@10 of dev queries, or of queries of held-out passages."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from condensery.errors import UserError
from condensery.models.flops import Step
from condensery.reporting.recommendation import HELD_OUT
from condensery.stages.base import Context, Input
from condensery.stages.training import AROUND, CollectionConfig, Count
from condensery.stages.work import Read, Sizes, Work, checkpoint_bytes, known

if TYPE_CHECKING:
    import numpy as np
    import torch

    from condensery.models.biencoder import BiEncoder
    from condensery.models.checkpoint import SavedRetriever
    from condensery.tokens.batches import Chunk
    from condensery.training.validation import ValidationSample

Encode = Callable[["BiEncoder"], Callable[["Chunk"], "torch.Tensor"]]


class SampleConfig(CollectionConfig):
    """The sample: ``number`` dev queries, or ``queries`` of passages that are held out (``by``), among ``passages`` more."""

    queries: Annotated[str | None, Input("queries")]
    by: Literal["dev", "queries"] | None
    number: Count
    passages: Annotated[int, Field(ge=0)]
    precision: Literal["fp32", "bf16", "fp16"]
    chunk_tokens: Count

    def work(self, read: Read) -> Work:
        """The sample's passages are encoded; its queries are few beside them."""
        return self.encoding(known(read), 1)

    def encoding(self, sizes: Sizes, times: int) -> Work:
        """The work of encoding the sample's passages so many times."""
        texts = sizes.collection
        if sizes.encoder is None or texts.passages is None or texts.passage_tokens is None:
            return Work(sizes)
        length = min(texts.passage_tokens, sizes.passage_length or 512)
        rows = min(texts.passages, self.passages + self.number)
        step = Step(sizes.encoder, rows, length, self.chunk_tokens, trained=False, precision=self.precision)
        return Work(sizes, times, step, seconds=AROUND, disk=checkpoint_bytes(sizes))


class Judge:
    """Measures retrievers on the sample, as ``start`` reads it; what does not change between them is encoded once.

    Attributes:
        first: of each query its reciprocal rank (q,) with the start.
    """

    def __init__(self, start: "BiEncoder", folder: Path, sample: "ValidationSample", encode: Encode) -> None:
        from condensery.training.validation import encoded

        self.start, self.sample, self.encode = start, sample, encode
        self.passages = encoded(encode(start), sample.passages)
        first = self.reciprocal_ranks(start)
        if first is None:
            raise UserError(f"{folder}: it makes vectors that are not finite; begin with another checkpoint")
        self.first = first

    def reciprocal_ranks(self, model: "BiEncoder") -> "np.ndarray | None":
        """Of each query of the sample (q,); None where a vector is not finite."""
        import numpy as np

        from condensery.models.blending import same_weights
        from condensery.training.validation import encoded, reciprocal_ranks

        encode = self.encode(model)
        try:
            same = same_weights(model.passage, self.start.passage)
            passages = self.passages if same else encoded(encode, self.sample.passages)
            queries = encoded(encode, self.sample.queries)
        except UserError:  # not finite
            return None
        return reciprocal_ranks(queries, passages, self.sample).cpu().numpy().astype(np.float64)


def judge_of(config: SampleConfig, context: Context, folder: Path, start: "SavedRetriever") -> tuple[Judge | None, str]:
    """Who measures what is compared with ``start``, which lies in ``folder``; and by what, in words.

    None where the text has no such queries. Raises ``UserError`` where they are to be dev queries and there are none.
    """
    from condensery.text.collection import Collection
    from condensery.tokens.artifacts import Passages, Queries, Tokens
    from condensery.tokens.prefixes import Prefixes
    from condensery.training.held_out import held_out_sample
    from condensery.training.validation import sample_of

    collection, key = Collection(context.input("corpus")), f"stages.{context.stage_name}"
    lengths, own = (start.query_length, start.passage_length), start.model.settings
    prefixes = Prefixes.of(folder, own.query_prefix, own.passage_prefix, lengths)
    sizes = (config.number, config.passages)
    how: dict[str, Any] = {"budget": config.chunk_tokens, "prefixes": prefixes}
    by = config.by or ("dev" if "dev" in collection.splits else "queries")
    if by == "dev":
        sample = sample_of(collection, Tokens(context.input("tokens")), lengths, *sizes, **how)
    elif config.queries is None:
        raise UserError(f"{key}.queries: null, and the collection has no dev queries to choose by")
    else:
        artifact = context.artifact("queries")
        texts = Passages(artifact.input("passages").path)
        sample = held_out_sample(Queries(artifact.path), texts, lengths, *sizes, **how)
    if sample is None and by == "dev":
        raise UserError(f"{key}.by: dev, but the collection has no dev queries; set by=queries")
    judge = None if sample is None else Judge(start.model, folder, sample, _encode_with(config, context))
    return judge, "dev queries" if by == "dev" else HELD_OUT


def _encode_with(config: SampleConfig, context: Context) -> Encode:
    import torch

    from condensery.stages.devices import autocast, torch_device

    device = torch_device(context.runtime.accelerator)

    def of(model: "BiEncoder") -> "Callable[[Chunk], torch.Tensor]":
        model.to(device).eval()

        def encode(chunk: "Chunk") -> torch.Tensor:
            with torch.inference_mode(), autocast(device, config.precision):
                return model.vectors(chunk.to(device))

        return encode

    return of
