"""Finds a checkpoint's folder. A checkpoint on the Hugging Face hub is first downloaded into the hub's local cache."""

from collections.abc import Sequence
from pathlib import Path

from condensery.errors import UserError
from condensery.models.checkpoints.weights import readable
from condensery.system.files import expanded, is_hub_name

# config, tokenizer, metadata of sentence-transformers and of this project, card, and the weights of layers after pooling
_SMALL = (
    "*.json",
    "*.txt",
    "*.model",
    "artifact.metadata",
    "README.md",
    "*_Dense/pytorch_model.bin",
    "*_LayerNorm/pytorch_model.bin",
)
_OTHER = ("onnx/*", "openvino/*", "*/onnx/*", "coreml/*")  # the same weights in formats for other programs
_SAFE, _PICKLED = "*.safetensors", "pytorch_model*.bin"


def checkpoint_folder(
    source: str | Path, revision: str | None = None, more: Sequence[str] = (), key: str = "backbone.name"
) -> Path:
    """Return the folder of a checkpoint. For a hub name, the files are downloaded into the hub's cache first.

    Weights are downloaded as safetensors if available, otherwise as tensors pickled by torch. Files in the cache are used
    without network access.

    Args:
        source: folder or hub name.
        revision: commit, tag or branch on the hub.
        more: names of further files to download if they exist.
        key: the config key, or the argument of a class, that gives ``source``; error messages begin with it.

    Raises:
        UserError: there is no such folder and no such name on the hub, or the hub cannot be reached.
    """
    folder = expanded(source)
    if folder.is_dir():
        return folder
    with readable(source, key):
        if isinstance(source, Path) or not is_hub_name(str(source)):
            raise FileNotFoundError("no such folder")
        return _fetched(str(source), revision, more)


def _fetched(name: str, revision: str | None, more: Sequence[str]) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    def fetch(*patterns: str) -> Path:
        snapshot = huggingface_hub.snapshot_download(
            name, revision=revision, allow_patterns=list(patterns), ignore_patterns=list(_OTHER)
        )
        return Path(snapshot)

    try:
        folder = fetch(*_SMALL, _SAFE, *more)
        if not any(folder.glob("model*.safetensors")):
            folder = fetch(*_SMALL, _SAFE, *more, _PICKLED)
    except GatedRepoError:
        raise UserError(f"{name}: its owner must grant access; ask at https://hf.co/{name}, and set HF_TOKEN") from None
    except RepositoryNotFoundError:
        raise FileNotFoundError("no such folder, and the hub has no such model, or it is private") from None
    except RevisionNotFoundError:
        raise UserError(f"backbone.revision: {name} has no revision {revision!r} on the hub") from None
    return folder
