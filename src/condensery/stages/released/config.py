"""Configs of the stages that load a retriever or a cross-encoder that was trained elsewhere.

Stages for retrievers that make other than one vector of each text are in ``baselines/released/``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar

from condensery.errors import UserError
from condensery.models.checkpoints.metadata import check_files, described, longest_inputs
from condensery.models.checkpoints.whole import check_whole
from condensery.models.vectors import Pooling, VectorConfig
from condensery.ranges import Count
from condensery.stages.base import FromRecipe, Input, Later, PairLength, StageConfig, TextLength
from condensery.stages.registry import stage
from condensery.stages.workload import Read, Work, checkpoint_bytes, known, released_size
from condensery.system.files import expanded, is_hub_name
from condensery.text.hashes import content_hashes

Lengths = tuple[int | None, int | None]  # maximum tokens of a query and a passage; None = they are not recorded


class ReleasedConfig(StageConfig):
    """Keys of a stage that loads a retriever of any kind.

    Attributes:
        called: kind of the stage and description of the model, for messages.
        check: function that raises ``UserError`` if a folder does not hold such a model.
        recorded: function that returns the lengths that a folder records.
    """

    called: ClassVar[tuple[str, str]]
    check: ClassVar[Callable[[Path], object]]
    recorded: ClassVar[Callable[[Path], Lengths | None]]

    folder: str | Path  # kept as the user wrote it, because ./name is a folder, but name may be on the hub
    """folder or hub name of a checkpoint of this project or of others"""
    revision: Annotated[str | None, Later()] = None
    """commit, tag or branch of the model on the Hugging Face hub"""
    query_length: TextLength | None = None
    """maximum tokens of a query, including [CLS] and [SEP]; null: as in the retriever's training"""
    passage_length: TextLength | None = None
    """maximum tokens of a passage; null: as in the retriever's training"""

    def work(self, read: Read) -> Work:
        """Estimate the work of reading and writing the weights."""
        folder = expanded(self.folder)
        _, longest = (type(self).recorded(folder) if folder.is_dir() else None) or (None, None)
        encoder, passage_length = released_size(self.folder), self.passage_length or longest
        sizes = replace(known(read), encoder=encoder, passage_length=passage_length)
        return Work(sizes, seconds=None if sizes.encoder is None else 3.0, disk=checkpoint_bytes(sizes))

    def by_content(self) -> set[str]:
        """Also return ``folder``, because the id depends on the folder's content, not on its path."""
        return super().by_content() | {"folder"}

    def identity(self) -> list[str]:
        """Return the hashes of the weights and of the files that describe them, or a hub checkpoint's name.

        Raises:
            UserError: there is no such folder, or the checkpoint computes vectors in an unknown way.
        """
        found = content_of_checkpoint(self.folder, f"stage.{self.called[0]}.folder", self.called[1])
        if (folder := expanded(self.folder)).is_dir():
            type(self).check(folder)  # raises before anything is computed
        return found

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a length that neither the config nor the checkpoint gives."""
        folder = expanded(self.folder)
        if folder.is_dir():
            type(self).check(folder)  # a model of another family is reported first
        own = (type(self).recorded(folder) or (None, None)) if described(folder) else ("?", "?")
        keys = zip(("query_length", "passage_length"), own, strict=True)
        lacking = [key for key, length in keys if length is None and getattr(self, key) is None]
        message = f"{self.folder} does not record how many tokens it reads; set query_length and passage_length"
        return (lacking[0], message) if lacking else None


@stage("retriever", "retriever:retriever", version=1, makes="encoder")
class RetrieverConfig(VectorConfig, ReleasedConfig):
    """Load a retriever that was trained elsewhere, unchanged."""

    called = ("retriever", "a trained retriever")
    check, recorded = check_files, longest_inputs

    folder: Annotated[str | Path, FromRecipe("backbone.name")]
    """folder or hub name of a checkpoint of this project, of sentence-transformers, or of the BERT family"""
    revision: Annotated[str | None, FromRecipe("backbone.revision"), Later()] = None
    """commit, tag or branch of the model on the Hugging Face hub"""
    pooling: Annotated[Pooling | None, FromRecipe("backbone.pooling")] = None
    """pooling of the token states. cls: the state of [CLS]; mean, max, last, weighted_mean, mean_sqrt_len: over all
    tokens; null: the checkpoint's setting"""
    normalise: Annotated[bool | None, FromRecipe("backbone.normalise")] = None
    """true: normalise vectors, so that scores are cosines; null: the checkpoint's setting"""
    truncate_dim: Annotated[Count | None, FromRecipe("backbone.truncate_dim")] = None
    """number of leading dimensions that vectors keep; null: the checkpoint's setting"""
    query_prefix: Annotated[str | None, FromRecipe("backbone.query_prefix")] = None
    """string put before each query, such as "query: " for E5; null: the checkpoint's setting"""
    passage_prefix: Annotated[str | None, FromRecipe("backbone.passage_prefix")] = None
    """string put before each passage, such as "passage: " for E5; null: the checkpoint's setting"""

    def by_content(self) -> set[str]:
        """Also return the keys that are null, whose values the checkpoint gives."""
        return super().by_content() | self.not_given()


