"""Stage ``read_negatives``: negatives that a collection publishes: MS MARCO's triples of ids, or its own files'."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from condensery.stages.base import Context, Input, Operational, StageConfig, stage
from condensery.stages.checks import Split, missing_split
from condensery.text.hashes import content_hashes
from condensery.text.source import InputFile


class TriplesConfig(StageConfig):
    """``file``: lines of query, positive and negative id; ``None``: what the collection's files give (DPR, Tevatron).

    The first ``depth`` negatives of each query are kept.
    """

    corpus: Annotated[str, Input("corpus")]
    file: Annotated[Path | None, Operational()]  # its content counts, not where it lies
    split: Split
    depth: Annotated[int, Field(gt=0)]

    def identity(self) -> list[str]:
        """The content of the file. Raises ``UserError`` where there is none to read, before anything is computed."""
        if self.file is None:
            return []
        named = InputFile("file of triples of ids", self.file, "; stage.read_negatives.file names it", exact=True)
        return content_hashes([named.look()])

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """A split that the collection does not have, or no negatives."""
        data = getattr(inputs["corpus"][0], "data", None)
        if self.file is None and data is not None and not data.gives_negatives():
            return "file", f"needs a file of triples; the files of the collection {data.name} give no negatives"
        return missing_split(self.split, inputs["corpus"])


@stage("read_negatives", version=2, makes="negatives")
def read_negatives(config: TriplesConfig, context: Context) -> dict[str, Any]:
    """Write the negatives as arrays and negatives.jsonl."""
    from condensery.retrieval.negatives import from_collection, from_triples, save_negatives
    from condensery.text.collection import Collection

    collection = Collection(context.input("corpus"))
    how = (collection, config.depth, config.split)
    negatives, counts = from_triples(config.file, *how) if config.file else from_collection(*how)
    made_by = {"made_by": config.file.name if config.file else collection.name}
    save_negatives(context.folder, negatives, collection, {**counts, "split": config.split, **made_by})
    return counts
