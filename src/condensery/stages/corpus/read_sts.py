"""Stage ``read_sts``: the pairs and scores of the STS benchmark (Gao and Callan 2021a, §4.2)."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from condensery.stages.base import Context, Input, Operational, StageConfig, stage
from condensery.system.files import expanded
from condensery.system.inputs import look
from condensery.text.hashes import content_hashes


class ReadStsConfig(StageConfig):
    """``root`` is the folder with train.csv, dev.csv and test.csv."""

    root: Annotated[str, Field(min_length=1), Operational()]  # the content counts, not where it lies
    tokenizer: Annotated[str, Input("tokenizer")]

    def files(self) -> dict[str, Path]:
        """The file of each split. Raises ``UserError`` where one is missing."""
        from condensery.text.sts import sts_files

        return sts_files(expanded(self.root))

    def identity(self) -> list[str]:
        """The content of the files. Raises ``UserError`` where there is none to read, before anything is computed."""
        files = list(self.files().values())
        look(files)
        return content_hashes(files)


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
