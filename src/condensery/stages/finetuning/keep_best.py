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
    from transformers import PreTrainedTokenizerBase

    from condensery.models.biencoder import BiEncoder
    from condensery.models.checkpoint import SavedRetriever
    from condensery.tokens.batches import Chunk
    from condensery.training.validation import ValidationSample

FEW = 30  # queries to choose by
DEV, HELD_OUT = "dev", "passages that are held out"
Encode = Callable[["Chunk"], "torch.Tensor"]


class KeepBestConfig(CollectionConfig):
    """``start`` and each of ``trained``, in ``shares`` of its weights: the best by MRR@10 of dev queries and of ``queries``
    of passages that are held out, or of one of the two (``by``).

    What was trained is kept where it is better than the start with p below ``level``, and not worse on the dev queries.
    ``bm25_weight``: of BM25, which each candidate is joined with before it is measured; 0 = each alone.
    """

    start: Annotated[str, Input("encoder")]
    trained: Annotated[list[str], Input("encoder"), Field(min_length=1)]
    queries: Annotated[str | None, Input("queries")]
    by: Literal["dev", "queries"] | None
    shares: Annotated[list[Share], Field(min_length=1)]
    bm25_weight: Annotated[float, Field(ge=0, lt=1)]
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
        rows = 2 * (self.passages + self.number)  # of dev, and held out
        step = Step(sizes.encoder, rows, length, self.chunk_tokens, trained=False, precision=self.precision)
        return Work(sizes, 1, step, seconds=1.0, disk=checkpoint_bytes(sizes))


@stage("keep_best", version=2, makes="encoder", cost=2.0)
def keep_best(config: KeepBestConfig, context: Context) -> dict[str, Any]:
    """Save the best candidate, and kept.json: what each has, and the p-value of the best against the start."""
    import numpy as np

    from condensery.evaluation.significance import randomisation_test
    from condensery.models.blending import blended
    from condensery.models.checkpoint import SavedRetriever, load_retriever, save_retriever
    from condensery.system.files import write_json
    from condensery.tokens.tokenizer import load_tokenizer

    start = load_retriever(context.input("start"))
    samples = _samples(config, context, start)
    if not samples:
        print(f"[{context.stage_name}] there are no queries of {HELD_OUT} to choose by: the start is kept", flush=True)
        save_retriever(start, context.folder, context.input("start"))
        nothing = {"by": [], "queries": 0, "kept": "start", "share": 0.0}
        write_json(context.folder / "kept.json", {**nothing, "values": []})
        return nothing
    tokenizer = load_tokenizer(context.input("start")) if config.bm25_weight else None
    judge = _Judge(list(samples.values()), start.model, _encode_with(config, context), tokenizer, config.bm25_weight)
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
    joined = {candidate: np.concatenate(found) for candidate, found in ranks.items()}
    means = {candidate: float(values.mean()) for candidate, values in joined.items()}
    best = max(means, key=lambda candidate: (means[candidate], -candidate[1]))
    p = randomisation_test(joined[best] - joined["start", 0.0]) if best[1] else 1.0
    worse_on_dev = DEV in samples and ranks[best][0].mean() < first[0].mean()
    name, share = best if (p < config.level or config.level == 1) and not worse_on_dev else ("start", 0.0)
    kept = blended(start.model, models[name], share) if share else start.model
    save_retriever(
        SavedRetriever(kept, start.query_length, start.passage_length), context.folder, context.input("start")
    )
    queries = {by: len(found) for by, found in zip(samples, first, strict=True)}
    said = {"by": list(queries), "queries": sum(queries.values()), "kept": name, "share": share, "p": round(p, 6)}
    values = [
        {"of": of, "share": part, "MRR@10": means[of, part]}
        | {by: float(of_sample.mean()) for by, of_sample in zip(samples, found, strict=True)}
        for (of, part), found in ranks.items()
    ]
    write_json(context.folder / "kept.json", {**said, "values": values})
    of_dev = (float(ranks[best][0].mean()), float(first[0].mean())) if worse_on_dev else None
    _tell(context.stage_name, said, queries, (means["start", 0.0], means[best]), best, of_dev)
    return {**said, "MRR@10 of the start": means["start", 0.0], "MRR@10": means[name, share]}


class _Judge:
    """Measures candidates on samples; what does not change between them is encoded once."""

    def __init__(
        self,
        samples: "list[ValidationSample]",
        start: "BiEncoder",
        encode: Callable[["BiEncoder"], Encode],
        tokenizer: "PreTrainedTokenizerBase | None",
        weight: float,
    ) -> None:
        from condensery.training.validation import bm25_scores, encoded

        self.samples, self.start, self.encode, self.weight = samples, start, encode, weight
        self.passages = [encoded(encode(start), sample.passages) for sample in samples]
        self.bm25 = [None if tokenizer is None else bm25_scores(sample, tokenizer) for sample in samples]

    def reciprocal_ranks(self, model: "BiEncoder") -> "list[np.ndarray] | None":
        """Of each query of each sample (q,); None where a vector is not finite."""
        import numpy as np

        from condensery.models.blending import same_weights
        from condensery.training.validation import encoded, reciprocal_ranks

        encode, found = self.encode(model), []
        same = same_weights(model.passage, self.start.passage)
        for sample, of_start, bm25 in zip(self.samples, self.passages, self.bm25, strict=True):
            try:
                passages = of_start if same else encoded(encode, sample.passages)
                queries = encoded(encode, sample.queries)
            except UserError:  # not finite
                return None
            ranks = reciprocal_ranks(queries, passages, sample, bm25, self.weight)
            found.append(ranks.cpu().numpy().astype(np.float64))
        return found


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


def _samples(config: KeepBestConfig, context: Context, start: "SavedRetriever") -> "dict[str, ValidationSample]":
    """What is chosen by, with its name; dev first. ``UserError`` where what ``by`` asks for is not there."""
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
    found: dict[str, ValidationSample | None] = {}
    if config.by != "queries":
        found[DEV] = sample_of(collection, Tokens(context.input("tokens")), lengths, *sizes, **how)
        if found[DEV] is None and config.by == "dev":
            raise UserError(
                f"stages.{context.stage_name}.by: dev, but the collection has no dev queries; set by=queries"
            )
    if config.by != "dev" and config.queries is not None:
        artifact = context.artifact("queries")
        texts = Passages(artifact.input("passages").path)
        found[HELD_OUT] = held_out_sample(Queries(artifact.path), texts, lengths, *sizes, **how)
    samples = {name: sample for name, sample in found.items() if sample is not None}
    if not samples and config.queries is None:
        raise UserError(
            f"stages.{context.stage_name}.queries: null, and the collection has no dev queries to choose by"
        )
    return samples


def _tell(
    label: str,
    said: dict[str, Any],
    queries: dict[str, int],
    values: tuple[float, float],
    best: tuple[str, float],
    of_dev: tuple[float, float] | None,
) -> None:
    asked = " and ".join(
        f"{number:,} {'dev queries' if by == DEV else f'queries of {by}'}" for by, number in queries.items()
    )
    line = f"[{label}] MRR@10 of {asked}: {100 * values[0]:.1f} as it is"
    if best[1]:
        line += f", {100 * values[1]:.1f} with {best[1]:g} of the weights of {best[0]} (p = {said['p']:.2g})"
    if of_dev:
        line += f", but {100 * of_dev[0]:.1f} instead of {100 * of_dev[1]:.1f} on dev"
    print(line + (": kept" if said["share"] else ": the start is kept"), flush=True)
    if said["queries"] < FEW:
        print(f"[{label}] so few queries can hardly choose", flush=True)
