"""Stage ``attention_entropy``: how broadly CLS attends, layer by layer (Gao and Callan 2021a, §5, figure 2)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from condensery.errors import UserError
from condensery.models.config import BackboneConfig
from condensery.models.flops import Step
from condensery.stages.base import Context, Input, StageConfig, stage
from condensery.stages.work import Read, Work, known, with_encoder

if TYPE_CHECKING:
    import numpy as np

    from condensery.models.encoder import Encoder
    from condensery.tokens.artifacts import Tokens
    from condensery.tokens.batches import Chunk
    from condensery.tokens.vocabulary import Vocabulary

BACKBONE = "backbone"


class AttentionEntropyConfig(StageConfig):
    """``encoders``: checkpoints, tuned or not, and ``backbone``, as training begins with it.

    Of separate towers the one of passages is looked at. ``length`` is in tokens, [CLS] and [SEP] included.
    """

    encoders: Annotated[list[str], Input("encoder", literal=(BACKBONE,)), Field(min_length=1)]
    backbone: BackboneConfig
    tokens: Annotated[str, Input("tokens")]
    texts: Literal["passages", "documents"]
    number: Annotated[int, Field(gt=0)]
    length: Annotated[int, Field(ge=8)]
    min_length: Annotated[int, Field(ge=2)]
    chunk_tokens: Annotated[int, Field(gt=0)]
    seed: Annotated[int, Field(ge=0)]

    def work(self, read: Read) -> Work:
        """The texts once by each encoder."""
        sizes = with_encoder(known(read), self.backbone)
        text = sizes.collection.passage_tokens if self.texts == "passages" else sizes.text_tokens
        if sizes.encoder is None or text is None:
            return Work(sizes)
        rows = float(len(self.encoders) * self.number)
        step = Step(sizes.encoder, rows, min(text + 2, self.length), self.chunk_tokens, trained=False)
        return Work(sizes, 1, step, seconds=0.0, disk=1e4)

    @model_validator(mode="after")
    def _some_fit(self) -> Self:
        if self.min_length > self.length:
            raise ValueError(f"min_length={self.min_length} is longer than length={self.length}")
        return self


@stage("attention_entropy", version=1, makes="entropy", cost=2.0)
def attention_entropy(config: AttentionEntropyConfig, context: Context) -> dict[str, Any]:
    """Write entropy.json: by encoder (``kind/id`` of its artifact, or ``backbone``) mean and standard deviation over
    the texts for each layer, in nats, and what even attention would have."""
    import numpy as np

    from condensery.retrieval.finite import check_finite
    from condensery.system.files import write_json
    from condensery.tokens.artifacts import Tokens
    from condensery.tokens.batches import chunks, span_rows

    _check_tokenizers(context)
    tokens = Tokens(context.input("tokens"))
    spans = _spans(config, context, tokens)
    lengths = spans[:, 1] + 2
    rows = chunks(*span_rows(tokens.documents, spans, tokens.vocabulary), config.chunk_tokens, tokens.vocabulary.pad)
    by_encoder = {}
    for name, encoder in _encoders(config, context, tokens.vocabulary):
        values = _measured(encoder, rows, context)  # (layers, texts)
        check_finite(values.T, f"{context.stage_name}: the attention of {name} in text")
        by_encoder[name] = {"mean": values.mean(axis=1).tolist(), "deviation": values.std(axis=1).tolist()}
    about = {"unit": "nats", "texts": len(spans), "tokens": float(lengths.mean())}
    even = float(np.log(lengths).mean())
    write_json(context.folder / "entropy.json", {**about, "even": even, "encoders": by_encoder})
    return about


def _spans(config: AttentionEntropyConfig, context: Context, tokens: "Tokens") -> "np.ndarray":
    """(n, 2) first token and number of tokens of random texts, cut to the length. ``UserError`` where none is so long."""
    import numpy as np

    from condensery.randomness import generator

    store = tokens.documents
    starts = store.starts[store.documents] if config.texts == "documents" else store.starts
    lengths = np.diff(starts)
    fitting = np.flatnonzero(lengths >= config.min_length - 2)
    if not len(fitting):
        raise UserError(f"stages.{context.stage_name}.min_length: no text has {config.min_length} tokens; lower it")
    chosen = np.sort(generator(config.seed, "entropy").permutation(fitting)[: config.number])
    return np.stack([starts[chosen], np.minimum(lengths[chosen], config.length - 2)], axis=1)


def _encoders(
    config: AttentionEntropyConfig, context: Context, vocabulary: "Vocabulary"
) -> "Iterator[tuple[str, Encoder]]":
    """Each encoder once, by its name in entropy.json."""
    from condensery.models.checkpoint import backbone_towers, load_encoder

    if BACKBONE in config.encoders:
        yield BACKBONE, backbone_towers(config.backbone, vocabulary, config.seed).passage
    for artifact in {one.path: one for one in context.artifacts("encoders")}.values():
        yield f"{artifact.kind}/{artifact.id}", load_encoder(artifact.path)


def _measured(encoder: "Encoder", rows: "list[Chunk]", context: Context) -> "np.ndarray":
    """The entropy (layers, texts) of one encoder, in fp32."""
    import numpy as np
    import torch

    from condensery.models.attention import cls_entropy
    from condensery.stages.devices import torch_device
    from condensery.system.progress import progress

    device = torch_device(context.runtime.accelerator)
    encoder = encoder.to(device).eval()
    parts = []
    with torch.inference_mode(), progress(context.stage_name, sum(map(len, rows)), "texts") as task:
        for chunk in rows:
            parts.append(cls_entropy(encoder, chunk.to(device)).cpu().numpy())
            task.advance(len(chunk))
    return np.concatenate(parts, axis=1)


def _check_tokenizers(context: Context) -> None:
    """Raise ``UserError`` where an encoder was trained with another tokenizer than that of the texts."""
    own = {one.id for one in context.artifact("tokens").inputs("tokenizer")}
    for artifact in context.artifacts("encoders"):
        other = [one for one in artifact.inputs("tokenizer") if one.id not in own]
        if other:
            raise UserError(
                f"stages.{context.stage_name}.encoders: {artifact.manifest['name']} reads another tokenizer than the"
                " texts; give both the same stage as `tokenizer`"
            )
