"""Slow, plain mathematics that ours is held against, on the library's own models; and small models and batches for it.

Nothing here uses the package's models or objectives: rows are padded, logits are computed everywhere, loops are loops.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    PreTrainedModel,
    RobertaConfig,
    RobertaForMaskedLM,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
)

from condensery.tokens.batches import Chunk, chunks
from condensery.tokens.vocabulary import Vocabulary

PAD, CLS, SEP, MASK, UNK, SIZE = 1, 0, 2, 3, 4, 60
FAMILIES = {
    "bert": (BertConfig, BertForMaskedLM),
    "roberta": (RobertaConfig, RobertaForMaskedLM),
    "xlm-roberta": (XLMRobertaConfig, XLMRobertaForMaskedLM),
}


def vocabulary(size: int = SIZE) -> Vocabulary:
    """``size`` ids of which the first five are special; every third one continues a word."""
    special = np.arange(5)
    continues = np.arange(size) % 3 == 2
    continues[:5] = False
    return Vocabulary(size, pad=PAD, cls=CLS, sep=SEP, mask=MASK, unk=UNK, special=special, continues=continues)


def language_model(
    family: str = "bert", layers: int = 3, hidden: int = 16, heads: int = 2, dropout: float = 0.0, size: int = SIZE
) -> PreTrainedModel:
    """A small model in float64 and training mode, none of whose parameters is 0 or 1."""
    config, model = FAMILIES[family]
    torch.manual_seed(0)
    built = model(
        config(
            vocab_size=size,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=2 * hidden,
            max_position_embeddings=40,
            pad_token_id=PAD,
            type_vocab_size=2 if family == "bert" else 1,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            attn_implementation="eager",
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
    """A masked batch in three forms: one row behind the other, padded to a rectangle, and as the package's chunks.

    Attributes:
        flat, starts: (N,), (n + 1,).
        masked, targets: (k,) positions into ``flat`` and the original ids there.
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
        """Chunks of the given numbers of rows, in the order of the batch."""
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
    """[CLS] random ids [SEP], a quarter of the ids masked; the rows ``without`` have no masked token."""
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


@dataclass(frozen=True)
class Output:
    """What a Condenser computes: late CLS (n, d), and the cross-entropy of every masked token (n, t), 0 elsewhere."""

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
    """Condenser (Gao and Callan 2021, equations 3 to 11) with logits at all positions."""
    ids, attention, labels = padded
    states = model(input_ids=ids, attention_mask=attention, output_hidden_states=True).hidden_states
    project = model.cls if hasattr(model, "cls") else model.lm_head

    def entropy(state: Tensor) -> Tensor:
        logits = project(state).transpose(1, 2)
        return nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="none")

    hidden = torch.cat([states[-1][:, :1], states[skip_from][:, 1:]], dim=1)
    padding = (1 - attention)[:, None, None, :].to(hidden.dtype) * torch.finfo(hidden.dtype).min
    for layer in head:
        result = layer(hidden, padding)
        hidden = result[0] if isinstance(result, tuple) else result
    return Output(states[-1][:, 0], entropy(hidden) if len(head) else None, entropy(states[-1]) if late_mlm else None)


def span_contrast(vectors: Tensor, temperature: float = 1.0) -> Tensor:
    """coCondenser (Gao and Callan 2022), equation 6, averaged over the spans."""
    total = vectors.new_zeros(())
    for i in range(len(vectors)):
        others = [torch.exp(vectors[i] @ vectors[j] / temperature) for j in range(len(vectors)) if j != i]
        partner = i + 1 if i % 2 == 0 else i - 1
        total = total - torch.log(torch.exp(vectors[i] @ vectors[partner] / temperature) / sum(others))
    return total / len(vectors)


def worst(ours: dict[str, Tensor], reference: dict[str, Tensor]) -> float:
    """The largest difference of any tensor over that tensor's largest entry (or a millionth of the largest of all)."""
    assert ours.keys() == reference.keys()
    floor = 1e-6 * max(float(value.abs().max()) for value in reference.values())
    return max(float((ours[n] - r).abs().max()) / max(float(r.abs().max()), floor) for n, r in reference.items())


def gradients(module: nn.Module) -> dict[str, Tensor]:
    """The gradient of every parameter; all of them must have one."""
    found = {name: parameter.grad for name, parameter in module.named_parameters()}
    assert not [name for name, gradient in found.items() if gradient is None]
    return {name: gradient.clone() for name, gradient in found.items() if gradient is not None}
