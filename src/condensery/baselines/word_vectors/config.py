"""Config of the stage that measures averaged word vectors on a sentence task."""

from typing import Annotated

from pydantic import Field

from condensery.stages.base import FromRecipe, Input, Operational, StageConfig
from condensery.stages.checks import Split
from condensery.stages.registry import stage
from condensery.stages.workload import Read, Work, known
from condensery.system.files import expanded
from condensery.text.hashes import content_hashes
from condensery.text.input_file import InputFile

LINE = 1e-6  # seconds on one core for a line of the file


@stage("evaluate_word_vectors", "evaluate:evaluate_word_vectors", version=2, makes="evaluation")
class EvaluateWordVectorsConfig(StageConfig):
    """Measure averaged word vectors on a sentence task, for a row of the table.

    The vector of a sentence is the mean of the vectors of its lower-case words. Words that the file lacks are left out.
    """

    path: Annotated[str, Field(min_length=1), Operational()]  # the id depends on the content, not on the path
    """file of word vectors in GloVe's text format, plain or .gz: each line has a word and the values of its vector, separated
    by spaces"""
    sentences: Annotated[str, Input("sentences")] = "sentences"
    """the stage with the examples"""
    split: Annotated[Split, FromRecipe("table.split")]
    """the split that is measured: train, dev or test"""

    def file(self) -> InputFile:
        """Return the file of word vectors."""
        hint = ", such as glove.6B.300d.txt of nlp.stanford.edu/projects/glove"
        return InputFile("file of word vectors", expanded(self.path), hint, may_be_empty=True)

    def identity(self) -> list[str]:
        """Return the content hash of the file.

        Raises:
            UserError: the file is missing or unreadable; this is checked before anything is computed.
        """
        return content_hashes([self.file().look()])

    def work(self, read: Read) -> Work:
        """Estimate the work of reading the file, whose lines have about 2,500 bytes."""
        path = expanded(self.path)
        seconds = LINE * path.stat().st_size / 2500 if path.is_file() else 1.0
        return Work(known(read), seconds=seconds)
