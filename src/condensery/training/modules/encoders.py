"""Base classes of the LightningModules that train a text encoder and save it as a retriever's checkpoint."""

from pathlib import Path
from typing import Any, Literal, Unpack

from torch import Tensor, nn

from condensery.errors import UserError
from condensery.models.biencoder import BiEncoder
from condensery.models.blending import same_weights
from condensery.models.checkpoints.backbone import check_words
from condensery.models.checkpoints.card import CARD, Card, Described, base_of
from condensery.models.checkpoints.hub import checkpoint_folder
from condensery.models.checkpoints.metadata import QUERY_ENCODER
from condensery.models.checkpoints.retrievers import SavedRetriever, load_biencoder, save_retriever
from condensery.models.encoder import Encoder
from condensery.models.vectors import VectorOptions, VectorSettings
from condensery.ranges import Length, Share, check_values
from condensery.system.files import no_artifact, write_text
from condensery.tokens.batches import Chunk
from condensery.tokens.tokenizer import load_tokenizer
from condensery.training.modules.optimisation import PathOrName, TrainingModule
from condensery.training.settings import Optimiser

Towers = Literal["shared", "separate"]


class EncoderModule(TrainingModule):
    """A module that trains a text encoder and saves it as a retriever's checkpoint.

    Args:
        model: the model that is trained.
        tokenizer: folder or hub name of the encoder's tokenizer; None = the data module's tokenizer.
        optimiser: arguments of ``TrainingModule``.
    """

    def __init__(self, model: nn.Module, tokenizer: PathOrName | None, **optimiser: Unpack[Optimiser]) -> None:
        super().__init__(model, **optimiser)
        self.tokenizer = tokenizer

    def on_fit_start(self) -> None:
        """Raise ``UserError`` if data and encoder differ in vocabulary, or if inputs are too long for the encoder."""
        super().on_fit_start()
        data = self._data
        other = getattr(data, "tokenizer_folder", None)
        if self.tokenizer and other and load_tokenizer(self.tokenizer).get_vocab() != load_tokenizer(other).get_vocab():
            raise UserError(f"the data module has another tokenizer than {self.tokenizer}; give both modules the same")
        vocabulary, longest = getattr(data, "vocabulary", None), max(getattr(data, "lengths", (0,)))
        for encoder in (part for part in self.modules() if isinstance(part, Encoder)):
            if vocabulary is not None:
                check_words(encoder.model, "the encoder", vocabulary)
            if longest > encoder.longest:
                raise UserError(f"inputs have {longest} tokens, the encoder {encoder.longest} positions; lower length")

    def towers(self) -> BiEncoder:
        """Return the current retriever, which shares its weights with this module."""
        raise NotImplementedError

    def described(self) -> VectorSettings | Described:
        """Return the description of the vectors for the model card."""
        return self.towers().settings

    def save_pretrained(
        self,
        folder: PathOrName,
        tokenizer: PathOrName | None = None,
        lengths: tuple[Length, Length] | None = None,
        card: Card | None = None,
    ) -> None:
        """Save the retriever as a checkpoint that transformers, sentence-transformers and ``condensery.Retriever`` load.

        The folder also gets a model card, ``README.md``.

        Args:
            folder: folder to write to; it is created if it does not exist.
            tokenizer: folder or hub name of the tokenizer that is saved with the model; None = the tokenizer of this module,
                or else of the data module on which this module was trained.
            lengths: maximum query length and passage length in tokens, [CLS] and [SEP] included; None = the lengths of the
                data module or, without a data module, the encoder's maximum, 512 at most.
            card: content of the model card; None = this module's class and settings, and the values logged last.

        Raises:
            UserError: no tokenizer is known, a length exceeds the encoder's positions, the folder is an artifact of a run, or
                it holds the query encoder of another retriever.
        """
        check_values(EncoderModule.save_pretrained, locals())
        folder, tokenizer = no_artifact(folder), tokenizer or self.saved_with
        if tokenizer is None:
            raise UserError("save_pretrained: give `tokenizer`, the folder or hub name that the texts are read with")
        lengths, towers = lengths or self.lengths, self.towers()
        towers.query.check_length(lengths[0], "save_pretrained: query_length")
        towers.passage.check_length(lengths[1], "save_pretrained: passage_length")
        if towers.shared and (other := folder / QUERY_ENCODER).exists():
            raise UserError(f"save_pretrained: {other} is of two towers, and this model has one; give another folder")
        self._save(folder, tokenizer, lengths)
        card = card or self._card()
        write_text(folder / CARD, card.text(card.name or folder.resolve().name, self.described(), lengths, folder))

    def _card(self) -> Card:
        logged = self._trainer.logged_metrics if self._trainer else {}
        settings = {name: value for name, value in self.hparams.items() if isinstance(value, int | float | str)}
        return Card(
            f"Trained by `{type(self).__name__}`",
            **base_of(self.hparams.get("model")),
            recipe={name: value for name, value in settings.items() if name not in ("model", "tokenizer")},
            training={name: float(value) for name, value in sorted(logged.items())},
        )

    @property
    def saved_with(self) -> PathOrName | None:
        """The tokenizer that is saved with the model: this module's, or else the data module's; None = neither has one."""
        return self.tokenizer or getattr(self._data, "tokenizer_folder", None)

    @property
    def lengths(self) -> tuple[int, int]:
        """Maximum query length and passage length in tokens: the data module's, or else the encoder's (at most 512)."""
        longest = min(512, self.towers().query.longest, self.towers().passage.longest)
        return getattr(self._data, "lengths", (longest, longest))

    def vectors(self, chunk: Chunk) -> Tensor:
        """Return the vectors (b, d) of a chunk. A bi-encoder uses the tower that the chunk names."""
        return self.model.vectors(chunk)  # type: ignore[operator]

    def _save(self, folder: Path, tokenizer: PathOrName, lengths: tuple[int, int]) -> None:
        raise NotImplementedError


