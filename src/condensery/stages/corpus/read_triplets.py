"""Stage ``read_triplets``: the triplets of Wikipedia sections that Ein Dor et al. published (Gao and Callan 2021a, §4.2)."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from condensery.stages.base import Context, Input, Operational, StageConfig, stage
from condensery.system.files import expanded
from condensery.system.inputs import look
from condensery.text.hashes import content_hashes


class ReadTripletsConfig(StageConfig):
    """``root`` is the folder with train.csv, validation.csv and test.csv."""

    root: Annotated[str, Field(min_length=1), Operational()]  # the content counts, not where it lies
    tokenizer: Annotated[str, Input("tokenizer")]

    def files(self) -> dict[str, Path]:
        """The file of each split. Raises ``UserError`` where one is missing."""
        from condensery.text.triplets import triplet_files

        return triplet_files(expanded(self.root))

    def identity(self) -> list[str]:
        """The content of the files. Raises ``UserError`` where there is none to read, before anything is computed."""
        files = list(self.files().values())
        look(files)
        return content_hashes(files)


@stage("read_triplets", version=1, makes="sentences")
def read_triplets(config: ReadTripletsConfig, context: Context) -> dict[str, Any]:
    """Check and tokenise the sentences."""
    from condensery.stages.corpus.sentences import write_sentences
    from condensery.text.triplets import read_triplets

    examples = ((split, triplet, 0.0) for split, path in config.files().items() for triplet in read_triplets(path))
    return dict(write_sentences(examples, context, "sections", "triplets"))
