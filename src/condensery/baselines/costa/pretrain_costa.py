"""Stage ``pretrain_costa``: contrastive span prediction together with MLM (Ma et al. 2022).

Symbols in shapes: n texts of a batch, b rows of a chunk, t its width, s spans of a text, d hidden size.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from condensery.baselines.costa.config import PretrainCostaConfig
from condensery.baselines.costa.spans import SpannedDataModule
from condensery.distributed import share_of
from condensery.losses.contrast import Contrast, weighted
from condensery.losses.cross_batch import across_processes
from condensery.losses.gradient_cache import ChunkEncoder
from condensery.models.condenser import Condenser
from condensery.models.packing import PackedLayout
from condensery.ranges import Positive, Weight, check_values
from condensery.stages.base import Context
from condensery.stages.pretraining.pretrain import condenser, fit_and_save, span_data
from condensery.training.data.span_batches import SpanBatch
from condensery.training.modules.optimisation import PathOrName
from condensery.training.modules.pretraining import CondenserModule


def group_contrast(vectors: Tensor, spans: int, temperature: float = 1.0) -> Tensor:
    """Return COSTA's group-wise contrastive loss (Ma et al. 2022).

    The group of a text i is the text with its spans S(i). With z the vectors of all n texts and all their spans, the loss is

        mean over i of -1/|S(i)| sum over p in S(i) of log (exp(<z_i, z_p> / tau) / sum over a != i of exp(<z_i, z_a> / tau))

    Args:
        vectors: (n, d + s d + s): each text's vector, the vectors of its spans, and 1 for each span that exists, else 0.
        spans: the number s of spans of a text.
        temperature: divisor tau of the inner products.

    Returns:
        the loss over the texts that have a span; zero if no text has a span.
    """
    number, width = len(vectors), vectors.shape[1] // (1 + spans)  # d, since the remainder s is below 1 + s
    texts = vectors[:, :width]  # (n, d)
    present = vectors[:, -spans:].detach() > 0.5  # (n, s)
    parts = vectors[:, width:-spans].reshape(number, spans, width)[present]  # (spans that exist, d)
    row = torch.arange(number, device=vectors.device)  # (n,)
    group = torch.cat([row, row[:, None].expand(-1, spans)[present]])  # (n + spans that exist,)
    similarity = texts @ torch.cat([texts, parts]).T / temperature  # (n, n + spans that exist)
    itself = torch.arange(len(group), device=vectors.device) == row[:, None]
    logs = similarity.masked_fill(itself, -torch.inf).log_softmax(dim=1)
    own = (group == row[:, None]) & ~itself
    each = logs.masked_fill(~own, 0.0).sum(dim=1) / own.sum(dim=1).clamp(min=1)  # (n,)
    return -each.sum() / own.any(dim=1).sum().clamp(min=1)


class SpanVectors:
    """Wraps a model without a head as a ``ChunkEncoder`` that gives the vectors of texts and spans, and the MLM loss.

    Args:
        model: masked language model.
        projector: layers that the text's vector passes through.
        masked: number of masked tokens in the batch; with several processes, the mean number per process.
        mlm_weight: factor of the MLM loss.
    """

    def __init__(self, model: Condenser, projector: nn.Module, masked: float, mlm_weight: float) -> None:
        self.model, self.projector, self.masked, self.mlm_weight = model, projector, masked, mlm_weight

    def vectors(self, chunk: Any) -> Tensor:
        """Return the argument ``vectors`` of ``group_contrast`` for the rows of a chunk, (b, d + s d + s)."""
        return self._read(chunk)[0]

    def encode(self, chunk: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the result of ``vectors``, and the chunk's contribution to the MLM loss."""
        vectors, hidden, layout = self._read(chunk)
        assert layout.masked is not None
        losses = self.model.cross_entropy({"mlm_late": hidden[layout.masked.index]}, {"mlm_late": chunk.targets})
        return vectors, {"mlm_late": losses["mlm_late"].sum() * (self.mlm_weight / (self.masked or 1))}

    def _read(self, chunk: Any) -> tuple[Tensor, Tensor, PackedLayout]:
        layout = PackedLayout(chunk)
        hidden = self.model.encoder(layout)[0]  # (packed tokens, d)
        states = layout.tokens.pad(hidden)  # (b, t, d)
        first, size = chunk.spans[..., :1], chunk.spans[..., 1:]  # (b, s, 1) each
        place = torch.arange(states.shape[1], device=states.device)  # (t,)
        inside = (place >= first) & (place < first + size)  # (b, s, t)
        means = inside.to(states.dtype) @ states / size.clamp(min=1)  # (b, s, d)
        text = self.projector(hidden[layout.cls.index])  # (b, d)
        present = (size[..., 0] > 0).to(text.dtype)  # (b, s)
        return torch.cat([text, means.to(text.dtype).flatten(1), present], dim=1), hidden, layout


class CostaModule(CondenserModule):
    """COSTA (Ma et al. 2022): MLM plus ``group_contrast`` of texts and spans. Train it on ``SpannedDataModule``.

    Args:
        model: folder or hub name of a checkpoint of the BERT family; or a ``Condenser`` without a head.
        projector: whether the text's vector passes through two layers, which are not saved.
        temperature: divisor of the inner products.
        contrast_weight: factor of the contrastive loss.
        others: further arguments of ``CondenserModule``.

    Raises:
        UserError: as ``CondenserModule``.
    """

    def __init__(
        self,
        model: PathOrName | Condenser,
        *,
        projector: bool = True,
        temperature: Positive = 1.0,
        contrast_weight: Weight = 0.1,
        **others: Any,
    ) -> None:
        check_values(type(self), locals())
        super().__init__(model, **{"head_layers": 0, **others})
        self.temperature, self.contrast_weight = temperature, contrast_weight
        width = int(self.model.language_model.config.hidden_size)
        torch.manual_seed(self.seed)
        layers = (nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)) if projector else ()
        self.projector = nn.Sequential(*layers)
        self._remember(locals())

    def objective(self, batch: SpanBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """Return the encoder with the MLM loss, and the contrastive loss over the texts and spans of all processes."""
        encoder = SpanVectors(self.model, self.projector, share_of(batch.masked), self.mlm_weight)
        spans = getattr(batch.chunks[0], "spans").shape[1]  # noqa: B009  (the chunks are SpannedChunks)
        loss = partial(group_contrast, spans=spans, temperature=self.temperature)
        return encoder, across_processes(weighted(loss, self.contrast_weight))


def pretrain_costa(config: PretrainCostaConfig, context: Context) -> dict[str, Any]:
    """Train an encoder by MLM and by a contrastive loss between each text and its own spans."""
    data = span_data(config, context, SpannedDataModule, **config.values_of("granularities", "spans_each"))
    how = config.values_of("projector", "temperature", "contrast_weight", "mlm_weight")
    module = CostaModule(condenser(config, context, data.vocabulary), **how, **config.optimiser())
    return fit_and_save(module, data, config, context)
