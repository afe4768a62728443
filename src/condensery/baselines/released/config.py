"""Configs of the stages that load a SPLADE or a ColBERT that was trained elsewhere, and the reading of such a model's files.

A model whose vectors this project would compute differently is refused.
"""

import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from condensery.errors import UserError, shown
from condensery.models.checkpoints import metadata
from condensery.models.checkpoints import sentence_transformers as library
from condensery.models.vectors import DenseShape
from condensery.stages.registry import stage
from condensery.stages.released.config import Lengths, ReleasedConfig

SPLADE = (
    "a SPLADE is a masked language model, or Transformer (fill-mask) or MLMTransformer, then SpladePooling with max"
)
COLBERT = (
    "a ColBERT is of pylate or of its authors' code (HF_ColBERT), or has Transformer, Dense without bias and activation, "
    "Normalize and MultiVectorMask"
)
OTHERS = "retriever, sparse_encoder, token_encoder and cross_encoder are the stages for models trained elsewhere"
# what the files of a checkpoint say: the folder of the backbone and its tokenizer, the lengths, and further settings
Files = tuple[Path, Lengths, dict[str, Any]]


def read_splade(folder: Path) -> Files:
    """Read the files of a SPLADE. The further setting is its ``activation``, as in ``SparseEncoder``.

    Raises ``UserError`` if a file is missing or describes another kind of model.
    """
    if not (folder / library.MODULES).exists():
        metadata.check_encoder(folder)
        return folder, (None, None), {"activation": "relu"}
    paths = _modules(folder, SPLADE, ["Transformer", "SpladePooling"], ["MLMTransformer", "SpladePooling"])
    (kind, encoder), (_, pooling) = paths.items()
    _read(library.encoder_file(encoder), SPLADE, transformer_task=["fill-mask"] + [None] * (kind != "Transformer"))
    _read(folder / library.ABOUT, SPLADE, similarity_fn_name=[None, "dot"], max_active_dims=[None], prompts=[{}])
    activations, file = [None, "relu", "log1p_relu"], library.settings_file(pooling)
    about = _read(file, SPLADE, pooling_strategy=[None, "max"], activation_function=activations)
    longest = library.longest_input(encoder)
    own = metadata.longest_inputs(folder) if (folder / metadata.ABOUT).exists() else None
    return encoder, own or (longest, longest), {"activation": about.get("activation_function") or "relu"}


def read_colbert(folder: Path) -> Files:
    """Read the files of a ColBERT.

    The further settings are ``dense``, the layer that maps states to vectors; ``attended`` as in ``Interaction``; ``words``,
    which have no vector in a passage; ``markers``, the texts before a passage and a query; and ``inserted``, whether these
    texts are tokens even if the tokenizer splits them.

    Raises ``UserError`` if a file is missing or describes another kind of model.
    """
    architectures = metadata.value_in(folder / "config.json", "architectures")
    if not (folder / library.MODULES).exists() and architectures == [metadata.COLBERT]:
        return _read_hf_colbert(folder)
    start, ends = ["Transformer", "Dense"], ["Normalize", "MultiVectorMask"]
    paths = _modules(folder, COLBERT, start, start + ends, start + ends[::-1])
    encoder, file = paths["Transformer"], library.settings_file(paths["Dense"])
    shape, pylate = library.dense_shape(file, "token_embeddings"), len(paths) == 2
    _check(file, vars(shape), COLBERT, bias=[False], activation=["Identity"])
    if pylate:
        about = _read(folder / library.ABOUT, COLBERT, model_type=[None, "ColBERT"], prompts=[{}])
        filling = {"attend": about.get("attend_to_expansion_tokens"), "length": about.get("query_length") or 32}
        filling = {} if about.get("do_query_expansion") is False else filling
        prompts = {name: about.get(f"{name}_prefix") for name in ("document", "query")}
        words = string.punctuation if about.get("skiplist_words") is None else about["skiplist_words"]
    else:
        prompts = _read(folder / library.ABOUT, COLBERT, similarity_fn_name=[None, "maxsim"])["prompts"]
        file = library.settings_file(paths["MultiVectorMask"])
        mask = _read(file, COLBERT, skiplist_tasks=[None, ["document"]], keep_only_token_ids=[None, []])
        about, words = _read(library.encoder_file(encoder), COLBERT), mask.get("skiplist_words") or []
        filling = about.get("query_expansion") or {}
        _check(library.encoder_file(encoder), filling, COLBERT, strategy=[None, "fixed"], token=[None])
    longest = library.longest_input(encoder)
    lengths = filling.get("length") or about.get("query_length") or longest, about.get("document_length") or longest
    settings = {"attended": bool(filling.get("attend")) if filling else None, "words": words, "inserted": pylate}
    markers = [prompts.get(name) or "" for name in ("document", "query")]
    return encoder, lengths, {**settings, "markers": markers, "dense": library.SavedLayer(paths["Dense"], shape)}


