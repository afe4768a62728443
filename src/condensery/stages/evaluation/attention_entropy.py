"""Stage ``attention_entropy``: measures how broadly CLS attends, by layer (Gao and Callan 2021a, §5, figure 2)."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from condensery.models.attention import cls_entropy
from condensery.models.checkpoints.retrievers import backbone_towers, load_encoder
from condensery.models.encoder import Encoder
from condensery.randomness import generator
from condensery.retrieval.finite import check_finite
from condensery.stages.base import Context
from condensery.stages.devices import torch_device
from condensery.stages.evaluation.config import BACKBONE, AttentionEntropyConfig
from condensery.system.files import write_json
from condensery.system.progress import progress
from condensery.tokens.artifacts import Tokens
from condensery.tokens.batches import Chunk, chunks, span_rows
from condensery.tokens.vocabulary import Vocabulary


def attention_entropy(config: AttentionEntropyConfig, context: Context) -> dict[str, Any]:
    """Write entropy.json: for each encoder, the entropy's mean and standard deviation over the texts, by layer, in nats.

    An encoder's name is ``kind/id`` of its artifact, or ``backbone``. The file also has the entropy of uniform attention.

    Raises:
        UserError: an encoder has another tokenizer than the texts.
    """
    _check_tokenizers(context)
    tokens = Tokens(context.input("tokens"))
    spans = _spans(config, tokens)
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


def _spans(config: AttentionEntropyConfig, tokens: Tokens) -> np.ndarray:
    """Sample texts and truncate them to ``length``. Return each text's first token and its number of tokens, (n, 2)."""
    store = tokens.documents
    starts = store.starts[store.documents] if config.texts == "documents" else store.starts
    lengths = np.diff(starts)
    fitting = np.flatnonzero(lengths >= config.min_length - 2)
    chosen = np.sort(generator(config.seed, "entropy").permutation(fitting)[: config.number])
    return np.stack([starts[chosen], np.minimum(lengths[chosen], config.length - 2)], axis=1)


def _encoders(
    config: AttentionEntropyConfig, context: Context, vocabulary: Vocabulary
) -> Iterator[tuple[str, Encoder]]:
    """Yield (name in entropy.json, encoder) for each encoder, without duplicates."""
    if BACKBONE in config.encoders:
        yield BACKBONE, backbone_towers(config.backbone, vocabulary, config.seed).passage
    for artifact in {one.path: one for one in context.artifacts("encoders")}.values():
        yield artifact.reference, load_encoder(artifact.path)


def _measured(encoder: Encoder, rows: list[Chunk], context: Context) -> np.ndarray:
    """Return the entropy (layers, texts) of one encoder, in fp32."""
    device = torch_device(context.runtime.accelerator)
    encoder = encoder.to(device).eval()
    parts = []
    with torch.inference_mode(), progress(context.stage_name, sum(map(len, rows)), "texts") as task:
        for chunk in rows:
            parts.append(cls_entropy(encoder, chunk.to(device)).cpu().numpy())
            task.advance(len(chunk))
    return np.concatenate(parts, axis=1)


def _check_tokenizers(context: Context) -> None:
    """Raise ``UserError`` if the texts were not tokenised with the tokenizer of each encoder."""
    own = {one.id for one in context.artifact("tokens").inputs("tokenizer")}
    for artifact in context.artifacts("encoders"):
        if any(one.id not in own for one in artifact.inputs("tokenizer")):
            other = f"{artifact.manifest['name']} reads another tokenizer than the texts"
            raise context.error("encoders", f"{other}; give both the same stage as `tokenizer`")
