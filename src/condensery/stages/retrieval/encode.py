"""Stage ``encode``: the vectors of all passages and queries, the index of a dense retriever."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from condensery.errors import UserError
from condensery.models.flops import Step
from condensery.stages.base import Context, Input, Operational, StageConfig, stage
from condensery.stages.checks import Split
from condensery.stages.frozen_passages import check_encoded_by
from condensery.stages.work import QUESTION, Read, Work, known
from condensery.system.downloads import as_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BYTES = {"float32": 4.0, "float16": 2.0, "int8": 1.0, "binary": 0.125}  # of a number on disk


class EncodeConfig(StageConfig):
    """``model`` is the retriever's checkpoint; lengths are those that it was trained with.

    ``dtype``: of the vectors on disk; in int8 and binary of those of passages (``retrieval.quantising``).
    ``passages``: an index whose passage vectors are taken, where only the tower of the queries has changed since.
    ``query_splits``: those whose queries are encoded; others cannot be searched.
    ``windows``: stretches of a long passage that are encoded at most; it is ranked by its best (``retrieval.windows``).
    """

    model: Annotated[str, Input("encoder")]
    passages: Annotated[str | None, Input("index")]
    tokens: Annotated[str, Input("tokens")]
    precision: Literal["fp32", "bf16", "fp16"]
    dtype: Literal["float32", "float16", "int8", "binary"]
    chunk_tokens: Annotated[int, Field(gt=0)]
    shard_size: Annotated[int, Field(gt=0), Operational()]
    windows: Annotated[int, Field(ge=1)]
    query_splits: Annotated[list[Split], Field(min_length=1)] | None

    def by_content(self) -> set[str]:
        """Windows, the index of the passages, the splits: where none is set, the id is that of before there were."""
        return {"windows", *(name for name in ("passages", "query_splits") if getattr(self, name) is None)}

    def identity(self) -> list[str]:
        """The windows, where there is more than one."""
        return [f"windows {self.windows}"] if self.windows > 1 else []

    def work(self, read: Read) -> Work:
        """Queries, and passages whose vectors are not taken over, once. A number takes four bytes, two, one, or an eighth."""
        sizes = known(read)
        texts, size, longest = sizes.collection, sizes.encoder, sizes.passage_length or 128
        if size is None or texts.passages is None or texts.passage_tokens is None:
            return Work(sizes)
        splits = self.query_splits or texts.queries
        queries = sum(texts.queries.get(split) or 0 for split in splits)
        of_each = min(self.windows, max(1.0, texts.passage_tokens / longest))
        passages = texts.passages * of_each
        encoded = 0.0 if self.passages else passages
        rows = max(1.0, encoded + queries)
        length = max(QUESTION, (encoded * min(texts.passage_tokens / of_each + 2, longest) + queries * QUESTION) / rows)
        step = Step(size, rows, length, self.chunk_tokens, trained=False, precision=self.precision)
        of_query = 2 if self.dtype == "float16" else 4  # in an index of fewer bits they stay whole
        disk = size.hidden * (passages * BYTES[self.dtype] + queries * of_query)
        return Work(replace(sizes, dimensions=size.hidden), 1, step, seconds=0.0, disk=disk)


def _several_shards(config: EncodeConfig, context: Context) -> bool:
    from condensery.tokens.artifacts import Tokens

    tokens = Tokens(context.input("tokens"))
    return max(len(tokens.passages), len(tokens.queries)) > config.shard_size


@stage("encode", version=1, makes="index", adapts="model", together=_several_shards)
def encode(config: EncodeConfig, context: Context) -> dict[str, Any]:
    """Write the shards of passage vectors, the query vectors and index.json; whole shards are kept on a restart."""
    from dataclasses import replace

    import torch

    from condensery.models.biencoder import QUERY
    from condensery.models.checkpoint import load_retriever
    from condensery.retrieval.encoding import EncoderInput, encode_queries, encode_store, write_dense_index
    from condensery.stages.devices import autocast, torch_device
    from condensery.stages.sharing import process_group
    from condensery.tokens.artifacts import Tokens
    from condensery.tokens.batches import Chunk
    from condensery.tokens.prefixes import Prefixes

    group, tokens = process_group(context.runtime), Tokens(context.input("tokens"))
    device = torch_device(context.runtime.accelerator)
    retriever = load_retriever(context.input("model"))
    model = retriever.model.to(device).eval()

    def vectors(chunk: Chunk) -> torch.Tensor:
        with torch.inference_mode(), autocast(device, config.precision):
            return model.vectors(chunk.to(device))

    def queries(chunk: Chunk) -> torch.Tensor:
        return vectors(replace(chunk, tower=QUERY))

    lengths = retriever.query_length, retriever.passage_length
    own = retriever.model.settings
    before = Prefixes.of(context.input("model"), own.query_prefix, own.passage_prefix, lengths)
    passages = EncoderInput(
        tokens.passages, tokens.vocabulary, lengths[1], tokens.titles, before.passage, config.windows
    )
    questions = EncoderInput(
        tokens.queries, tokens.vocabulary, lengths[0], prefix=before.query, rows=_asked(config, context)
    )
    settings: dict[str, Any] = {
        "shard_size": config.shard_size,
        "budget": config.chunk_tokens,
        "dtype": config.dtype,
        "group": group,
        "label": context.stage_name,
        "encoder": "{0.kind}/{0.id}".format(context.artifact("model")),
    }
    encode_queries(queries, questions, context.folder, **settings)  # they judge what fewer bits lose
    quantising = None
    if config.passages is None:
        quantising = encode_store(vectors, passages, context.folder, **settings)
    else:
        group.from_rank_zero(lambda: _take_passages(config, context, len(passages)))
    group.leave_unless_rank_zero()
    about = write_dense_index(context.folder, passages.cut if config.windows > 1 else None, quantising)
    values: dict[str, Any] = {key: about[key] for key in ("passages", "windows", "queries", "dim") if key in about}
    return values if quantising is None else {**values, **_lost(about, config.dtype, context.stage_name)}


def _asked(config: EncodeConfig, context: Context) -> "NDArray[np.int64] | None":
    """The rows (n,) of the queries of ``query_splits``, ascending; None where all are encoded."""
    import numpy as np

    from condensery.text.collection import Collection

    corpus = context.artifact("tokens").ancestor("corpus") if config.query_splits else None
    if config.query_splits is None or corpus is None:
        return None
    collection = Collection(corpus.path)
    there = [split for split in config.query_splits if split in collection.description["splits"]]
    return np.unique(np.concatenate([np.empty(0, np.int64), *map(collection.questions, there)]))


def _lost(about: dict[str, Any], dtype: str, stage: str) -> dict[str, Any]:
    """What fewer bits save and lose, for the manifest; a line says it."""
    vectors = about.get("windows", about["passages"])
    whole, kept = (
        4 * vectors * about["dim"],
        vectors * math.ceil(about["dim"] * BYTES[dtype]),
    )  # a vector ends with its byte
    found = {key: value for key, value in about.items() if key.startswith("recall_")}
    said = ", ".join(f"{100 * value:.1f} % of its {key.removeprefix('recall_')} best" for key, value in found.items())
    print(
        f"[{stage}] {dtype}: {as_bytes(kept)} of passage vectors instead of {as_bytes(whole)}; of what float32 finds it finds"
        f" {said} ({about['compared']:,} queries)",
        flush=True,
    )
    return {"bytes": kept, "compared": about["compared"], **found}


def _take_passages(config: EncodeConfig, context: Context, texts: int) -> None:
    """Take over the vectors that another encoder with the same tower of passages has made, in the same way."""
    import shutil

    from condensery.models.checkpoint import load_retriever
    from condensery.system.files import read_json

    index = context.artifact("passages")
    key, encoder = f"stages.{context.stage_name}.passages", index.ancestor("encoder")
    theirs = index.manifest["config"]
    mine, first = (
        load_retriever(folder) for folder in (context.input("model"), encoder.path if encoder else index.path)
    )
    check_encoded_by(mine.model, mine.passage_length, first, f"{key}: {config.passages}")
    for name in ("precision", "dtype", "windows"):
        if theirs.get(name) != getattr(config, name):
            raise UserError(f"{key}: {name} of {config.passages} is {theirs.get(name)}, here {getattr(config, name)}")
    if config.dtype in ("int8", "binary"):
        raise UserError(f"{key}: vectors in {config.dtype} are not taken over; set it to null")
    if read_json(index.path / "layout.json")["texts"] != texts:
        raise UserError(f"{key}: {config.passages} has other passages than this stage's tokens")
    shutil.rmtree(context.folder / "passages", ignore_errors=True)
    shutil.copy2(index.path / "layout.json", context.folder / "layout.json")
    shutil.copytree(index.path / "passages", context.folder / "passages")
