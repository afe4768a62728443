"""Config of the stage that makes a collection of generated questions, such as PAQ's, for pre-training (Oğuz et al. 2022)."""

from typing import Annotated, Self

from pydantic import model_validator

from condensery.ranges import Count, CountOrZero
from condensery.stages.base import Input, Operational, StageConfig
from condensery.stages.registry import stage
from condensery.stages.workload import Read, Sizes, Work, known, over, product, total
from condensery.system.files import expanded
from condensery.text.hashes import content_hashes
from condensery.text.input_file import InputFile
from condensery.text.sizes import CHARACTERS, CollectionSizes

PUBLISHED = CollectionSizes(21_015_324, 140, None, None, {"train": 64_900_000}, reading=3_000, published=True)
PAQ = ": of https://github.com/facebookresearch/PAQ"


@stage("question_pairs", "question_pairs:question_pairs", version=1, makes="corpus")
class QuestionPairsConfig(StageConfig):
    """Make a collection whose judged queries are generated questions, from PAQ's files or from another stage.

    A stage ``finetune`` then pre-trains a bi-encoder on the collection (DPR-PAQ: Oğuz et al. 2022).
    """

    queries: Annotated[str | None, Input("queries")] = None
    """the stage with generated queries, each judged relevant to its passage; null: read the files in ``root``"""
    root: Annotated[str | None, Operational()] = None  # the id depends on the content, not on the path
    """folder of PAQ's files, plain or .gz; null: use ``queries``"""
    passages: Annotated[str, Operational()] = "psgs_w100.tsv"
    """file in ``root`` with the passages: id, text, title"""
    questions: Annotated[str, Operational()] = "PAQ.metadata.jsonl"
    """file in ``root``; each line has a question, its answers, and the ids of the answers' passages"""
    subset: str | None = None
    """use only the questions of this subset of PAQ: L1, L4 or NE; null: all"""
    number: Count | None = None
    """maximum number of questions, taken from the beginning of the file; null: all"""
    dev_queries: CountOrZero = 500
    """number of questions that form the split dev, for validation; at most a tenth of all questions"""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.queries is None) == (self.root is None):
            raise ValueError("give either root, the folder of PAQ's files, or queries, a stage with generated queries")
        return self

    def input_files(self) -> list[InputFile]:
        """Return the files of passages and of questions; none if a stage has generated the questions."""
        if self.root is None:
            return []
        folder = expanded(self.root)
        files = {"passages": self.passages, "questions": self.questions}
        return [InputFile(role, folder / name, PAQ) for role, name in files.items()]

    def identity(self) -> list[str]:
        """Return the content hashes of the files.

        Raises:
            UserError: a file is missing or unreadable; this is checked before anything is computed.
        """
        return content_hashes([file.look() for file in self.input_files()])

    def work(self, read: Read) -> Work:
        """Estimate the work of reading the questions and of writing one copy of the text."""
        sizes = known(read) if self.queries else Sizes(PUBLISHED)
        texts = product(sizes.collection.passages, total([sizes.collection.passage_tokens, 20.0]))
        return Work(sizes, seconds=product(1e-4, sizes.collection.passages), disk=product(1.15 * CHARACTERS, texts))

    def actual_sizes(self, expected: Sizes, metrics: dict[str, int]) -> Sizes:  # type: ignore[override]
        """Return the counted passages and questions."""
        tokens = metrics["passage_characters"] / CHARACTERS / max(1, metrics["passages"])
        counted = CollectionSizes(metrics["passages"], tokens, None, None, {"train": float(metrics["queries"])})
        return Sizes(over(expected.collection, counted))
