"""Checks that find faults of a config before any work is done.

Like ``StageConfig.input_error``, a check of the inputs returns the faulty field and the error message. It returns None
if there is no fault.
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from condensery.errors import UserError
from condensery.evaluation.names import HIT, split_metric
from condensery.models.checkpoints.config import BackboneConfig
from condensery.models.checkpoints.metadata import check_no_adapter, made_for_search
from condensery.models.checkpoints.whole import check_whole
from condensery.stages.base import StageConfig
from condensery.system.files import expanded
from condensery.system.inputs import FOLDER, fault
from condensery.text.hashes import content_hashes
from condensery.text.sizes import HELD_OUT_SHARE, READ, SAMPLE, counted
from condensery.text.source import Splits

Split = Literal["train", "dev", "test", "dl19", "dl20"]


def plugin_code(defined: Iterable[object]) -> list[str]:
    """Return the content hashes of the plugin files that define these functions and classes, without this project's files."""
    modules = {str(getattr(one, "__module__", "")) for one in defined}
    files = [getattr(sys.modules.get(name), "__file__", None) for name in modules if not name.startswith("condensery.")]
    return sorted(content_hashes([Path(file) for file in files if file]))


def missing_split(split: Split, corpus: Sequence[StageConfig]) -> tuple[str, str] | None:
    """Report a split that the collection of the stage ``corpus`` lacks.

    Args:
        split: the split that the stage reads.
        corpus: config of the stage with the collection.
    """
    data = getattr(corpus[0], "data", None) if corpus else None
    judged = data.judged_splits() if data else None
    if data is None or judged is None or split in judged:
        return None
    if split == "dev" and "train" in judged and data.dev_queries and split not in data.answered_splits():
        return None
    if split in data.answered_splits():
        return "split", f"{split}, but this split of the collection {data.name} has only answers; name a judged split"
    root = getattr(data, "root", "")
    file = f" to a file of judgements in {root}" if root else ""
    if root and (why := fault(expanded(root), FOLDER)):
        file += f" (there is {why})"
    if isinstance(getattr(data, "splits", None), Splits):
        file += f", or name the file qrels/{split}.tsv"
    return "split", f"{split}, but the collection {data.name} has no such split; set data.splits.{split}{file}"


NO_DEV = (
    "dev, but there are no dev queries by which weights could be chosen; judge some queries in qrels/dev.tsv"
    " (data.splits.dev), or at least ten in qrels/train.tsv, of which one is then held out"
)


def no_dev_queries(corpus: Sequence[StageConfig]) -> bool:
    """Return whether there will be no dev queries: the files have no dev split, and none can be taken from ``train``."""
    data = getattr(corpus[0], "data", None) if corpus else None
    if data is None or "dev" in (data.judged_splits() or ("dev",)):
        return False
    judged = counted(file for file in data.input_files() if file.role == "qrels of train")
    few = judged.queries.get("train", HELD_OUT_SHARE) < HELD_OUT_SHARE
    whole = (judged.reading or 0.0) < READ * SAMPLE  # of a larger file, only the beginning was counted
    return not data.dev_queries or (few and whole)


def unmeasurable(metrics: Sequence[str], split: Split, corpus: Sequence[StageConfig]) -> tuple[str, str] | None:
    """Report metrics that cannot be measured on the split: Hit@k needs answers, the other metrics need judgements."""
    data = getattr(corpus[0], "data", None) if corpus else None
    by_answers = [name for name in metrics if split_metric(name)[0] == HIT]
    if data and by_answers and split not in data.answered_splits():
        return "metrics", f"{by_answers[0]} needs answers; the split {split} of the collection {data.name} has none"
    if len(by_answers) == len(metrics):
        return None
    missing = missing_split(split, corpus)
    if missing and data and split in data.answered_splits():
        others = ", ".join(name for name in metrics if name not in by_answers)
        lacking = f"the split {split} of the collection {data.name} has only answers"
        return "metrics", f"{others} needs judgements; {lacking}"
    return missing


def not_encoded(split: str, field: str, indexes: Sequence[StageConfig]) -> tuple[str, str] | None:
    """Report an index, named in ``field``, whose ``query_splits`` do not include the split that is searched."""
    for config in indexes:
        splits = getattr(config, "query_splits", None)
        if splits is not None and split not in splits:
            there = f"only the queries of {', '.join(splits)} are encoded, not those of {split}"
            return field, f"{there}; set query_splits of its stage to null"
    return None


