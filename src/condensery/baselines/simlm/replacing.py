"""SimLM's corrupted texts: a frozen masked language model replaces tokens (Wang et al. 2023, §3.1).

Symbols in shapes: b rows of a chunk, t its width, k replaced tokens, V tokens of the vocabulary.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedModel

from condensery.baselines.simlm.config import Predict
from condensery.distributed import share_of
from condensery.losses.contrast import Contrast
from condensery.losses.gradient_cache import ChunkEncoder
from condensery.losses.mlm import MaskedPrediction
from condensery.models.checkpoints.backbone import OTHER_HEADS, check_words, config_content
from condensery.models.checkpoints.config_file import check_config
from condensery.models.checkpoints.hub import checkpoint_folder
from condensery.models.checkpoints.weights import Allowed, load_weights, readable
from condensery.models.masked_autoencoder import MaskedAutoEncoder
from condensery.tokens.batches import Chunk
from condensery.tokens.tokenizer import check_same_tokenizer
from condensery.tokens.vocabulary import Vocabulary
from condensery.training.data.span_batches import SpanBatch
from condensery.training.modules.optimisation import PathOrName
from condensery.training.modules.pretraining import MaskedAutoEncoderModule

_LOGITS = 1 << 26  # number of logits of the generator in memory at once


def load_replacing_model(source: Path | str, vocabulary: Vocabulary, revision: str | None, key: str) -> PreTrainedModel:
    """Load a masked language model of any family of transformers, such as ELECTRA's generator.

    Args:
        source: folder or hub name.
        vocabulary: vocabulary of the tokens that the model will read.
        revision: commit, tag or branch on the hub.
        key: config key of ``source``, for error messages.

    Raises:
        UserError: the checkpoint cannot be loaded, has no head for masked tokens, or does not fit the tokenizer.
    """
    folder = checkpoint_folder(source, revision)
    with readable(folder):
        check_config(config_content(folder), f"{folder}/config.json", encoder=False)
        config: Any = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        model = load_weights(AutoModelForMaskedLM, folder, config, Allowed(unused=OTHER_HEADS), dtype=torch.float32)
    check_words(model, source, vocabulary)
    check_same_tokenizer(folder, vocabulary, str(source), f"give {key} a model with this tokenizer")
    return model


class TokenReplacer(nn.Module):
    """Replaces the masked tokens of a chunk, and of its context, by tokens that a masked language model draws for them.

    In the context, the tokens that are masked in the chunk are replaced too, by newly drawn tokens. The model is frozen
    and has no dropout. Tokens are drawn from torch's default generator.

    Args:
        model: a masked language model of transformers.
        vocabulary: vocabulary of the tokens.
        predict: the tokens that encoder and decoder predict: all except special tokens, or only the replaced tokens.
    """

    special: Tensor

    def __init__(self, model: PreTrainedModel, vocabulary: Vocabulary, predict: Predict = "all") -> None:
        super().__init__()
        self.model: Any = model.requires_grad_(False).eval()
        self.mask, self.size, self.predict = vocabulary.mask, vocabulary.size, predict
        self.register_buffer("special", torch.from_numpy(vocabulary.is_special), persistent=False)  # (V,)

    def train(self, mode: bool = True) -> Self:
        """Set the mode of this module; the model stays in evaluation mode."""
        super().train(mode)
        self.model.eval()
        return self

    def forward(self, chunk: Chunk) -> Chunk:
        """Return the chunk and its context with replaced tokens; ``masked`` and ``targets`` give the predicted tokens."""
        original, masked, further = self._parts(chunk)
        assert chunk.context is not None
        context = self._read(chunk.context, original, further)
        return replace(self._read(chunk, original, masked), context=context)

    def predicted(self, chunk: Chunk) -> tuple[int, int]:
        """Return the numbers of tokens that encoder and decoder predict in the chunk."""
        original, masked, further = self._parts(chunk)
        return len(self._places(original, masked)), len(self._places(original, further))

    def _parts(self, chunk: Chunk) -> tuple[Tensor, Tensor, Tensor]:
        """Return the original ids (b * t,), and the ascending positions replaced for the encoder and for the decoder."""
        assert chunk.masked is not None
        assert chunk.targets is not None
        assert chunk.context is not None
        assert chunk.context.masked is not None
        original = chunk.input_ids.flatten().index_copy(0, chunk.masked, chunk.targets)
        return original, chunk.masked, torch.cat([chunk.masked, chunk.context.masked]).unique()

    def _places(self, original: Tensor, masked: Tensor) -> Tensor:
        return masked if self.predict == "replaced" else (~self.special[original]).nonzero()[:, 0]

    def _read(self, chunk: Chunk, original: Tensor, masked: Tensor) -> Chunk:
        """Return the chunk with drawn tokens at the positions ``masked`` (k,) of the ids ``original`` (b * t,)."""
        filled = self.drawn(replace(chunk, input_ids=original.view_as(chunk.input_ids)), masked)  # (k,)
        ids = original.index_copy(0, masked, filled).view_as(chunk.input_ids)  # (b, t)
        at = self._places(original, masked)
        return replace(chunk, input_ids=ids, masked=at, targets=original[at])

    @torch.no_grad()
    def drawn(self, chunk: Chunk, masked: Tensor) -> Tensor:
        """Mask the positions ``masked`` of a chunk, all at once, and draw a token for each. Return the tokens (k,).

        The chunk has the original ids. The positions (k,) are ascending. The tokens are drawn from the model's distribution
        (temperature 1).
        """
        ids = chunk.input_ids.flatten().index_fill(0, masked, self.mask).view_as(chunk.input_ids)  # (b, t)
        asked = torch.zeros_like(ids, dtype=torch.bool).flatten().index_fill(0, masked, True).view_as(ids)
        each = max(1, _LOGITS // (ids.shape[1] * self.size))  # rows
        found = []
        for rows, seen, where in zip(*(part.split(each) for part in (ids, chunk.attention_mask, asked)), strict=True):
            odds = self._logits(rows, seen, where)[:, : self.size].double().softmax(dim=1)  # (k, V)
            found.append(torch.multinomial(odds, 1)[:, 0] if len(odds) else odds.new_empty(0, dtype=torch.long))
        return torch.cat(found)

    def _logits(self, ids: Tensor, seen: Tensor, where: Tensor) -> Tensor:
        """Return the logits (k, V) at the k positions that ``where``, bool (b, t), marks. Only these are projected."""
        chosen = self.model.get_output_embeddings().register_forward_pre_hook(lambda _, given: (given[0][where],))
        with chosen:
            found: Tensor = self.model(input_ids=ids, attention_mask=seen.long()).logits
        return found


class ReplacedPrediction(MaskedPrediction):
    """``MaskedPrediction`` on chunks whose tokens are replaced first."""

    def __init__(
        self,
        model: MaskedAutoEncoder,
        replacer: TokenReplacer,
        predicted: Mapping[str, float],
        weight: Mapping[str, float],
    ) -> None:
        super().__init__(model, predicted, weight)
        self.replacer = replacer

    def encode(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the CLS vectors (b, d) of the encoder's replaced text, and the chunk's contribution to each loss."""
        return super().encode(self.replacer(chunk))


class SimlmModule(MaskedAutoEncoderModule):
    """SimLM (Wang et al. 2023, §3.1): encoder and decoder predict the original tokens, each with a cross-entropy loss.

    Args:
        model: folder or hub name of a checkpoint of the BERT family; or a ``MaskedAutoEncoder`` with a masked decoder.
        replacer: replaces the masked tokens.
        others: further arguments of ``MaskedAutoEncoderModule``.

    Raises:
        UserError: as ``MaskedAutoEncoderModule``.
    """

    usual_rate = 3e-4

    def __init__(self, model: PathOrName | MaskedAutoEncoder, replacer: TokenReplacer, **others: Any) -> None:
        super().__init__(model, **others)
        self.replacer = replacer
        self._remember(locals(), predict=replacer.predict)

    def objective(self, batch: SpanBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """Return the encoder with both losses, each a mean over its own predicted tokens of the batch."""
        late, context = (sum(number) for number in zip(*map(self.replacer.predicted, batch.chunks), strict=True))
        counts = {"mlm_late": share_of(late), "mlm_context": share_of(context)}
        weights = {"mlm_late": self.mlm_weight, "mlm_context": 1.0}
        return ReplacedPrediction(self.model, self.replacer, counts, weights), None
