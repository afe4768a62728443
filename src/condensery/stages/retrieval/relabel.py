"""What the stages share that read what people said of suspected negatives: ``mine`` and ``read_negatives``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from condensery.stages.base import StageConfig
from condensery.stages.checks import Split
from condensery.text.hashes import content_hashes

if TYPE_CHECKING:
    from condensery.retrieval.relabelled import Relabelled
    from condensery.text.collection import Collection


class RelabelConfig(StageConfig):
    """``relabel``: filled sheets of ``audit_negatives``, files or a folder; their content counts, not where they lie."""

    split: Split
    relabel: Path | Annotated[list[Path], Field(min_length=1)] | None

    def by_content(self) -> set[str]:
        """The sheets: without any the id is that of before there were some."""
        return {"relabel"}

    def identity(self) -> list[str]:
        """What the sheets hold, in any order. ``UserError`` where they are missing."""
        return sorted(content_hashes(self._filled()))

    def relabelled(self, collection: "Collection") -> "Relabelled":
        """What they say. Raises ``UserError`` with the line and the column where something is wrong."""
        from condensery.retrieval.relabelled import NOTHING, read_relabelled

        return NOTHING if self.relabel is None else read_relabelled(self._filled(), collection, self.split)

    def _filled(self) -> list[Path]:
        from condensery.text.sheets import filled_sheets

        return [] if self.relabel is None else filled_sheets(self.relabel, "relabel")
