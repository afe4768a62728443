"""Stage ``read_negatives``: negatives that are published: MS MARCO's triples of ids, lists of systems, a collection's own."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from condensery.stages.base import Context, Input, Operational, StageConfig, stage
from condensery.stages.checks import missing_split
from condensery.stages.retrieval.relabel import RelabelConfig
from condensery.text.hashes import content_hashes
from condensery.text.source import InputFile


class TriplesConfig(RelabelConfig):
    """``file``: lines of query, positive and negative id, or .jsonl with lists of systems; ``None``: what the collection's
    files give (DPR, Tevatron, triples of texts).

    The first ``depth`` negatives of each query are kept. Of lists, those of ``systems`` are taken, the first ``per_system``
    of each; ``None``: all.
    """

    corpus: Annotated[str, Input("corpus")]
    file: Annotated[Path | None, Operational()]  # its content counts, not where it lies
    depth: Annotated[int, Field(gt=0)]
    systems: Annotated[list[str], Field(min_length=1)] | None
    per_system: Annotated[int, Field(gt=0)] | None

    @property
    def has_lists(self) -> bool:
        """Whether the file has the lists of systems."""
        return self.file is not None and self.file.name.endswith((".jsonl", ".jsonl.gz"))

    @model_validator(mode="after")
    def _systems_have_lists(self) -> Self:
        for key in ("systems", "per_system"):
            if getattr(self, key) is not None and not self.has_lists:
                raise ValueError(f"{key} chooses among the lists of a .jsonl file; file is {self.file}")
        return self

    def by_content(self) -> set[str]:
        """Keys that came later: where they are null the ids are those of before."""
        return {*super().by_content(), "systems", "per_system"}

    def identity(self) -> list[str]:
        """The content of the file. Raises ``UserError`` where there is none to read, before anything is computed."""
        if self.file is None:
            return super().identity()
        named = InputFile("file of negatives", self.file, "; stage.read_negatives.file names it", exact=True)
        chosen = [f"{key}={value}" for key in ("systems", "per_system") if (value := getattr(self, key)) is not None]
        return content_hashes([named.look()]) + chosen + super().identity()

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """A split that the collection does not have, or no negatives."""
        data = getattr(inputs["corpus"][0], "data", None)
        if self.file is None and data is not None and not data.gives_negatives():
            return "file", f"needs a file of negatives; the files of the collection {data.name} give no negatives"
        return missing_split(self.split, inputs["corpus"])


@stage("read_negatives", version=3, makes="negatives")
def read_negatives(config: TriplesConfig, context: Context) -> dict[str, Any]:
    """Write the negatives as arrays and negatives.jsonl."""
    from condensery.retrieval.negatives import from_collection, from_triples, save_negatives
    from condensery.retrieval.no_negatives import left_out_by_text
    from condensery.retrieval.system_negatives import from_systems
    from condensery.text.collection import Collection

    collection = Collection(context.input("corpus"))
    relabelled = config.relabelled(collection)
    how = (collection, config.depth, config.split)
    if config.file is None:
        negatives, counts = from_collection(*how, relabelled=relabelled)
    elif config.has_lists:
        negatives, counts = from_systems(config.file, *how, config.systems, config.per_system, relabelled)
    else:
        negatives, counts = from_triples(config.file, *how, relabelled=relabelled)
    made_by = {"made_by": config.file.name if config.file else collection.name}
    left_out_by_text(counts.get("left_out_by_text", 0), context.stage_name)
    counts |= relabelled.saved(context.folder, collection, context.stage_name)
    save_negatives(context.folder, negatives, collection, {**counts, "split": config.split, **made_by})
    return counts
