"""Stage ``triples``: the negatives that a collection publishes (MS MARCO's triples of ids)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from condensery.errors import UserError
from condensery.stages.base import Context, Input, Operational, StageConfig, stage
from condensery.stages.checks import Split, missing_split
from condensery.text.hashes import content_hashes


class TriplesConfig(StageConfig):
    """``file``: lines of query, positive and negative id; the first ``depth`` negatives of each query are kept."""

    corpus: Annotated[str, Input("corpus")]
    file: Annotated[Path, Operational()]  # its content counts, not where it lies
    split: Split
    depth: Annotated[int, Field(gt=0)]

    def identity(self) -> list[str]:
        """The content of the file. Raises ``UserError`` where it is missing, before anything is computed."""
        if not self.file.is_file():
            raise UserError(f"{self.file}: no such file; stage.triples.file names the triples of ids")
        return content_hashes([self.file])

    def misfit(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """A split that the collection does not have."""
        return missing_split(self.split, inputs["corpus"])


@stage("triples", version=1, makes="negatives")
def triples(config: TriplesConfig, context: Context) -> dict[str, Any]:
    """Write negatives.jsonl."""
    from condensery.retrieval.negatives import from_triples
    from condensery.text.collection import Collection

    out = context.folder / "negatives.jsonl"
    return from_triples(config.file, Collection(context.input("corpus")), out, config.depth, config.split)
