"""Stage ``read_sts``: the pairs and scores of the STS benchmark (Gao and Callan 2021a, §4.2)."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from condensery.stages.base import Context, stage
from condensery.stages.corpus.sentence_config import SentenceFilesConfig

if TYPE_CHECKING:
    from condensery.text.source import InputFile


class ReadStsConfig(SentenceFilesConfig):
    """``root`` is the folder with train.csv, dev.csv and test.csv."""

    each: ClassVar[int] = 2

    def inputs_in(self, root: Path) -> "dict[str, InputFile]":
        """See ``SentenceFilesConfig``."""
        from condensery.text.sts import sts_files

        return sts_files(root)


@stage("read_sts", version=1, makes="sentences")
def read_sts(config: ReadStsConfig, context: Context) -> dict[str, Any]:
    """Check and tokenise the sentences; scores are divided by 5."""
    from condensery.stages.corpus.sentences import write_sentences
    from condensery.text.sts import HIGHEST, read_sts

    examples = (
        (split, (first, second), score / HIGHEST)
        for split, path in config.files().items()
        for first, second, score in read_sts(path)
    )
    return dict(write_sentences(examples, context, "STS-b", "similarity"))
