"""Stage ``keep_best``: what a training changed is kept where it helps, as much of it as helps; else the start is."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator

from condensery.errors import UserError
from condensery.models.flops import Step
from condensery.stages.base import Context, Input, stage
from condensery.stages.training import CollectionConfig, Count, Share
from condensery.stages.work import Read, Work, checkpoint_bytes, known

if TYPE_CHECKING:
    import numpy as np
    import torch

    from condensery.models.biencoder import BiEncoder
    from condensery.models.checkpoint import SavedRetriever
    from condensery.tokens.batches import Chunk
    from condensery.training.validation import ValidationSample

FEW = 30  # queries to choose by
Encode = Callable[["Chunk"], "torch.Tensor"]


class KeepBestConfig(CollectionConfig):
    """``start`` and each of ``trained``, in ``shares`` of its weights: the best by MRR@10 of a sample.

    The sample is of dev queries, or of ``queries`` of passages that are held out (``by``). What was trained is kept where it
    is better than the start with p below ``level``.
    """

    start: Annotated[str, Input("encoder")]
    trained: Annotated[list[str], Input("encoder"), Field(min_length=1)]
    queries: Annotated[str | None, Input("queries")]
    by: Literal["dev", "queries"] | None
    shares: Annotated[list[Share], Field(min_length=1)]
    level: Annotated[float, Field(gt=0, le=1)]
    number: Count
    passages: Annotated[int, Field(ge=0)]
    precision: Literal["fp32", "bf16", "fp16"]
    chunk_tokens: Count

    @field_validator("shares")
    @classmethod
    def _of_the_trained(cls, shares: list[float]) -> list[float]:
        if 0 in shares or len(set(shares)) < len(shares):
            raise ValueError("each share is above 0 and stands once; the start itself is always tried")
        return sorted(shares)

    def work(self, read: Read) -> Work:
        """The sample's passages are encoded with the start, and its queries with every candidate."""
        sizes = known(read)
        if sizes.encoder is None or sizes.collection.passage_tokens is None:
            return Work(sizes)
        length = min(sizes.collection.passage_tokens, sizes.passage_length or 512)
        rows = self.passages + self.number
        step = Step(sizes.encoder, rows, length, self.chunk_tokens, trained=False, precision=self.precision)
        return Work(sizes, 1, step, seconds=1.0, disk=checkpoint_bytes(sizes))


@stage("keep_best", version=2, makes="encoder", cost=2.0)
def keep_best(config: KeepBestConfig, context: Context) -> dict[str, Any]:
    """Save the best candidate, and kept.json: what each has, and the p-value of the best against the start."""
    from condensery.evaluation.significance import randomisation_test
    from condensery.models.blending import blended
    from condensery.models.checkpoint import SavedRetriever, load_retriever, save_retriever
    from condensery.system.files import write_json

    start = load_retriever(context.input("start"))
    sample, by = _sample(config, context, start)
    if sample is None:
        print(f"[{context.stage_name}] there are no {by} to choose by: the start is kept", flush=True)
        save_retriever(start, context.folder, context.input("start"))
        nothing = {"by": None, "queries": 0, "kept": "start", "share": 0.0}
        write_json(context.folder / "kept.json", {**nothing, "values": []})
        return nothing
    judge = _Judge(sample, start.model, _encode_with(config, context))
    first = judge.reciprocal_ranks(start.model)
    if first is None:
        raise UserError(
            f"{context.input('start')}: it makes vectors that are not finite; begin with another checkpoint"
        )
    ranks = {("start", 0.0): first}
    models = {
        name: load_retriever(folder).model
        for name, folder in zip(config.trained, context.inputs("trained"), strict=True)
    }
    for name, model in models.items():
        for share in config.shares:
            found = judge.reciprocal_ranks(blended(start.model, model, share))
            if found is None:
                print(f"[{context.stage_name}] {share:g} of {name}: vectors that are not finite; left out", flush=True)
                continue
            ranks[name, share] = found
    means = {candidate: float(values.mean()) for candidate, values in ranks.items()}
    best = max(means, key=lambda candidate: (means[candidate], -candidate[1]))
    p = randomisation_test(ranks[best] - first) if best[1] else 1.0
    name, share = best if p < config.level or config.level == 1 else ("start", 0.0)
    kept = blended(start.model, models[name], share) if share else start.model
    save_retriever(
        SavedRetriever(kept, start.query_length, start.passage_length), context.folder, context.input("start")
    )
    said = {"by": by, "queries": len(first), "kept": name, "share": share, "p": round(p, 6)}
    values = [{"of": of, "share": part, "MRR@10": value} for (of, part), value in means.items()]
    write_json(context.folder / "kept.json", {**said, "values": values})
    _tell(context.stage_name, said, means["start", 0.0], best, means[best])
    return {**said, "MRR@10 of the start": means["start", 0.0], "MRR@10": means[name, share]}


