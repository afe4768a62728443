"""Stage ``retriever``: one that was trained elsewhere, taken as it is (zero-shot evaluation)."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from condensery.errors import UserError
from condensery.models.about import longest_inputs, vector_settings
from condensery.models.vectors import VectorConfig
from condensery.stages.base import Context, StageConfig, stage
from condensery.stages.work import Read, Work, checkpoint_bytes, known, released_size
from condensery.system.files import expanded, is_hub_name
from condensery.text.hashes import content_hashes

Length = Annotated[int, Field(ge=4)]


class RetrieverConfig(VectorConfig, StageConfig):
    """``folder`` holds the checkpoint, or is its hub name: of this project, of sentence-transformers, or of the BERT family.

    The lengths are in tokens; ``None`` takes those that it was trained with, where the folder says so.
    """

    folder: str | Path  # text as it was given: ./name is a folder, name may be on the hub
    revision: str | None = None
    query_length: Length | None
    passage_length: Length | None

    def work(self, read: Read) -> Work:
        """The weights are read and written."""
        folder = expanded(self.folder)
        _, longest = (longest_inputs(folder) if folder.is_dir() else None) or (None, None)
        encoder, passage_length = released_size(self.folder), self.passage_length or longest
        sizes = replace(known(read), encoder=encoder, passage_length=passage_length)
        return Work(sizes, seconds=None if sizes.encoder is None else 3.0, disk=checkpoint_bytes(sizes))

    def by_content(self) -> set[str]:
        """The folder, and what is left to it."""
        return {"folder", *self.not_given(), *([] if self.revision else ["revision"])}

    def identity(self) -> list[str]:
        """The weights and what describes them, wherever they lie; of a hub name the name.

        ``UserError`` where there is no such folder, or it makes vectors in a way that is not known.
        """
        found = content_of_checkpoint(self.folder, "stage.retriever.folder", "a trained retriever")
        if (folder := expanded(self.folder)).is_dir():
            vector_settings(folder)  # said before anything is computed
        return found


def content_of_checkpoint(named: str | Path, key: str, what: str) -> list[str]:
    """For the id of a stage that takes a checkpoint as it is: the hashes of its files, or its name on the hub.

    Raises ``UserError``, which names ``key`` and ``what`` it should be, where there is no such folder.
    """
    folder = expanded(named)
    if not folder.is_dir():
        if not is_hub_name(str(named)):
            raise UserError(f"{key}: {named}: no such folder; it names {what}")
        return [f"hub {named}"]
    endings = {".json", ".txt", ".model", ".safetensors", ".bin"}
    files = sorted(path for path in folder.rglob("*") if path.suffix in endings and path.name != "manifest.json")
    return content_hashes([path for path in files if "logs" not in path.parts])


@stage("retriever", version=1, makes="encoder")
def retriever(config: RetrieverConfig, context: Context) -> dict[str, Any]:
    """Save the retriever as every stage that trains one does."""
    from condensery.models.checkpoint import SavedRetriever, load_any_retriever, save_retriever
    from condensery.models.hub import checkpoint_folder

    named = expanded(config.folder)
    folder = checkpoint_folder(named if named.is_dir() else str(config.folder), config.revision)
    model, said = load_any_retriever(folder, config.vector_options())
    query_length, passage_length = config.query_length or said[0], config.passage_length or said[1]
    if query_length is None or passage_length is None:
        raise UserError(
            f"stages.{context.stage_name}: {config.folder} does not say its lengths; set"
            f" stages.{context.stage_name}.query_length and stages.{context.stage_name}.passage_length"
        )
    for key, length, tower in (("query", query_length, model.query), ("passage", passage_length, model.passage)):
        if length > tower.longest:
            raise UserError(
                f"stages.{context.stage_name}.{key}_length: {length} is longer than its {tower.longest} positions"
            )
    save_retriever(SavedRetriever(model, query_length, passage_length), context.folder, folder)
    return {"query_length": query_length, "passage_length": passage_length, **model.settings.own()}
