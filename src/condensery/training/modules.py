"""The LightningModules. One optimisation step = one batch through the one gradient cache.

Each begins with a model, or with the folder or hub name of a checkpoint, and trains in any ``pl.Trainer`` on one of the
data modules. They optimise by hand, so clipping is ``max_grad_norm`` and a batch of any size is split by the data module's
``chunk_tokens``: Lightning's own options for the two are refused by Lightning.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack

import pytorch_lightning as pl
import torch
from pytorch_lightning.core.optimizer import LightningOptimizer
from pytorch_lightning.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from condensery.errors import UserError
from condensery.files import expanded
from condensery.losses.base import RetrievalLoss
from condensery.losses.contrast import Contrast, span_contrast, weighted
from condensery.losses.cross_batch import (
    across_processes,
    alone,
    average,
    copy_first_weights,
    gathered,
    joined_passages,
    processes,
    rank,
    share_of,
    sum_of,
    to_be_averaged,
)
from condensery.losses.gradient_cache import ChunkEncoder, backpropagate
from condensery.losses.info_nce import info_nce
from condensery.losses.mlm import MaskedPrediction
from condensery.losses.registry import make_loss
from condensery.models.backbone import check_words
from condensery.models.biencoder import BiEncoder
from condensery.models.checkpoint import (
    Retriever,
    load_condenser,
    load_masked_autoencoder,
    load_towers,
    save_condenser,
    save_masked_autoencoder,
    save_retriever,
)
from condensery.models.condenser import Condenser
from condensery.models.encoder import Encoder
from condensery.models.masked_autoencoder import Init, Kind, MaskedAutoEncoder, decoder_shape
from condensery.randomness import hash64
from condensery.tokens.batches import Chunk
from condensery.tokens.tokenizer import load_tokenizer
from condensery.tokens.vocabulary import Vocabulary
from condensery.training.batches import Batch
from condensery.training.settings import Optimiser, linear_schedule
from condensery.training.span_batches import SpanBatch
from condensery.training.triple_batches import TripleBatch
from condensery.training.validation import ValidationSample, mean_reciprocal_rank

Source = str | Path
Towers = Literal["shared", "separate"]


class TrainingModule(pl.LightningModule):
    """What all training has in common: AdamW, the schedule, clipping, logging, in Lightning's manual optimisation.

    Gradients of a step are accumulated chunk by chunk; a batch of any size needs the memory of one chunk. Of several
    processes (``strategy="ddp"``) each accumulates those of its share of the batch; then they exchange them, once a step,
    and end with the weights that one process would have.

    Args:
        model: what is trained.
        learning_rate: the peak.
        warmup_ratio: share of the steps in which the rate rises linearly from zero; then it falls linearly to zero at the
            trainer's last step.
        weight_decay: of AdamW; biases and LayerNorm weights are not decayed.
        max_grad_norm: largest norm of the gradient; 0 = no clipping.
        seed: of dropout, and of weights that no checkpoint gives.

    Attributes:
        tokens: read in the last step by all processes together, padding not counted.
    """

    tokens: int

    def __init__(
        self,
        model: nn.Module,
        *,
        learning_rate: float = 1e-4,
        warmup_ratio: float = 0.1,
        weight_decay: float = 0.01,
        max_grad_norm: float = 1.0,
        seed: int = 42,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.learning_rate, self.warmup_ratio, self.weight_decay = learning_rate, warmup_ratio, weight_decay
        self.max_grad_norm, self.seed = max_grad_norm, seed
        self._norm: Tensor | None = None

    def objective(self, batch: Any) -> tuple[ChunkEncoder, Contrast | None]:
        """What encodes the chunks of ``batch``, and the loss of all their vectors."""
        raise NotImplementedError

    def embed(self, chunk: Chunk) -> Tensor:
        """Retrieval vectors (b, d) of a chunk, for validation."""
        raise NotImplementedError

    def configure_optimizers(self) -> Any:
        """AdamW and the linear schedule; the schedule is stepped in ``training_step``.

        Raises ``UserError`` where the trainer has no end.
        """
        self._steps = self._last_step()
        optimiser = torch.optim.AdamW(
            [
                {"params": list(self._weights(decayed=True)), "weight_decay": self.weight_decay},
                {"params": list(self._weights(decayed=False)), "weight_decay": 0.0},
            ],
            lr=self.learning_rate,
            fused=not self._scaled(),
        )
        rate = partial(linear_schedule, steps=self._steps, warmup_ratio=self.warmup_ratio)
        return {"optimizer": optimiser, "lr_scheduler": torch.optim.lr_scheduler.LambdaLR(optimiser, rate)}

    def _last_step(self) -> int:
        """How many steps the trainer will make."""
        trainer: Any = self.trainer
        data = getattr(trainer, "datamodule", None)
        epochs, most = trainer.max_epochs or -1, trainer.max_steps
        if epochs < 0 and most < 0:
            raise UserError("the learning rate falls until the last step: give the Trainer max_steps or max_epochs")
        if epochs < 0 or data is None or not hasattr(data, "batches_an_epoch"):
            return int(trainer.estimated_stepping_batches)
        # Lightning would open the loader for this, before a checkpoint says where it goes on
        each, limit = data.batches_an_epoch(), trainer.limit_train_batches
        each = min(each, limit) if isinstance(limit, int) else int(each * limit)
        return min(epochs * each, most) if most >= 0 else epochs * each

    def on_fit_start(self) -> None:
        """Raise ``UserError`` where the trainer shards the weights, which the gradient cache does not know."""
        if not isinstance(self.trainer.strategy, SingleDeviceStrategy | DDPStrategy):
            name = type(self.trainer.strategy).__name__
            raise UserError(f"Trainer(strategy=...): {name} is not supported; use one device or strategy='ddp'")

    def on_train_start(self) -> None:
        """All processes begin with the weights of the first."""
        copy_first_weights(self)

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """One optimisation step: back-propagate through the gradient cache, clip, step."""
        # dropout is a function of (seed, step, rank), so that a resumed run draws what an uninterrupted one draws
        others = [rank()] if rank() else []  # the first draws what one process draws
        torch.manual_seed(hash64(self.seed, "dropout", self.global_step, *others) >> 1)
        optimiser = self.optimizers()
        assert isinstance(optimiser, LightningOptimizer)
        optimiser.zero_grad()
        with alone(batch.alone), self._without_exchange_of_ddp():
            encoder, contrast = self.objective(batch)
            losses = backpropagate(encoder, batch.chunks, contrast, self.manual_backward)
            self.tokens = sum_of(batch.tokens)
        losses = average(self.parameters(), losses)
        rate = optimiser.param_groups[0]["lr"]
        optimiser.step()
        self.lr_schedulers().step()  # type: ignore[union-attr]
        total = torch.stack(list(losses.values())).sum()
        self._record({"loss": total, **losses, "lr": rate})

    def validation_step(self, batch: ValidationSample, batch_idx: int) -> None:
        """MRR@10 over the sample, logged as ``val/mrr@10``."""
        self.log("val/mrr@10", mean_reciprocal_rank(self.embed, batch), batch_size=1, sync_dist=True)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Clip the gradient; its norm before clipping is logged."""
        limit = self.max_grad_norm or float("inf")
        self._norm = nn.utils.clip_grad_norm_(self.parameters(), limit, foreach=True)
        self._record({"grad_norm": self._norm})
        # on a GPU looking at it waits for the GPU, so that is done where something is written
        step = self.global_step + 1
        if self._norm.device.type == "cpu" or step == self._steps or step % max(1, self._log_every()) == 0:
            self._check_norm(self.global_step)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """No checkpoint is written of weights that are not finite: ``UserError``."""
        self._check_norm(self.global_step - 1)

    def _check_norm(self, step: int) -> None:
        if self._norm is not None and not self._scaled() and not self._norm.isfinite():
            raise UserError(
                f"the gradient is not finite at step {step}; lower learning_rate, raise warmup_ratio or set max_grad_norm"
            )

    def _log_every(self) -> int:
        return int(getattr(self.trainer, "log_every_n_steps", 1))

    def _scaled(self) -> bool:
        """Whether the loss is scaled, as in fp16. AdamW's fused kernel takes the scale out of the gradient by itself, which
        would be after clipping; and a gradient that is not finite is skipped."""
        return "16" in str(self.trainer.precision) and "bf16" not in str(self.trainer.precision)

    def _without_exchange_of_ddp(self) -> AbstractContextManager[Any]:
        """``average`` exchanges the gradients once a step; DDP would do it in every backward pass of a chunk."""
        model = self.trainer.strategy.model
        return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()

    def _record(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            self.log(f"train/{name}", value, batch_size=1)

    def _weights(self, decayed: bool) -> Iterator[nn.Parameter]:
        """Matrices are decayed; biases and LayerNorm weights (one dimension) are not."""
        return (parameter for parameter in self.parameters() if (parameter.ndim > 1) == decayed)

    def _remember(self, **given: Any) -> None:
        """Keep the arguments of the ``__init__`` that calls this, for ``load_from_checkpoint``.

        Those of ``given`` that are objects and not names cannot be kept: they have to be given to it again.
        """
        frame = inspect.currentframe()
        objects = [name for name, value in given.items() if isinstance(value, nn.Module)]
        self.save_hyperparameters(ignore=objects, frame=frame and frame.f_back, logger="model" not in objects)
        for name, value in self.hparams.items():
            self.hparams[name] = str(value) if isinstance(value, Path) else value


class EncoderModule(TrainingModule):
    """A module that trains an encoder of texts: it begins with a checkpoint or a model, and is saved as a checkpoint.

    Args:
        model: what is trained.
        tokenizer: folder or hub name of the tokenizer that the texts are read with; None = that of the data module.
    """

    def __init__(self, model: nn.Module, tokenizer: Source | None, **optimiser: Unpack[Optimiser]) -> None:
        super().__init__(model, **optimiser)
        self.tokenizer = tokenizer

    def on_fit_start(self) -> None:
        """Raise ``UserError`` where data and encoder have other tokens, or the encoder too few positions for the inputs."""
        super().on_fit_start()
        data = getattr(self.trainer, "datamodule", None)
        other = getattr(data, "tokenizer_folder", None)
        if self.tokenizer and other and load_tokenizer(self.tokenizer).get_vocab() != load_tokenizer(other).get_vocab():
            raise UserError(f"the tokenizer of the data module is not that of {self.tokenizer}; give both the same")
        vocabulary, longest = getattr(data, "vocabulary", None), max(getattr(data, "lengths", (0,)))
        for encoder in (part for part in self.modules() if isinstance(part, Encoder)):
            if vocabulary is not None:
                check_words(encoder.model, "the encoder", vocabulary)
            if longest > encoder.longest:
                raise UserError(f"inputs of {longest} tokens are longer than the encoder's {encoder.longest} positions")

    def towers(self) -> BiEncoder:
        """The retriever as it stands; with the weights of this module, not a copy."""
        raise NotImplementedError

    def save_pretrained(
        self, folder: Source, tokenizer: Source | None = None, lengths: tuple[int, int] | None = None
    ) -> None:
        """Save it as a checkpoint that transformers, sentence-transformers and ``Retriever`` open.

        Args:
            folder: made where it is not there.
            tokenizer: saved with it; None = that of the module, or of the data module that it was trained on.
            lengths: longest query and passage in tokens, [CLS] and [SEP] included; None = those of the data module, or as
                long as the encoder reads, 512 at most.

        Raises:
            UserError: no tokenizer is known.
        """
        tokenizer = tokenizer or self.saved_with
        if tokenizer is None:
            raise UserError("save_pretrained: give `tokenizer`, the folder or hub name that the texts are read with")
        self._save(Path(folder), tokenizer, lengths or self.lengths)

    @property
    def saved_with(self) -> Source | None:
        """The tokenizer of this module or of its data module."""
        data = getattr(self._trainer, "datamodule", None)
        return self.tokenizer or getattr(data, "tokenizer_folder", None)

    @property
    def lengths(self) -> tuple[int, int]:
        """Longest query and passage in tokens: those of the data module, or as long as the encoder reads, 512 at most."""
        data, towers = getattr(self._trainer, "datamodule", None), self.towers()
        longest = min(512, towers.query.longest, towers.passage.longest)
        return getattr(data, "lengths", (longest, longest))

    def embed(self, chunk: Chunk) -> Tensor:
        """CLS vectors (b, d), of a bi-encoder by the tower of the chunk."""
        return self.model.vectors(chunk)  # type: ignore[operator]

    def _save(self, folder: Path, tokenizer: Source, lengths: tuple[int, int]) -> None:
        raise NotImplementedError


class CondenserModule(EncoderModule):
    """Condenser pre-training (Gao and Callan 2021a, §3), and plain MLM where the model has no head.

    A batch larger than a chunk is gradient accumulation; the MLM means are over the masked tokens of the whole batch,
    that of all processes.

    Args:
        model: folder or hub name of a checkpoint of the BERT family; or a ``Condenser``, and then the four arguments after
            ``tokenizer`` are not read.
        tokenizer: folder or hub name; None = that of the checkpoint.
        head_layers: transformer layers of the head; 0 = none: plain MLM.
        skip_from: backbone layer whose token states the head reads; None = half of them.
        late_mlm: train the backbone's last layer to fill in masked tokens, too.
        dropout: of hidden states and attention; None = as the checkpoint says.
        mlm_weight: of the MLM losses.
        optimiser: see ``TrainingModule``.

    Raises:
        UserError: the checkpoint or its tokenizer cannot be loaded.
    """

    model: Condenser

    def __init__(
        self,
        model: Source | Condenser,
        *,
        tokenizer: Source | None = None,
        head_layers: int = 2,
        skip_from: int | None = None,
        late_mlm: bool = True,
        dropout: float | None = None,
        mlm_weight: float = 1.0,
        **optimiser: Unpack[Optimiser],
    ) -> None:
        built = model
        if not isinstance(built, Condenser):
            source, vocabulary = _begin(built, tokenizer, optimiser)
            built = load_condenser(source, vocabulary, head_layers, skip_from, late_mlm, dropout).train()
        super().__init__(built, _tokenizer(model, tokenizer), **optimiser)
        self.mlm_weight = mlm_weight
        self._remember(model=model)

    def objective(self, batch: SpanBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """MLM of head and backbone."""
        return MaskedPrediction(self.model, share_of(batch.masked), self.mlm_weight), None

    def towers(self) -> BiEncoder:
        """The backbone, for queries and passages."""
        return BiEncoder(self.model.encoder)

    def _save(self, folder: Path, tokenizer: Source, lengths: tuple[int, int]) -> None:
        save_condenser(self.model, folder, tokenizer, max(lengths))


class CoCondenserModule(CondenserModule):
    """coCondenser (Gao and Callan 2021b, eq. 7): MLM plus the contrast of the two texts of each pair, of all processes.

    Args:
        model, mlm_weight: see ``CondenserModule``.
        temperature: divides the inner products (tau of Wu et al. 2023, eq. 5; the paper of coCondenser has none: 1).
        contrast_weight: of the contrast against MLM (1 in the papers).
        others: see ``CondenserModule``.
    """

    def __init__(
        self,
        model: Source | Condenser,
        *,
        mlm_weight: float = 1.0,
        temperature: float = 1.0,
        contrast_weight: float = 1.0,
        **others: Any,
    ) -> None:
        super().__init__(model, mlm_weight=mlm_weight, **others)
        self.temperature, self.contrast_weight = temperature, contrast_weight

    def objective(self, batch: SpanBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """MLM of head and backbone, and contrast."""
        encoder, _ = super().objective(batch)
        contrast = weighted(partial(span_contrast, temperature=self.temperature), self.contrast_weight)
        return encoder, across_processes(contrast)


class QueryAsContextModule(CoCondenserModule):
    """Query-as-context pre-training (Wu et al. 2023, §3.1): coCondenser on pairs of a passage and one of its queries.

    The objective is coCondenser's; what makes it another method is its data, ``PassageQueryDataModule``. Arguments are
    those of ``CoCondenserModule``; the paper's temperature is 1.
    """


class MaskedAutoEncoderModule(EncoderModule):
    """CoT-MAE (Wu et al. 2023, eq. 11) and RetroMAE: MLM of the encoder and of a decoder that leans on its vector.

    Args:
        model: folder or hub name of a checkpoint of the BERT family; or a ``MaskedAutoEncoder``, and then the arguments of
            the decoder are not read.
        tokenizer, dropout: see ``CondenserModule``.
        decoder: masked (CoT-MAE), causal or enhanced (RetroMAE); see ``DecoderShape``.
        decoder_layers: None = two, of an enhanced decoder one.
        decoder_init: its first weights: random, or those of the backbone's last layers.
        decoder_mask_rate: the share of the other tokens that an enhanced decoder does not see.
        mlm_weight: of the encoder's MLM.
        optimiser: see ``TrainingModule``.
    """

    model: MaskedAutoEncoder

    def __init__(
        self,
        model: Source | MaskedAutoEncoder,
        *,
        tokenizer: Source | None = None,
        decoder: Kind = "masked",
        decoder_layers: int | None = None,
        decoder_init: Init = "random",
        decoder_mask_rate: float = 0.5,
        dropout: float | None = None,
        mlm_weight: float = 1.0,
        **optimiser: Unpack[Optimiser],
    ) -> None:
        built = model
        if not isinstance(built, MaskedAutoEncoder):
            shape = decoder_shape(decoder, decoder_layers, decoder_mask_rate)
            built = load_masked_autoencoder(*_begin(built, tokenizer, optimiser), shape, decoder_init, dropout).train()
        super().__init__(built, _tokenizer(model, tokenizer), **optimiser)
        self.mlm_weight = mlm_weight
        self._remember(model=model)

    def objective(self, batch: SpanBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """MLM of encoder and decoder, each a mean over its own tokens."""
        counts = {"mlm_late": share_of(batch.masked), "mlm_context": share_of(batch.context_masked)}
        return MaskedPrediction(self.model, counts, {"mlm_late": self.mlm_weight, "mlm_context": 1.0}), None

    def towers(self) -> BiEncoder:
        """The backbone, for queries and passages."""
        return BiEncoder(self.model.encoder)

    def _save(self, folder: Path, tokenizer: Source, lengths: tuple[int, int]) -> None:
        save_masked_autoencoder(self.model, folder, tokenizer, max(lengths))


class TowersModule(EncoderModule):
    """What trains the vectors of a bi-encoder and nothing else.

    Args:
        model: folder or hub name of a checkpoint of the BERT family, or a ``BiEncoder``.
        tokenizer: folder or hub name; None = that of the checkpoint.
        towers: shared, or separate: queries and passages each have their own weights. Not read where ``model`` is a
            ``BiEncoder``.
        dropout: of hidden states and attention; None = as the checkpoint says.
        optimiser: see ``TrainingModule``.
    """

    model: BiEncoder

    def __init__(
        self,
        model: Source | BiEncoder,
        *,
        tokenizer: Source | None = None,
        towers: Towers = "shared",
        dropout: float | None = None,
        **optimiser: Unpack[Optimiser],
    ) -> None:
        built = model
        if isinstance(built, str | Path):
            built = load_towers(built, towers == "separate", dropout).train()
        super().__init__(built, _tokenizer(model, tokenizer), **optimiser)
        self._remember(model=model)

    def towers(self) -> BiEncoder:
        """The model itself."""
        return self.model

    def _save(self, folder: Path, tokenizer: Source, lengths: tuple[int, int]) -> None:
        save_retriever(Retriever(self.model, *lengths), folder, tokenizer)


class InverseClozeModule(TowersModule):
    """ICT (Lee et al. 2019; Gao and Callan 2021a, §4.4): find the passage of a sentence among those of the batch.

    Rows 2i of a batch are the passages, 2i + 1 the sentences, as ``SpanPairDataModule(pairs="sentence")`` makes them.

    Args:
        model: see ``TowersModule``.
        temperature: divides the inner products.
        others: see ``TowersModule``.
    """

    def __init__(self, model: Source | BiEncoder, *, temperature: float = 1.0, **others: Any) -> None:
        super().__init__(model, **others)
        self.temperature = temperature

    def objective(self, batch: SpanBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """InfoNCE over the passages of the batch, of all processes."""
        return self.model, across_processes(self._contrast)

    def _contrast(self, vectors: Tensor) -> Tensor:
        passages, sentences = vectors[0::2], vectors[1::2]
        own = torch.arange(len(passages), device=vectors.device)
        return info_nce(sentences, passages, own, temperature=self.temperature)


class BiEncoderModule(TowersModule):
    """Fine-tuning of a bi-encoder (Karpukhin et al. 2020), by default with the negative log-likelihood of the positive.

    With several processes the passages of all are the negatives (RocketQA's cross-batch negatives).

    Args:
        model: see ``TowersModule``.
        loss: the name of a loss (info_nce, learning_to_rank, or one that was registered), a mapping with ``name`` and
            its options, or a ``RetrievalLoss``.
        mask_known_positives: leave out passages of the batch that are judged relevant to the query but are not the
            drawn positive. The papers' code counts them as negatives.
        temperature: an option of the loss, unless it was given as an object.
        others: see ``TowersModule``.
    """

    def __init__(
        self,
        model: Source | BiEncoder,
        *,
        loss: str | Mapping[str, Any] | RetrievalLoss = "info_nce",
        mask_known_positives: bool = True,
        temperature: float = 1.0,
        **others: Any,
    ) -> None:
        super().__init__(model, **others)
        self.mask_known_positives = mask_known_positives
        self.loss = loss if isinstance(loss, RetrievalLoss) else make_loss(loss, temperature=temperature)
        self.loss.prepare(self.model.hidden_size, self.seed)
        self._remember(model=model, loss=loss)

    def objective(self, batch: TripleBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """The loss over the passages of the batch, of all processes."""
        number = len(batch.positive)

        def contrast(vectors: Tensor) -> Tensor:
            queries, passages, positive, known = vectors[:number], vectors[number:], batch.positive, batch.known
            if processes() > 1:
                queries = gathered(queries)
                passages, positive, known = joined_passages(passages, batch.passages, positive, batch.judged)
            masked = known if self.mask_known_positives else None
            return to_be_averaged(self.loss(queries, passages, positive, masked))

        return Featured(self.model, self.loss), contrast


class Featured:
    """A bi-encoder as the gradient cache sees it, with what a loss makes of its vectors."""

    def __init__(self, model: BiEncoder, loss: RetrievalLoss) -> None:
        self.model, self.loss = model, loss

    def vectors(self, chunk: Chunk) -> Tensor:
        """The features (b, f) of the loss."""
        found: Tensor = self.loss.features(self.model.vectors(chunk), chunk.tower)
        return found

    def encode(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        """The same; there are no losses of a chunk's own."""
        return self.vectors(chunk), {}


def _tokenizer(model: Source | nn.Module, tokenizer: Source | None) -> Source | None:
    return tokenizer if tokenizer is not None or isinstance(model, nn.Module) else model


def _begin(source: Source, tokenizer: Source | None, optimiser: Optimiser) -> tuple[Source, Vocabulary]:
    """A checkpoint and the vocabulary that it is read with; weights that it does not hold are drawn by the seed."""
    torch.manual_seed(optimiser.get("seed", 42))
    return expanded(source) if expanded(source).is_dir() else source, Vocabulary.of(load_tokenizer(tokenizer or source))
