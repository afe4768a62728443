"""The config of a backbone: its architecture and the source of its weights. This file imports no torch."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from condensery.models.checkpoints.metadata import QUERY_ENCODER, SavedTower, saved_towers, vector_settings
from condensery.models.checkpoints.sentence_transformers import layer_weights
from condensery.models.vectors import VectorConfig
from condensery.system.files import content_hash, expanded

WEIGHTS_AND_WORDS = {".json", ".safetensors", ".bin", ".txt", ".model"}  # suffixes of files that define a checkpoint


class BackboneConfig(VectorConfig):
    """An encoder on the hub, in a local folder, or randomly initialised with the given sizes."""

    name: str | None  # hub name or local path of a checkpoint; None = randomly initialised
    revision: str | None  # commit, tag or branch of the hub repository
    tokenizer: str | None  # hub name or path; None = a WordPiece trained on the collection
    vocab_size: int = Field(ge=100)  # number of tokens of the trained WordPiece
    family: Literal["bert", "roberta", "distilbert", "modernbert"]  # the architecture if ``name`` is None
    layers: int = Field(ge=1)
    hidden: int = Field(ge=8)
    heads: int = Field(ge=1)
    intermediate: int = Field(ge=8)
    max_positions: int = Field(ge=8)
    dropout: float | None = Field(ge=0.0, lt=1.0)  # None = the named checkpoint's own rate
    initializer_range: float = Field(gt=0.0)  # standard deviation of the initial weights

    @model_validator(mode="after")
    def _heads_divide(self) -> "BackboneConfig":
        if self.hidden % self.heads:
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of heads ({self.heads})")
        return self

    def fingerprint(self) -> str:
        """Return the string that identifies this config in artifact ids.

        A local checkpoint is identified by its content, not by its path.
        """
        fields = self.model_dump(exclude=self.not_given())
        for key in ("name", "tokenizer"):
            folder = expanded(fields[key]) if fields[key] else None
            if folder is not None and folder.is_dir():
                fields[key] = _files(folder)
                if key == "name":  # a checkpoint may have files in subfolders
                    fields |= _below(folder)
        if fields["name"]:  # the checkpoint then determines these values
            for key in ("family", "layers", "hidden", "heads", "intermediate", "max_positions", "initializer_range"):
                del fields[key]
        return repr(sorted(fields.items()))


def _below(folder: Path) -> dict[str, Any]:
    """Return the fingerprint entries for a checkpoint's subfolders; no entries if these do not change the vectors."""
    own, (passages, queries) = vector_settings(folder).own(), saved_towers(folder)
    entries = _vectors(own, passages)
    if passages.folder != folder:
        entries["passage_encoder"] = _files(passages.folder)
    if queries:
        entries[QUERY_ENCODER] = [*_files(queries.folder), *_vectors(own, queries).items()]
    return entries


def _vectors(own: dict[str, Any], tower: SavedTower) -> dict[str, Any]:
    """Return the fingerprint entries for a tower's vector settings (``own``) and layers after pooling.

    The result is empty if the settings are the defaults and there are no such layers.
    """
    entries: dict[str, Any] = {"vectors": sorted(own.items())} if own else {}
    if tower.behind:
        layers = ((repr(one.shape), content_hash(layer_weights(one))) if one else None for one in tower.behind)
        entries["behind"] = list(layers)
    return entries


def _files(folder: Path) -> list[tuple[str, str]]:
    files = sorted(path for path in folder.iterdir() if path.suffix in WEIGHTS_AND_WORDS)
    return [(path.name, content_hash(path)) for path in files if path.name != "manifest.json"]