class _Judge:
    """Measures candidates on the sample; what does not change between them is encoded once."""

    def __init__(self, sample: "ValidationSample", start: "BiEncoder", encode: Callable[["BiEncoder"], Encode]) -> None:
        from condensery.training.validation import encoded

        self.sample, self.start, self.encode = sample, start, encode
        self.passages = encoded(encode(start), sample.passages)

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


def _encode_with(config: KeepBestConfig, context: Context) -> Callable[["BiEncoder"], Encode]:
    import torch

    from condensery.stages.devices import autocast, torch_device

    device = torch_device(context.runtime.accelerator)

    def of(model: "BiEncoder") -> Encode:
        model.to(device).eval()

        def encode(chunk: "Chunk") -> torch.Tensor:
            with torch.inference_mode(), autocast(device, config.precision):
                return model.vectors(chunk.to(device))

        return encode

    return of


def _sample(config: KeepBestConfig, context: Context, start: "SavedRetriever") -> "tuple[ValidationSample | None, str]":
    """What is chosen by, and in words; None where the text has no such queries. ``UserError`` where dev has none."""
    from condensery.text.collection import Collection
    from condensery.tokens.artifacts import Passages, Queries, Tokens
    from condensery.tokens.prefixes import Prefixes
    from condensery.training.held_out import held_out_sample
    from condensery.training.validation import sample_of

    collection = Collection(context.input("corpus"))
    lengths, own = (start.query_length, start.passage_length), start.model.settings
    prefixes = Prefixes.of(context.input("start"), own.query_prefix, own.passage_prefix, lengths)
    sizes = (config.number, config.passages)
    how: dict[str, Any] = {"budget": config.chunk_tokens, "prefixes": prefixes}
    by = config.by or ("dev" if "dev" in collection.splits else "queries")
    if by == "dev":
        sample = sample_of(collection, Tokens(context.input("tokens")), lengths, *sizes, **how)
    elif config.queries is None:
        raise UserError(
            f"stages.{context.stage_name}.queries: null, and the collection has no dev queries to choose by"
        )
    else:
        artifact = context.artifact("queries")
        texts = Passages(artifact.input("passages").path)
        sample = held_out_sample(Queries(artifact.path), texts, lengths, *sizes, **how)
    if sample is None and by == "dev":
        raise UserError(f"stages.{context.stage_name}.by: dev, but the collection has no dev queries; set by=queries")
    return sample, "dev queries" if by == "dev" else "queries of passages that are held out"


def _tell(label: str, said: dict[str, Any], start: float, best: tuple[str, float], highest: float) -> None:
    line = f"[{label}] MRR@10 of {said['queries']:,} {said['by']}: {100 * start:.1f} as it is"
    if best[1]:
        line += f", {100 * highest:.1f} with {best[1]:g} of the weights of {best[0]} (p = {said['p']:.2g})"
    print(line + (": kept" if said["share"] else ": the start is kept"), flush=True)
    if said["queries"] < FEW:
        print(f"[{label}] so few queries can hardly choose", flush=True)