class OneSplitConfig(StageConfig):
    """Shared key of the stages whose index ranks only for the queries of one split (rerank, read_run)."""

    split: Split


def of_another_split(
    names: Sequence[str], indexes: Sequence[StageConfig], split: str, advice: str
) -> tuple[str, str] | None:
    """Report an index, named in ``retrievers``, that ranks only for the queries of another split."""
    for name, config in zip(names, indexes, strict=True):
        if isinstance(config, OneSplitConfig) and config.split != split:
            return "retrievers", f"{name} ranks only for the queries of {config.split}{advice}"
    return None


def check_folder(name: str | None, key: str) -> None:
    """Check that a folder exists, if ``name`` can only be a folder and not a hub name.

    Args:
        name: folder, hub name or None.
        key: config key of ``name``, for the error message.

    Raises:
        UserError: there is no such folder.
    """
    if name and name.startswith(("/", ".", "~")) and (why := fault(expanded(name), FOLDER)):
        raise UserError(f"{key}: {name}: {why}")


def check_checkpoint(name: str | None, key: str) -> None:
    """Check that a folder exists and contains a checkpoint: ``config.json`` and weights.

    Args:
        name: folder, hub name or None; hub names are not checked.
        key: config key of ``name``, for the error message.

    Raises:
        UserError: there is no such folder, or it contains no checkpoint, or an adapter.
    """
    check_folder(name, key)
    if not name or not expanded(name).is_dir():
        return
    check_no_adapter(expanded(name))
    if not (expanded(name) / "config.json").exists():
        raise UserError(f"{key}: {name}: not a checkpoint of transformers (no config.json); name another folder")
    if not any(path.suffix in (".safetensors", ".bin") for path in expanded(name).iterdir()):
        raise UserError(f"{key}: {name}: no weights (model.safetensors or pytorch_model.bin); name another folder")
    check_whole(path for path in expanded(name).iterdir() if path.is_file())


def model_folder(name: str | None) -> Path | None:
    """Return the folder of a model; None if ``name`` is a hub name or None."""
    folder = expanded(name) if name else None
    return folder if folder is not None and folder.is_dir() else None


def content_of_model(name: str | None, key: str) -> list[str]:
    """Return the content hashes of a model in a folder, so that an id does not depend on the folder's path.

    Args:
        name: folder, hub name or None; the list is empty unless ``name`` is a folder.
        key: config key of ``name``, for the error message.

    Raises:
        UserError: the folder does not exist, or contains no checkpoint.
    """
    check_checkpoint(name, key)
    folder = model_folder(name)
    files = folder.iterdir() if folder else ()
    return content_hashes(sorted(path for path in files if path.is_file() and path.name != "manifest.json"))


def check_no_retriever(backbone: BackboneConfig, folder: Path | None = None) -> None:
    """Refuse to pre-train a released retriever, unless ``backbone.pooling`` is cls.

    Pre-training trains the state of [CLS]. Its learning rate and number of steps suit a model that is not yet a retriever,
    and a released retriever would lose what it has learned.

    Args:
        backbone: config of the initial model.
        folder: folder of the checkpoint; None = ``backbone.name``. A checkpoint that is not downloaded yet is not checked.

    Raises:
        UserError: the checkpoint is a trained retriever.
    """
    if backbone.name is None or backbone.pooling == "cls":
        return
    folder = folder or expanded(backbone.name)
    if made := made_for_search(folder) if folder.is_dir() else None:
        raise UserError(
            f"backbone.name: {backbone.name} is a trained retriever ({made}), and pre-training its state of [CLS] would"
            f" make it worse; to adapt it, run experiment=adapt backbone.name={backbone.name}, which keeps the released"
            " weights if training does not help; to pre-train it anyway, set backbone.pooling=cls"
        )


def check_length(key: str, tokens: int, positions: int) -> None:
    """Check that an input fits the backbone.

    Args:
        key: config key that sets the length.
        tokens: input length in tokens.
        positions: maximum input length of the backbone, in tokens.

    Raises:
        ValueError: ``tokens`` is larger than ``positions``.
    """
    if tokens > positions:
        raise ValueError(f"{key}={tokens} is longer than the backbone's {positions} positions; lower it")