@stage("cross_encoder", "cross_encoder:cross_encoder", version=1, makes="cross_encoder")
class CrossEncoderConfig(StageConfig):
    """Load a cross-encoder that was trained elsewhere, unchanged.

    The stages rerank, score_pairs and distil_ranking score pairs with it.
    """

    folder: str | Path  # kept as the user wrote it: ./name is a folder, but name may be on the hub
    """folder or hub name, such as cross-encoder/ms-marco-MiniLM-L6-v2; a model of the BERT family with one output"""
    revision: Annotated[str | None, Later()] = None
    """commit, tag or branch of the model on the Hugging Face hub"""
    tokenizer: Annotated[str, Input("tokenizer")] = "tokenizer"
    """the stage with the cross-encoder's tokenizer; if it differs from the retriever's tokenizer, add a further stage
    and set its backbone.tokenizer"""
    tokens: Annotated[str, Input("tokens")] = "tokens"
    """the stage with token ids of the cross-encoder's tokenizer"""
    query_length: TextLength = 64
    """maximum tokens of a query, including [CLS] and [SEP]"""
    length: PairLength = 256
    """maximum tokens of query and passage together; the passage is truncated to what the query leaves"""

    def work(self, read: Read) -> Work:
        """Estimate the work of reading and writing the weights."""
        sizes = replace(known(read, "tokens"), encoder=released_size(self.folder), passage_length=self.length)
        return Work(sizes, seconds=None if sizes.encoder is None else 3.0, disk=checkpoint_bytes(sizes))

    def by_content(self) -> set[str]:
        """Also return ``folder``, because the id depends on the folder's content, not on its path."""
        return super().by_content() | {"folder"}

    def identity(self) -> list[str]:
        """Return the hashes of the weights and of the files that describe them, or a hub checkpoint's name.

        Raises:
            UserError: there is no such folder.
        """
        return content_of_checkpoint(self.folder, "stage.cross_encoder.folder", "a trained cross-encoder")


def content_of_checkpoint(named: str | Path, key: str, what: str) -> list[str]:
    """Return the strings that represent a checkpoint in a stage's id: the hashes of its files, or its name on the hub.

    Args:
        named: folder or hub name.
        key: config key that names the checkpoint, for the error message.
        what: kind of checkpoint that the key should name, for the error message.

    Raises:
        UserError: there is no such folder, and ``named`` is not a hub name.
    """
    folder = expanded(named)
    if not folder.is_dir():
        if not is_hub_name(str(named)):
            raise UserError(f"{key}: {named}: no such folder; name {what}, as a folder or on the hub")
        return [f"hub {named}"]
    endings = {".json", ".txt", ".model", ".safetensors", ".bin"}
    files = sorted(path for path in folder.rglob("*") if path.suffix in endings and path.name != "manifest.json")
    files = [path for path in files if "logs" not in path.relative_to(folder).parts]
    check_whole(files)
    return content_hashes(files)