def _read_hf_colbert(folder: Path) -> Files:
    """Read the files of a checkpoint of ColBERT's own code; the layer that maps states to vectors is ``linear.weight``."""
    metadata.check_encoder(folder)
    about = _read(folder / "artifact.metadata", COLBERT, similarity=[None, "cosine"])
    hidden = metadata.value_in(folder / "config.json", "hidden_size")
    shape = DenseShape(hidden, about.get("dim") or 128, bias=False, activation="Identity")
    words = string.punctuation if about.get("mask_punctuation", True) else ""
    settings = {"attended": bool(about.get("attend_to_mask_tokens")), "words": words, "inserted": True}
    markers = [about.get("doc_token_id") or "[unused1]", about.get("query_token_id") or "[unused0]"]
    layer = library.SavedLayer(folder, shape, with_encoder=True)
    lengths = about.get("query_maxlen") or 32, about.get("doc_maxlen")
    return folder, lengths, {**settings, "markers": markers, "dense": layer}


def _modules(folder: Path, supported: str, *allowed: Sequence[str]) -> dict[str, Path]:
    """Return the folder of each module by its class name. Check their order, and that the first has an encoder."""
    if not (folder / library.MODULES).exists():
        raise UserError(f"{folder / library.MODULES}: no such file; {supported} ({OTHERS})")
    found = [(kind.removeprefix("pylate.models.Dense."), path) for kind, path in library.modules_of(folder, "document")]
    kinds = ["Router"] if library.routed(folder) else [kind for kind, _ in found]
    _check(folder / library.MODULES, {"type": kinds}, supported, type=allowed)
    library.check_transformer(found[0][1])
    metadata.check_encoder(found[0][1])
    return dict(found)


def _read(file: Path, supported: str, **allowed: Sequence[Any]) -> dict[str, Any]:
    """Read a JSON object without empty prompts; it is empty if there is no such file. Raises ``UserError`` as ``_check``."""
    about: dict[str, Any] = library.read_expected(file, dict) if file.exists() else {}
    library.check_default_prompt(about, file)
    about["prompts"] = {name: text for name, text in dict(about.get("prompts") or {}).items() if text}
    _check(file, about, supported, **allowed)
    return about


def _check(file: Path, about: Mapping[str, Any], supported: str, **allowed: Sequence[Any]) -> None:
    """Raise ``UserError`` if a key has a value that is not among those allowed."""
    for key, values in allowed.items():
        if about.get(key) not in values:
            raise UserError(f"{file}: {key} is {shown(str(about.get(key)))}; {supported} ({OTHERS})")


@stage("sparse_encoder", "loading:sparse_encoder", version=1, makes="sparse_encoder")
class SparseEncoderConfig(ReleasedConfig):
    """Load a SPLADE that was trained elsewhere, unchanged.

    The folder is a ``SparseEncoder`` of sentence-transformers, or a masked language model of transformers.
    """

    called = ("sparse_encoder", "a trained SPLADE")
    check, recorded = read_splade, lambda folder: read_splade(folder)[1]


@stage("token_encoder", "loading:token_encoder", version=1, makes="token_encoder")
class TokenEncoderConfig(ReleasedConfig):
    """Load a ColBERT that was trained elsewhere, unchanged.

    The folder is a ``MultiVectorEncoder`` of sentence-transformers, or a ColBERT of pylate or of its authors' code.
    """

    called = ("token_encoder", "a trained ColBERT")
    check, recorded = read_colbert, lambda folder: read_colbert(folder)[1]