class TowersModule(EncoderModule):
    """Base class of the modules that train a bi-encoder without further layers.

    Args:
        model: folder or hub name of a checkpoint of the BERT family, or a ``BiEncoder``.
        tokenizer: folder or hub name of the tokenizer; None = the checkpoint's tokenizer.
        towers: shared = one tower encodes queries and passages; separate = queries and passages have a tower each. Ignored
            if ``model`` is a ``BiEncoder``.
        dropout: dropout rate of hidden states and attention weights; None = the checkpoint's own rate.
        vectors: values of ``pooling``, ``normalise``, ``truncate_dim``, ``query_prefix`` or ``passage_prefix`` that replace
            the checkpoint's own values; see ``VectorSettings``. Ignored if ``model`` is a ``BiEncoder``.
        optimiser: arguments of ``TrainingModule``.
    """

    model: BiEncoder

    def __init__(
        self,
        model: PathOrName | BiEncoder,
        *,
        tokenizer: PathOrName | None = None,
        towers: Towers = "shared",
        dropout: Share | None = None,
        vectors: VectorOptions | None = None,
        **optimiser: Unpack[Optimiser],
    ) -> None:
        check_values(type(self), locals())
        built: Any = model
        if not hasattr(built, "settings"):  # a path or a name
            built = checkpoint_folder(built, key=f"{type(self).__name__}: model")
            built = load_biencoder(built, towers == "separate", dropout, vectors).train()
        super().__init__(built, tokenizer_of(model, tokenizer), **optimiser)
        self._remember(locals())

    def on_fit_start(self) -> None:
        """Check the data as ``EncoderModule`` does, and also the data module's prefixes and student.

        The student is the retriever whose passage vectors the batches hold. Raise ``UserError`` if data module and encoder
        have different prefixes, or if passage tower and student would compute different vectors.
        """
        super().on_fit_start()
        data, settings = self._data, self.model.settings
        for name in ("query_prefix", "passage_prefix"):
            there, own = getattr(data, name, None), getattr(settings, name)
            if there is not None and there != own:
                raise UserError(f"{type(data).__name__}: {name} is {there!r}, the encoder's is {own!r}; set both alike")
        self._check_student(getattr(data, "student", None))

    def freeze_passages(self) -> None:
        """Freeze the passage tower. Raises ``UserError`` if queries and passages share one tower."""
        if self.model.shared:
            raise UserError(f"{type(self).__name__}: queries need a tower of their own; give towers='separate'")
        self.model.passage.requires_grad_(False)

    def _check_student(self, student: Any) -> None:
        """Raise ``UserError`` if the passage tower and ``student``, a ``Retriever`` or None, would compute different vectors.

        The passage tower must encode passages as the student does. It must also be frozen, because training would move its
        vectors away from the student's vectors.
        """
        if student is None:
            return
        name, own, theirs = type(self).__name__, self.model.passage, student.model.passage
        if any(weight.requires_grad for weight in own.parameters()):
            raise UserError(
                f"{name}: the passages have the vectors of the data module's student; give train_passages=False"
            )
        if own.settings != theirs.settings or not same_weights(own, theirs):
            raise UserError(f"{name}: the data module's student encodes passages otherwise; begin with its checkpoint")

    def towers(self) -> BiEncoder:
        """Return the model itself."""
        return self.model

    def _save(self, folder: Path, tokenizer: PathOrName, lengths: tuple[int, int]) -> None:
        save_retriever(SavedRetriever(self.model, *lengths), folder, tokenizer)


def tokenizer_of(model: PathOrName | nn.Module, tokenizer: PathOrName | None) -> PathOrName | None:
    return tokenizer if tokenizer is not None or isinstance(model, nn.Module) else model
