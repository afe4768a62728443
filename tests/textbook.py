"""Slow and simple reference implementations for tests, on the models of transformers, with small models and batches.

This module does not use the models and objectives of the package. It pads all rows, computes the logits of all
positions, and uses plain loops.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DistilBertConfig,
    DistilBertForMaskedLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedModel,
    RobertaConfig,
    RobertaForMaskedLM,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
)

from condensery.tokens.batches import Chunk, TokenRows, chunks
from condensery.tokens.vocabulary import Vocabulary

PAD, CLS, SEP, MASK, UNK, SIZE = 1, 0, 2, 3, 4, 60
FAMILIES = {
    "bert": (BertConfig, BertForMaskedLM),
    "roberta": (RobertaConfig, RobertaForMaskedLM),
    "xlm-roberta": (XLMRobertaConfig, XLMRobertaForMaskedLM),
}
LATER = {
    "distilbert": (DistilBertConfig, DistilBertForMaskedLM),
    "modernbert": (ModernBertConfig, ModernBertForMaskedLM),  # in layers 1 and 2, a token sees two tokens on each side
}


def tolerance(family: str) -> float:
    """Return the relative tolerance. ModernBERT in transformers computes rotary embeddings in fp32, even in float64."""
    return 2e-6 if family == "modernbert" else 1e-12


def vocabulary(size: int = SIZE) -> Vocabulary:
    """Return a vocabulary of ``size`` ids. The first five are special tokens, and every third id continues a word."""
    special = np.arange(5)
    continues = np.arange(size) % 3 == 2
    continues[:5] = False
    return Vocabulary(size, pad=PAD, cls=CLS, sep=SEP, mask=MASK, unk=UNK, special=special, continues=continues)


def language_model(
    family: str = "bert", layers: int = 3, hidden: int = 16, heads: int = 2, dropout: float = 0.0, size: int = SIZE
) -> PreTrainedModel:
    """Return a small model in float64 and training mode. Noise on all parameters avoids exact zeros and ones."""
    config, model = {**FAMILIES, **LATER}[family]
    torch.manual_seed(0)
    if family == "distilbert":
        sizes = {"dim": hidden, "n_layers": layers, "n_heads": heads, "hidden_dim": 2 * hidden}
        own = {"dropout": dropout, "attention_dropout": dropout}
        shared = {"vocab_size": size, "max_position_embeddings": 40, "pad_token_id": PAD}
        return perturbed(model(config(**shared, **sizes, **own, attn_implementation="eager")).double()).train()
    if family == "modernbert":
        own = {"attention_dropout": dropout, "mlp_dropout": dropout, "embedding_dropout": dropout}
        own |= {
            "local_attention": 4,
            "cls_token_id": CLS,
            "sep_token_id": SEP,
            "bos_token_id": CLS,
            "eos_token_id": SEP,
        }
    else:
        own = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
        own |= {"type_vocab_size": 2 if family == "bert" else 1}
    built = model(
        config(
            vocab_size=size,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=2 * hidden,
            max_position_embeddings=40,
            pad_token_id=PAD,
            # the library's eager attention gives NaN for padding that sees only padding
            attn_implementation="sdpa" if family == "modernbert" else "eager",
            **own,
        )
    )
    return perturbed(built.double()).train()


def perturbed(model: PreTrainedModel, by: float = 0.2) -> PreTrainedModel:
    """Add noise to every parameter, so that no bias and no LayerNorm is trivial."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * by)
    return model


@dataclass(frozen=True)
class Rows:
    """A masked batch in three forms: concatenated rows, padded rows, and the package's chunks.

    Attributes:
        flat: (N,) ids of all rows, concatenated.
        starts: (n + 1,) first position of each row in ``flat``, and N.
        masked, targets: (k,) masked positions in ``flat``, and the original ids at these positions.
    """

    flat: np.ndarray
    starts: np.ndarray
    masked: np.ndarray
    targets: np.ndarray

    @property
    def padded(self) -> tuple[Tensor, Tensor, Tensor]:
        """(n, t) input ids, attention mask (1 = a token) and labels (-100 = not predicted)."""
        lengths = np.diff(self.starts)
        ids = torch.full((len(lengths), int(lengths.max())), PAD)
        attention, labels = torch.zeros_like(ids), torch.full_like(ids, -100)
        target_at = dict(zip(self.masked.tolist(), self.targets.tolist(), strict=True))
        for row, length in enumerate(lengths.tolist()):
            for place in range(length):
                at = int(self.starts[row]) + place
                ids[row, place], attention[row, place] = int(self.flat[at]), 1
                labels[row, place] = target_at.get(at, -100)
        return ids, attention, labels

    def chunks(self, budget: int = 10**6) -> list[Chunk]:
        return chunks(self.flat, self.starts, budget, PAD, masked=self.masked, targets=self.targets)

    def cut(self, sizes: Sequence[int]) -> list[Chunk]:
        """Return chunks with these numbers of rows, in the order of the batch."""
        ids, attention, labels = self.padded
        found, first = [], 0
        for size in sizes:
            lengths = attention[first : first + size].sum(dim=1)
            here = slice(first, first + size), slice(0, int(lengths.max()))
            flat = labels[here].flatten()
            at = (flat != -100).nonzero().flatten()
            found.append(Chunk(ids[here].contiguous(), lengths, torch.arange(first, first + size), at, flat[at]))
            first += size
        assert first == len(ids)
        return found


