"""Stage ``retriever``: one that was trained elsewhere, taken as it is (zero-shot evaluation)."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from condensery.errors import UserError
from condensery.models.about import ABOUT
from condensery.models.sentence_transformers import check_modules
from condensery.stages.base import Context, StageConfig, stage
from condensery.system.files import expanded
from condensery.text.hashes import content_hashes

Length = Annotated[int, Field(ge=4)]


class RetrieverConfig(StageConfig):
    """``folder`` holds the checkpoint: of this project, or any of the BERT family whose CLS vectors are compared.

    The lengths are in tokens; ``None`` takes those that it was trained with, where the folder says so.
    """

    folder: Path
    query_length: Length | None
    passage_length: Length | None

    def by_content(self) -> set[str]:
        """The folder."""
        return {"folder"}

    def identity(self) -> list[str]:
        """The weights and what describes them, wherever they lie. ``UserError`` where there is no such folder."""
        folder = expanded(self.folder)
        if not folder.is_dir():
            raise UserError(f"stage.retriever.folder: {self.folder}: no such folder; it names a trained retriever")
        if not (folder / ABOUT).exists():  # said before anything is computed
            check_modules(folder)
        endings = {".json", ".txt", ".model", ".safetensors", ".bin"}
        files = sorted(path for path in folder.rglob("*") if path.suffix in endings and path.name != "manifest.json")
        return content_hashes([path for path in files if "logs" not in path.parts])


@stage("retriever", version=1, makes="encoder")
def retriever(config: RetrieverConfig, context: Context) -> dict[str, Any]:
    """Save the retriever as every stage that trains one does."""
    from condensery.models.checkpoint import SavedRetriever, load_any_retriever, save_retriever

    folder = expanded(config.folder)
    model, said = load_any_retriever(folder)
    query_length, passage_length = config.query_length or said[0], config.passage_length or said[1]
    if query_length is None or passage_length is None:
        raise UserError(
            f"stages.{context.stage_name}: {folder} does not say its lengths; set"
            f" stages.{context.stage_name}.query_length and stages.{context.stage_name}.passage_length"
        )
    for key, length, tower in (("query", query_length, model.query), ("passage", passage_length, model.passage)):
        if length > tower.longest:
            raise UserError(
                f"stages.{context.stage_name}.{key}_length: {length} is longer than its {tower.longest} positions"
            )
    save_retriever(SavedRetriever(model, query_length, passage_length), context.folder, folder)
    return {"query_length": query_length, "passage_length": passage_length}
