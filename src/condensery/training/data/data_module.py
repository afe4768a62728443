"""Base classes of the LightningDataModules for pre-training and fine-tuning.

A data module computes each batch from the index of the step alone and keeps no state. So a resumed run gets the same batches
as an uninterrupted run, with any number of processes and of workers.
"""

import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from condensery.distributed import processes, rank
from condensery.errors import UserError
from condensery.system.cache import cached
from condensery.system.children import Parent
from condensery.system.signals import deaf_to_ctrl_c
from condensery.system.spawning import spawning
from condensery.text.collection import Collection
from condensery.text.to_collection import Given, collection_of
from condensery.tokens.artifacts import Tokens, text_readers, tokenise_collection
from condensery.tokens.prefixes import Prefixes
from condensery.tokens.text_reader import Readers
from condensery.tokens.tokenizer import load_tokenizer, save_tokenizer
from condensery.tokens.vocabulary import Vocabulary
from condensery.training.checkpoint_fingerprint import Fingerprint, described, settings_of
from condensery.training.data.steps import Batch, Batches, Share, StepDataset, StepSampler, begin_worker
from condensery.training.resumption import check_same
from condensery.training.validation import PairSample, ValidationSample, sample_of

Value = TypeVar("Value")


class StepDataModule(pl.LightningDataModule):
    """Gives the trainer the batch of each step, starting from the trainer's current step.

    Args:
        batches: the object that makes the batches; None if a subclass sets it in ``setup``.
        workers: number of processes that make batches; 0 = the training process makes them. See
            ``condensery.system.spawning``.

    Attributes:
        epoch: number of batches that Lightning counts as an epoch; None = the batches of one pass over the data.
        waited: seconds for which training has waited for batches.
    """

    def __init__(self, batches: Batches | None = None, workers: int = 0) -> None:
        super().__init__()
        self._batches, self.workers = batches, workers
        self.epoch: int | None = None
        self.waited = 0.0
        self._fingerprint: Fingerprint | None = None

    @property
    def batches(self) -> Batches:
        """The object that makes the batches. Raises ``UserError`` before ``setup``."""
        return self._there(self._batches)

    def _there(self, value: Value | None) -> Value:
        if value is None:
            raise UserError(f"{type(self).__name__}: call prepare_data() and setup(), or pass the data to a Trainer")
        return value

    def setup(self, stage: str | None = None) -> None:
        """Set ``val_dataloader`` to None if there is no validation sample, and replace Lightning's conversion of batches.

        Lightning then treats ``val_dataloader`` as not defined. With an empty loader, Lightning would print a warning and
        show the progress bar of an empty validation. ``_converted`` gives the reason for the replaced conversion.
        """
        if self.trainer is not None:
            plugin = self.trainer.precision_plugin
            plugin.convert_input = partial(_converted, plugin)  # type: ignore[method-assign]
        if (type(self).val_dataloader is StepDataModule.val_dataloader) and self.validation_sample() is None:
            self.val_dataloader = None  # type: ignore[method-assign, assignment]

    def batches_an_epoch(self) -> int:
        """Return the number of batches that Lightning counts as an epoch, which ``limit_train_batches`` may reduce."""
        each, limit = self._whole_epoch, self.trainer.limit_train_batches if self.trainer else 1.0
        return min(each, limit) if isinstance(limit, int) else int(each * limit)

    @property
    def _whole_epoch(self) -> int:
        return self.epoch or self.batches.steps_an_epoch()

    def _step(self) -> int:
        return self.trainer.global_step if self.trainer else 0

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return a loader of this process's share of the batches, in the order of the steps."""
        loader = _Loader(
            StepDataset(self.batches, Share(rank(), processes())),
            batch_size=None,
            sampler=StepSampler(self._step, self.batches_an_epoch(), self._whole_epoch),
            num_workers=self.workers,
            multiprocessing_context=spawning(f"workers={self.workers}") if self.workers else None,
            worker_init_fn=partial(begin_worker, Parent.here()),
            pin_memory=self.trainer is not None and self.trainer.strategy.root_device.type == "cuda",
            persistent_workers=False,
        )
        loader.data_module = self
        return loader

    def val_dataloader(self) -> Any:
        """Return a loader of the validation sample, or an empty list if there is no sample."""
        sample = self.validation_sample()
        return [] if sample is None else DataLoader([sample], batch_size=None)  # type: ignore[arg-type]

    def validation_sample(self) -> ValidationSample | PairSample | None:
        """Return the sample for validation; None = there is no validation."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return a description of the data. Checkpoints store it, so that a run with other data cannot resume from them.

        The description holds the settings, hashes of all texts, judgements and negatives, and the number of batches in one
        pass over the data.
        """
        if self._fingerprint is None:
            self._fingerprint = settings_of(self) | described(self.batches, "batches")
        return {**self._fingerprint, "steps_an_epoch": self.batches.steps_an_epoch()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raise ``UserError`` if the checkpoint was written with other data, or with other settings of the batches.

        Validation with a checkpoint may read other data than training.
        """
        if self.trainer is None or self.trainer.state.fn == "fit":
            check_same(state_dict, self.state_dict(), "data")

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Return ``batch`` on ``device``; Lightning calls this for every batch."""
        return batch.to(device)


def _converted(plugin: Any, batch: Any) -> Any:
    """Convert a batch to one of Lightning's true precisions ("64-true", "bf16-true"), unless the batch is of this package.

    Lightning casts a dataclass by assigning to its fields, which fails because this package's batches are frozen dataclasses.
    No cast is needed: most fields hold integer ids, and the other fields are cast where they are used.
    """
    return (
        batch if isinstance(batch, Batch | ValidationSample | PairSample) else type(plugin).convert_input(plugin, batch)
    )


class _Loader(DataLoader[Batch]):
    """A loader that measures how long training waits for batches. Its worker processes ignore Ctrl-C.

    The seconds of each wait are added to ``waited`` of the data module. With a GPU, a wait counts only if the GPU has no work
    left when the wait ends. The wait for the first batch is not counted, because the workers are still starting.
    """

    data_module: StepDataModule

    def __iter__(self) -> Any:
        with deaf_to_ctrl_c():
            batches = super().__iter__()
        return self._timed(batches)

    def _timed(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        yield from islice(batches, 1)
        done = torch.cuda.Event() if self.pin_memory else None
        while True:
            if done is not None:
                done.record()
            start = time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                return
            if done is None or done.query():
                self.data_module.waited += time.perf_counter() - start
            yield batch


class TokenDataModule(StepDataModule):
    """A data module that makes batches from a tokenised collection.

    Args:
        data: ``Tokens``; or texts that ``prepare_data`` reads and tokenises once (see ``condensery.system.cache``): a folder
            (in the BEIR layout, of documents, or of plain text), a list of texts, or a ``Collection``.
        tokenizer: folder or hub name of the tokenizer. If ``data`` is ``Tokens``: folder of the tokenizer that made the
            tokens; may be None if there are no prefixes.
        titles: True = passages are read as title [SEP] text.
        workers: see ``StepDataModule``; the same number of processes tokenises the texts.

    Raises:
        UserError: there is no tokenizer; or ``prepare_data`` cannot read the texts.

    Attributes:
        query_prefix, passage_prefix: strings put before queries and passages; they must equal the encoder's prefixes. None =
            no string is put before them, and the encoder may have any prefix.
        language: code of the language by whose rules sentences are split.
    """

    query_prefix: str | None = None
    passage_prefix: str | None = None
    language = "en"

    def __init__(self, data: Given | Tokens, tokenizer: str | Path | None, titles: bool, workers: int) -> None:
        super().__init__(workers=workers)
        if tokenizer is None and not isinstance(data, Tokens):
            raise UserError(f"{type(self).__name__}: give `tokenizer` as a folder or a hub name")
        # the data are read twice, in ``prepare_data`` and in ``setup``
        self.data = list(data) if isinstance(data, Iterator) else data
        self.tokenizer, self.titles = tokenizer, titles
        self.tokenizer_folder = Path(tokenizer) if tokenizer is not None and isinstance(data, Tokens) else None
        self._tokens = data if isinstance(data, Tokens) else None
        self._collection: Collection | None = None

    @property
    def tokens(self) -> Tokens:
        """The tokenised texts. Raises ``UserError`` before ``setup``."""
        return self._there(self._tokens)

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the tokens."""
        return self.tokens.vocabulary

    @property
    def lengths(self) -> tuple[int, int]:
        """Maximum query length and passage length in tokens, [CLS] and [SEP] included."""
        raise NotImplementedError

    def prepare_data(self) -> None:
        """Read and tokenise the texts if they are not cached. Lightning calls this in one process per machine."""
        self._open()

    def setup(self, stage: str | None = None) -> None:
        """Open the tokenised texts and create ``batches``. Lightning calls this in every process."""
        if self._batches is None:
            self._open()
            self._batches = self.make_batches()
        super().setup(stage)

    def make_batches(self) -> Batches:
        """Return the object that makes the batches. It is called once ``tokens`` is available."""
        raise NotImplementedError

    def validation_sample(self) -> ValidationSample | PairSample | None:
        """Return a sample with a few dev queries of the collection; None if the collection has no dev queries."""
        if self._collection is None:
            return None
        return sample_of(self._collection, self.readers)

    @property
    def prefixes(self) -> Prefixes:
        """The prefixes as token ids. Raises ``UserError`` if the tokenizer merges a prefix with the text after it."""
        return Prefixes.of(self.tokenizer_folder, self.query_prefix or "", self.passage_prefix or "", self.lengths)

    @property
    def readers(self) -> Readers:
        """The readers of passages and queries."""
        return text_readers(self.tokens, self.lengths, self.prefixes)

    def _open(self) -> None:
        if isinstance(self.data, Tokens):
            return
        self._collection, self.tokenizer_folder = collection_of(self.data), _saved(str(self.tokenizer))
        self._tokens = self._tokens_of(self._collection)

    def _tokens_of(self, collection: Collection) -> Tokens:
        """Return a collection's tokenised texts. They are cached on disk (see ``condensery.system.cache``)."""
        tokenizer = self.tokenizer_folder
        assert tokenizer is not None
        content = f"{collection.content_hash} {tokenizer.name} {self.titles} {self.language}".removesuffix(" en")
        how: Any = {"titles": self.titles, "language": self.language, "workers": max(1, self.workers)}
        make = partial(tokenise_collection, collection, tokenizer, **how)
        return Tokens(cached("tokens", content, lambda folder: make(folder=folder)))


def _saved(name: str) -> Path:
    """Return the cached folder of a tokenizer. The folder's name depends on the tokenizer's content, not on its path."""
    tokenizer = load_tokenizer(name)
    content = f"{tokenizer.backend_tokenizer.to_str()} {sorted(tokenizer.special_tokens_map.items())}"
    return cached("tokenizer", content, partial(save_tokenizer, tokenizer))