def rows(lengths: Sequence[int], without: Sequence[int] = (), seed: int = 0) -> Rows:
    """Return rows ``[CLS] random ids [SEP]`` with a quarter of the ids masked. The rows ``without`` have none."""
    draw = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    flat = draw.integers(UNK + 1, SIZE, starts[-1])
    masked = []
    for row, (begin, end) in enumerate(pairwise(starts)):
        if row not in without:
            inner = np.arange(begin + 1, end - 1)
            masked += draw.choice(inner, max(1, len(inner) // 4), replace=False).tolist()
    places = np.sort(np.asarray(masked, dtype=np.int64))
    targets = flat[places].copy()
    flat[places] = MASK
    flat[starts[:-1]], flat[starts[1:] - 1] = CLS, SEP
    return Rows(flat, starts, places, targets)


def contexts(kind: str, lengths: Sequence[int], without: Sequence[int] = (), seed: int = 1) -> Rows:
    """Return the rows that a decoder of this kind predicts. In the rows ``without``, no token is predicted.

    A masked decoder gets the result of ``rows``. The other decoders get unmasked rows. A causal decoder predicts all
    tokens after [CLS], and an enhanced decoder all tokens between [CLS] and [SEP].
    """
    found = rows(lengths, without, seed)
    if kind == "masked":
        return found
    flat = found.flat.copy()
    flat[found.masked] = found.targets
    masked = [
        np.arange(begin + 1, end if kind == "causal" else end - 1)
        for row, (begin, end) in enumerate(pairwise(found.starts))
        if row not in without
    ]
    places = np.concatenate([np.empty(0, dtype=np.int64), *masked])
    return Rows(flat, found.starts, places, flat[places])


def paired(passages: Rows, context: Rows, cut: Sequence[int] | int) -> list[Chunk]:
    """Return chunks of passages with their contexts. ``cut``: rows of each chunk, or the package's token budget."""
    if isinstance(cut, int):
        other = TokenRows(context.flat, context.starts, context.masked, context.targets)
        return chunks(passages.flat, passages.starts, cut, PAD, passages.masked, passages.targets, context=other)
    both = zip(passages.cut(cut), context.cut(cut), strict=True)
    return [replace(chunk, context=other) for chunk, other in both]


@dataclass(frozen=True)
class Output:
    """The output of a Condenser: late CLS vectors (n, d), and the cross-entropy of each masked token (n, t), else 0."""

    cls: Tensor
    head: Tensor | None
    late: Tensor | None


def condenser(
    model: PreTrainedModel,
    head: Sequence[nn.Module],
    skip_from: int,
    late_mlm: bool,
    padded: tuple[Tensor, Tensor, Tensor],
) -> Output:
    """Compute Condenser (Gao and Callan 2021a, equations 3 to 11) with logits at all positions."""
    ids, attention, labels = padded
    found = model.base_model(input_ids=ids, attention_mask=attention, output_hidden_states=True)
    states, last = found.hidden_states, found.last_hidden_state
    family = model.config.model_type

    def project(state: Tensor) -> Tensor:
        if family == "distilbert":
            return model.vocab_projector(model.vocab_layer_norm(nn.functional.gelu(model.vocab_transform(state))))
        if family == "modernbert":
            return model.decoder(model.head(state))
        return (model.cls if family == "bert" else model.lm_head)(state)

    def entropy(state: Tensor) -> Tensor:
        logits = project(state).transpose(1, 2)
        return nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="none")

    hidden = torch.cat([last[:, :1], states[skip_from][:, 1:]], dim=1)
    padding = (1 - attention)[:, None, None, :].to(hidden.dtype) * torch.finfo(hidden.dtype).min
    further = {}
    if family == "modernbert":
        places = torch.arange(ids.shape[1])[None]
        further["position_embeddings"] = model.model.rotary_emb(hidden, places, "full_attention")
    for layer in head:
        result = layer(hidden, padding, **further)
        hidden = result[0] if isinstance(result, tuple) else result
    if family == "modernbert":
        hidden = model.model.final_norm(hidden)
    return Output(last[:, 0], entropy(hidden) if len(head) else None, entropy(last) if late_mlm else None)


@dataclass(frozen=True)
class Filled:
    """The output of an auto-encoder: CLS vectors (n, d), cross-entropies of passages and contexts (n, t), else 0."""

    cls: Tensor
    late: Tensor
    context: Tensor


def autoencoder(
    model: PreTrainedModel,
    decoder: Sequence[nn.Module],
    kind: str,
    passages: tuple[Tensor, Tensor, Tensor],
    context: tuple[Tensor, Tensor, Tensor],
    sets: Tensor | None = None,
) -> Filled:
    """Compute CoT-MAE (Wu et al. 2022), a causal variant of it, or RetroMAE (Xiao et al. 2022, §3.3) with ``sets``.

    The formulas of CoT-MAE are eq. 7-11 of Wu et al. 2023.

    ``sets``: (n, t, t) True where token i of a row sees token j; None = not RetroMAE.
    """
    project = model.cls if hasattr(model, "cls") else model.lm_head

    def entropy(state: Tensor, labels: Tensor) -> Tensor:
        logits = project(state).transpose(1, 2)
        return nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="none")

    ids, attention, labels = passages
    states = model(input_ids=ids, attention_mask=attention, output_hidden_states=True).hidden_states[-1]
    late, cls = entropy(states, labels), states[:, :1]
    ids, attention, labels = context
    hidden = torch.cat([cls, model.base_model.embeddings(input_ids=ids)[:, 1:]], dim=1)
    if sets is not None:
        hidden = _enhanced(model, decoder[0], cls[:, 0], hidden, attention, labels, sets)
    else:
        seen = attention[:, None, None, :].expand(-1, -1, ids.shape[1], -1)
        unseen = 1 - (seen.tril() if kind == "causal" else seen)
        for layer in decoder:
            result = layer(hidden, unseen.to(hidden.dtype) * torch.finfo(hidden.dtype).min)
            hidden = result[0] if isinstance(result, tuple) else result
    if kind == "causal":  # the state before a token predicts it
        hidden = torch.cat([hidden[:, :1], hidden[:, :-1]], dim=1)
    return Filled(cls[:, 0], late, entropy(hidden, labels))


