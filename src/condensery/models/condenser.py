"""Condenser (Gao and Callan 2021a): an MLM head that reads the CLS state of the last layer."""

from dataclasses import dataclass

from torch import Tensor
from transformers import PreTrainedModel

from condensery.errors import UserError
from condensery.models.encoder import transformer_layers
from condensery.models.packing import PackedLayout
from condensery.models.pretraining import PretrainingModel, with_cls
from condensery.tokens.batches import Chunk


@dataclass(frozen=True)
class CondenserShape:
    """The shape of the Condenser head on a backbone.

    Attributes:
        head_layers: number of transformer layers in the head (L^h); 0 = no head, which is plain masked language modelling.
        skip_from: number of early backbone layers (L^e); the head reads the token states after these layers.
        late_mlm: whether the backbone's last layer has an MLM loss, too (Gao and Callan 2021a, eq. 10).
    """

    head_layers: int
    skip_from: int
    late_mlm: bool

    def check(self, depth: int) -> None:
        """Raise ``UserError`` unless this head fits a backbone of ``depth`` layers."""
        if self.head_layers and not 0 <= self.skip_from < depth:
            raise UserError(
                f"skip_from: {self.skip_from} does not fit a backbone of {depth} layers; give 0 to {depth - 1}"
            )


def condenser_shape(
    language_model: PreTrainedModel, head_layers: int, skip_from: int | None, late_mlm: bool
) -> CondenserShape:
    """Return the shape of a head. ``skip_from`` None = half of the backbone's layers (6 of 12 in the papers)."""
    depth = language_model.config.num_hidden_layers
    return CondenserShape(head_layers, depth // 2 if skip_from is None else skip_from, late_mlm)


class Condenser(PretrainingModel):
    """A masked language model with a Condenser head (Gao and Callan 2021a, §3, eq. 3-11), or without one.

    The head reads [late CLS ; early token states]: the CLS state of the backbone's last layer, and the token states after
    ``skip_from`` layers. The head's output and, with ``late_mlm``, the backbone's output go through the same vocabulary
    projection (transform and tied decoder). In pre-norm models (ModernBERT) the final normalisation is applied to the head's
    output as well as to the backbone's output.
    """

    def __init__(self, language_model: PreTrainedModel, shape: CondenserShape) -> None:
        """Wrap a masked language model of transformers. The head is randomly initialised."""
        super().__init__(language_model)
        shape.check(language_model.config.num_hidden_layers)
        self.shape = shape
        self.head = self.new_layers(shape.head_layers)

    def encode(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the late CLS vectors (b, d), and for each loss the cross-entropy (k,) at the chunk's k masked tokens.

        ``mlm_head`` is the head's loss (Gao and Callan 2021a, eq. 9). ``mlm_late`` is the backbone's loss (eq. 10). Without a
        head, ``mlm_late`` is the only loss.

        Raises:
            ValueError: the chunk has no masked positions or no targets.
        """
        if chunk.targets is None:
            raise ValueError("a chunk for pre-training needs masked positions and targets")
        late = self.shape.late_mlm or not self.head
        layout = PackedLayout(chunk)
        assert layout.masked is not None
        hidden, early = self.encoder(
            layout, layout.cls, *((layout.masked,) if late else ()), skip=self.shape.skip_from if self.head else None
        )
        cls = hidden[: len(chunk)]  # (b, d)
        states = {}
        if late:
            states["mlm_late"] = hidden[len(chunk) :]  # (k, d)
        if early is not None:
            pair = with_cls(early, layout, cls)  # (n, d)
            read = transformer_layers(self.head, pair, layout.tokens, None, layout.masked)  # (k, d)
            states["mlm_head"] = self.encoder.finish(read)
        return cls, self.cross_entropy(states, dict.fromkeys(states, chunk.targets))
