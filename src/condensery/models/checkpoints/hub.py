"""Finds a checkpoint's folder. A checkpoint on the Hugging Face hub is first downloaded into the hub's local cache.

This module imports nothing heavy, because a run calls ``check_on_hub`` before its first stage.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from condensery.errors import UserError, of_the_disk
from condensery.system.files import expanded, is_hub_name

# config, tokenizer, metadata of sentence-transformers and of this project, card, and the weights of layers after pooling
_SMALL = ("*.json", "*.txt", "*.model", "README.md", "*_Dense/pytorch_model.bin")
_OTHER = ("onnx/*", "openvino/*", "*/onnx/*", "coreml/*")  # the same weights in formats for other programs
_SAFE, _PICKLED = "*.safetensors", "pytorch_model*.bin"


def checkpoint_folder(source: str | Path, revision: str | None = None, more: Sequence[str] = ()) -> Path:
    """Return the folder of a checkpoint. For a hub name, the files are downloaded into the hub's cache first.

    Weights are downloaded as safetensors if available, otherwise as tensors pickled by torch. Files in the cache are used
    without network access.

    Args:
        source: folder or hub name.
        revision: commit, tag or branch on the hub.
        more: names of further files to download if they exist.

    Raises:
        UserError: there is no such folder and no such name on the hub, or the hub cannot be reached.
    """
    folder = expanded(source)
    if folder.is_dir():
        return folder
    name = str(source)
    if isinstance(source, Path) or not is_hub_name(name):
        raise UserError(f"{source}: no checkpoint can be loaded (no such folder)")

    def fetch(*patterns: str) -> Path:
        snapshot = huggingface_hub.snapshot_download(
            name, revision=revision, allow_patterns=list(patterns), ignore_patterns=list(_OTHER)
        )
        return Path(snapshot)

    with _errors_of_hub(name, revision):
        import huggingface_hub

        huggingface_hub.utils.disable_progress_bars()
        folder = fetch(*_SMALL, _SAFE, *more)
        return folder if any(folder.glob("model*.safetensors")) else fetch(*_SMALL, _SAFE, *more, _PICKLED)


def check_on_hub(name: str, revision: str | None = None) -> None:
    """Raise ``UserError`` if a checkpoint is neither in the hub's cache nor on the hub, or if the hub cannot be reached."""
    with _errors_of_hub(name, revision):
        import huggingface_hub

        huggingface_hub.hf_hub_download(name, "config.json", revision=revision)


@contextmanager
def _errors_of_hub(name: str, revision: str | None) -> Iterator[None]:
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError:
        raise UserError(f"{name}: the hub asks for a login and its owner's consent; see https://hf.co/{name}") from None
    except errors.RepositoryNotFoundError:
        raise UserError(f"{name}: no such folder, and the hub has no such model, or it is private") from None
    except errors.RevisionNotFoundError:
        raise UserError(f"{name}: has no revision {revision!r} on the hub") from None
    except errors.RemoteEntryNotFoundError:  # the hub has the name without this file
        return
    except Exception as error:  # the library raises a dozen types without a network
        why = "no such folder, and the hub cannot be reached"
        raise of_the_disk(error) or UserError(
            f"{name}: {why}; connect this machine, or give a checkpoint's folder"
        ) from None