def _enhanced(
    model: PreTrainedModel,
    layer: nn.Module,
    cls: Tensor,
    hidden: Tensor,
    attention: Tensor,
    labels: Tensor,
    sets: Tensor,
) -> Tensor:
    """Compute RetroMAE's enhanced decoding token by token and head by head; zeros for tokens that are not predicted."""
    this = layer.attention.self
    size = this.attention_head_size
    first = 0 if model.config.model_type == "bert" else PAD + 1
    found = []
    for row, lengths in enumerate(attention.sum(dim=1).tolist()):
        for place in range(hidden.shape[1]):
            if labels[row, place] == -100:
                found.append(torch.zeros_like(cls[0]))
                continue
            ask = cls[row] + model.base_model.embeddings.position_embeddings.weight[first + place]
            keys = hidden[row, [j for j in range(lengths) if j == 0 or (j != place and sets[row, place, j])]]
            heads = []
            for head in range(this.num_attention_heads):
                part = slice(head * size, (head + 1) * size)
                scores = this.key(keys)[:, part] @ this.query(ask)[part] / size**0.5
                heads.append(scores.softmax(0) @ this.value(keys)[:, part])
            attended = layer.attention.output(torch.cat(heads)[None], ask[None])
            found.append(layer.output(layer.intermediate(attended), attended)[0])
    return torch.stack(found).view(hidden.shape)


def span_contrast(vectors: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the loss of coCondenser (Gao and Callan 2021b, equation 6), averaged over the spans."""
    total = vectors.new_zeros(())
    for i in range(len(vectors)):
        others = [torch.exp(vectors[i] @ vectors[j] / temperature) for j in range(len(vectors)) if j != i]
        partner = i + 1 if i % 2 == 0 else i - 1
        total = total - torch.log(torch.exp(vectors[i] @ vectors[partner] / temperature) / sum(others))
    return total / len(vectors)


def worst(ours: dict[str, Tensor], reference: dict[str, Tensor]) -> float:
    """Return the maximum over tensors of the largest difference, divided by the largest entry of the reference tensor.

    The divisor is at least a millionth of the largest entry of all tensors. The bias of attention keys has the gradient
    0, because softmax ignores it. Its computed gradient is only rounding, so it is divided by the largest entry of all.
    """
    assert ours.keys() == reference.keys()
    size = {name: float(value.abs().max()) for name, value in reference.items()}
    largest = max(size.values())
    scale = {name: largest if name.endswith("key.bias") else max(own, 1e-6 * largest) for name, own in size.items()}
    return max(float((ours[name] - value).abs().max()) / scale[name] for name, value in reference.items())


def gradients(module: nn.Module) -> dict[str, Tensor]:
    """Return the gradient of every parameter. Raises ``AssertionError`` if a parameter has no gradient."""
    found = {name: parameter.grad for name, parameter in module.named_parameters()}
    assert not [name for name, gradient in found.items() if gradient is None]
    return {name: gradient.clone() for name, gradient in found.items() if gradient is not None}
