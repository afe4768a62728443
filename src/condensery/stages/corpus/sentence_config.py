"""The keys that the stages share which make the examples of a sentence task; by itself, so that a dry run stays fast."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from condensery.stages.base import Input, Operational, StageConfig
from condensery.stages.work import Read, Sizes, Work, known
from condensery.system.files import expanded
from condensery.system.inputs import look
from condensery.text.hashes import content_hashes
from condensery.text.sizes import CHARACTERS, SentenceSizes, counted_examples
from condensery.text.source import InputFile


class SentenceStageConfig(StageConfig):
    """``tokenizer`` reads the sentences."""

    tokenizer: Annotated[str, Input("tokenizer")]

    def making(self, read: Read, sentences: SentenceSizes | None) -> Work:
        """The work of writing such examples: the text once, and its tokens."""
        if sentences is None:
            return Work(known(read))
        disk = 2 * CHARACTERS * sentences.tokens * sentences.sentences
        return Work(replace(known(read), sentences=sentences), seconds=sentences.reading, disk=disk)

    def actual_sizes(self, expected: Sizes, metrics: Mapping[str, Any]) -> Sizes:
        """The examples, as they were counted."""
        if expected.sentences is None:
            return expected
        examples = {split: float(metrics[split]) for split in ("train", "dev", "test")}
        return replace(expected, sentences=replace(expected.sentences, examples=examples))


class SentenceFilesConfig(SentenceStageConfig):
    """``root`` is a folder with a file of examples a split."""

    root: Annotated[str, Field(min_length=1), Operational()]  # the content counts, not where it lies
    each: ClassVar[int]  # sentences of an example

    def inputs_in(self, root: Path) -> dict[str, InputFile]:
        """What is read, by split."""
        raise NotImplementedError

    def files(self) -> dict[str, Path]:
        """The file of each split. Raises ``UserError`` where one is missing."""
        return {split: file.open_path() for split, file in self.inputs_in(expanded(self.root)).items()}

    def identity(self) -> list[str]:
        """The content of the files. Raises ``UserError`` where there is none to read, before anything is computed."""
        files = list(self.files().values())
        look(files)
        return content_hashes(files)

    def work(self, read: Read) -> Work:
        """As many examples as the files have lines."""
        return self.making(read, counted_examples(self.inputs_in(expanded(self.root)), self.each))
