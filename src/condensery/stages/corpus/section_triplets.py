"""Stage ``section_triplets``: which of two sentences is of the section of a third? (Gao and Callan 2021a, §4.2)."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from condensery.stages.base import Context, Operational, stage
from condensery.stages.corpus.sentence_config import SentenceStageConfig
from condensery.stages.work import Read, Work
from condensery.system.files import expanded
from condensery.system.inputs import look
from condensery.text.hashes import content_hashes
from condensery.text.sizes import SentenceSizes, counted_examples
from condensery.text.source import InputFile

if TYPE_CHECKING:
    from condensery.stages.corpus.sentences import Example

SENTENCE = 25.0  # tokens of a sentence of Wikipedia
Part = Annotated[float, Field(gt=0, lt=1)]


class SectionTripletsConfig(SentenceStageConfig):
    """``path`` is a file of documents with headings; shares are of its articles."""

    path: Annotated[str, Field(min_length=1), Operational()]  # the content counts, not where it lies
    dev_share: Part
    test_share: Part
    per_article: Annotated[int, Field(gt=0)]
    minimum_words: Annotated[int, Field(ge=1)]
    seed: Annotated[int, Field(ge=0)]

    @model_validator(mode="after")
    def _something_to_train_on(self) -> Self:
        if self.dev_share + self.test_share >= 1:
            raise ValueError("dev_share and test_share leave no article to train on")
        return self

    def _input(self) -> InputFile:
        hint = ', one JSON object a line: {"_id", "title", "passages": [...], "headings": [...]}'
        return InputFile("file of articles", expanded(self.path), hint)

    def file(self) -> Path:
        """The file, plain or .gz. Raises ``UserError`` where it is missing."""
        return self._input().open_path()

    def work(self, read: Read) -> Work:
        """At most ``per_article`` triplets of each article, which are as many as the file has lines."""
        articles = counted_examples({"all": self._input()}, 1)
        if articles is None:
            return self.making(read, None)
        dev, test = self.dev_share, self.test_share
        number = self.per_article * articles.examples["all"]
        examples = {"train": (1 - dev - test) * number, "dev": dev * number, "test": test * number}
        return self.making(read, SentenceSizes(examples, 3, SENTENCE, articles.reading))

    def identity(self) -> list[str]:
        """The content of the file. Raises ``UserError`` where there is none to read, before anything is computed."""
        file = self.file()
        look([file])
        return content_hashes([file])


@stage("section_triplets", version=1, makes="sentences")
def section_triplets(config: SectionTripletsConfig, context: Context) -> dict[str, Any]:
    """Cut the sections into sentences and draw triplets; an article is in one split alone, by its id."""
    from condensery.stages.corpus.sentences import write_sentences

    return dict(write_sentences(_examples(config), context, "sections", "triplets"))


def _examples(config: SectionTripletsConfig) -> "Iterator[Example]":
    from condensery.randomness import hash64
    from condensery.text.sections import read_articles, section_triplets

    for article in read_articles(config.file()):
        share = hash64(config.seed, "sections", article.id) / 2**64
        split = (
            "test" if share < config.test_share else "dev" if share < config.test_share + config.dev_share else "train"
        )
        sections = [_sentences(texts, config.minimum_words) for texts in article.sections]
        for triplet in section_triplets(sections, config.per_article, config.seed, "triplets", article.id):
            yield split, triplet, 0.0


def _sentences(texts: list[str], minimum_words: int) -> list[str]:
    """The sentences of a section that have so many words."""
    from itertools import pairwise

    from condensery.text.words import number_of_words
    from condensery.tokens.workers import sentence_begins

    kept = []
    for text in texts:
        for first, last in pairwise([*sentence_begins(text), len(text)]):
            sentence = " ".join(text[first:last].split())
            if number_of_words(sentence) >= minimum_words:
                kept.append(sentence)
    return kept
