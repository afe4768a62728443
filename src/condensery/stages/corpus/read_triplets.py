"""Stage ``read_triplets``: the triplets of Wikipedia sections that Ein Dor et al. published (Gao and Callan 2021a, §4.2)."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from condensery.stages.base import Context, stage
from condensery.stages.corpus.sentence_config import SentenceFilesConfig

if TYPE_CHECKING:
    from condensery.text.source import InputFile


class ReadTripletsConfig(SentenceFilesConfig):
    """``root`` is the folder with train.csv, validation.csv and test.csv."""

    each: ClassVar[int] = 3

    def inputs_in(self, root: Path) -> "dict[str, InputFile]":
        """See ``SentenceFilesConfig``."""
        from condensery.text.triplets import triplet_files

        return triplet_files(root)


@stage("read_triplets", version=1, makes="sentences")
def read_triplets(config: ReadTripletsConfig, context: Context) -> dict[str, Any]:
    """Check and tokenise the sentences."""
    from condensery.stages.corpus.sentences import write_sentences
    from condensery.text.triplets import read_triplets

    examples = ((split, triplet, 0.0) for split, path in config.files().items() for triplet in read_triplets(path))
    return dict(write_sentences(examples, context, "sections", "triplets"))
