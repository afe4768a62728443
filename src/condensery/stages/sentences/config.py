"""Configs of the stages that make the examples of a sentence task, or train on them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from annotated_types import Gt, Lt
from pydantic import Field, model_validator

from condensery.models.flops import Step
from condensery.ranges import Count, CountOrZero, Positive, Weight
from condensery.stages.base import Input, Operational, SentenceLanguage, StageConfig, TextLength
from condensery.stages.registry import stage
from condensery.stages.training_config import EncoderStageConfig
from condensery.stages.workload import Read, Sizes, Work, known, with_encoder
from condensery.system.files import expanded
from condensery.text.formats.sts import sts_files
from condensery.text.formats.triplets import triplet_files
from condensery.text.hashes import input_hashes
from condensery.text.input_file import InputFile
from condensery.text.sizes import CHARACTERS, SentenceSizes, counted_examples, sentence_tokens

Part = Annotated[float, Gt(0), Lt(1)]


class SentenceStageConfig(StageConfig):
    """Shared keys of the stages that create the examples of a sentence task."""

    tokenizer: Annotated[str, Input("tokenizer")] = "tokenizer"
    """the stage with the tokenizer"""

    def making(self, read: Read, sentences: SentenceSizes | None) -> Work:
        """Return the work of writing ``sentences``: one copy of their text, and their token ids."""
        if sentences is None:
            return Work(known(read))
        disk = 2 * CHARACTERS * sentences.tokens * sentences.sentences
        return Work(replace(known(read), sentences=sentences), seconds=sentences.reading, disk=disk)

    def actual_sizes(self, expected: Sizes, metrics: Mapping[str, Any]) -> Sizes:
        """Return the counted examples of each split."""
        if expected.sentences is None:
            return expected
        examples = {split: float(metrics[split]) for split in ("train", "dev", "test")}
        return replace(expected, sentences=replace(expected.sentences, examples=examples))


class SentenceFilesConfig(SentenceStageConfig):
    """Shared keys of the stages that read one file of examples for each split."""

    root: Annotated[str, Field(min_length=1), Operational()]  # the id depends on the content, not on the path
    """the folder that contains the files"""
    each: ClassVar[int]  # sentences per example

    def inputs_in(self, root: Path) -> dict[str, InputFile]:
        """Return the input file of each split."""
        raise NotImplementedError

    def files(self) -> dict[str, Path]:
        """Return the path of each split's file. Raises ``UserError`` if a file is missing."""
        return {split: file.open_path() for split, file in self.inputs_in(expanded(self.root)).items()}

    def identity(self) -> list[str]:
        """Return the content hashes of the files.

        Raises:
            UserError: a file is missing or unreadable; this is checked before anything is computed.
        """
        return input_hashes([*self.files().values()])

    def work(self, read: Read) -> Work:
        """Estimate the work: each line of the files is an example."""
        return self.making(read, counted_examples(self.inputs_in(expanded(self.root)), self.each))


@stage("read_sts", "examples:read_sts", version=1, makes="sentences")
class ReadStsConfig(SentenceFilesConfig):
    """Read the pairs and scores of the STS benchmark.

    The files are train.csv, dev.csv and test.csv, with the columns sentence1,sentence2,score.
    """

    each: ClassVar[int] = 2

    def inputs_in(self, root: Path) -> dict[str, InputFile]:
        """Return the input file of each split."""
        return sts_files(root)


@stage("read_triplets", "examples:read_triplets", version=1, makes="sentences")
class ReadTripletsConfig(SentenceFilesConfig):
    """Read triplets of sentences in the format of Ein Dor et al. (2018), in place of the stage section_triplets.

    The files are train.csv, validation.csv and test.csv (wikipedia-sections-triplets.zip), plain or .gz.
    """

    each: ClassVar[int] = 3

    def inputs_in(self, root: Path) -> dict[str, InputFile]:
        """Return the input file of each split."""
        return triplet_files(root)


@stage("section_triplets", "examples:section_triplets", version=1, makes="sentences")
class SectionTripletsConfig(SentenceStageConfig):
    """Sample triplets of sentences from articles: two sentences of one section, and one of another section."""

    path: Annotated[str, Field(min_length=1), Operational()]  # the id depends on the content, not on the path
    """a file of documents with headings, plain or .gz"""
    dev_share: Part = 0.05
    """share of the articles, chosen by their ids, that form the split dev"""
    test_share: Part = 0.1
    """share of the articles that form the split test"""
    per_article: Count = 20
    """maximum number of triplets per article"""
    minimum_words: Count = 5
    """minimum words of a sentence; shorter sentences are left out"""
    sentence_language: SentenceLanguage = "en"
    """language code; abbreviations and ordinals of this language do not end a sentence"""
    seed: CountOrZero = 1
    """random seed of splits and triplets; not the recipe's ``seed``, so that all training seeds get the same task"""

    @model_validator(mode="after")
    def _something_to_train_on(self) -> Self:
        if self.dev_share + self.test_share >= 1:
            raise ValueError("dev_share and test_share leave no article to train on; lower one of them")
        return self

    def _input(self) -> InputFile:
        hint = ', one JSON object a line: {"_id", "title", "passages": [...], "headings": [...]}'
        return InputFile("file of articles", expanded(self.path), hint)

    def file(self) -> Path:
        """Return the path of the file, plain or .gz. Raises ``UserError`` if the file is missing."""
        return self._input().open_path()

    def work(self, read: Read) -> Work:
        """Estimate the work: each line of the file is an article, with at most ``per_article`` triplets."""
        articles, tokens = counted_examples({"all": self._input()}, 1), sentence_tokens(self._input())
        if articles is None or tokens is None:
            return self.making(read, None)
        shares = {"train": 1 - self.dev_share - self.test_share, "dev": self.dev_share, "test": self.test_share}
        examples = {split: share * self.per_article * articles.examples["all"] for split, share in shares.items()}
        return self.making(read, SentenceSizes(examples, 3, tokens, articles.reading))

    def identity(self) -> list[str]:
        """Return the content hash of the file.

        Raises:
            UserError: the file is missing or unreadable; this is checked before anything is computed.
        """
        return input_hashes([self.file()])


@stage("finetune_sentences", "finetune_sentences:finetune_sentences", version=1, makes="encoder", together=True)
class FinetuneSentencesConfig(EncoderStageConfig):
    """Train a bi-encoder on a sentence task: regression on the cosine for pairs, a margin loss on distances for triplets."""

    data_checks = {"sentences": ["examples"]}
    sentences: Annotated[str, Input("sentences")] = "sentences"
    """the stage with the examples (read_sts, read_triplets, section_triplets)"""
    examples: Count | None = None
    """number of training examples, drawn with the seed; a smaller set is a subset of a larger one; null: all"""
    length: TextLength = 128
    """maximum tokens of a sentence, including [CLS] and [SEP]"""
    margin: Positive = 1.0
    """margin of the triplet loss: how much nearer the positive should be than the negative"""
    batch_size: Count = 16
    """pairs or triplets per step"""
    epochs: Positive | None = 4
    """passes over the examples"""
    learning_rate: Positive = 2e-5
    """peak learning rate of AdamW (of Adam, if ``weight_decay`` is 0)"""
    weight_decay: Weight = 0.0
    """weight decay of AdamW; biases and LayerNorm weights are not decayed"""

    def work(self, read: Read) -> Work:
        """Estimate the work of the training steps. A step reads ``batch_size`` examples, each sentence separately."""
        sizes = with_encoder(known(read), self.backbone, self.length)
        texts, step = sizes.sentences, None
        examples = None if self.examples is None else float(self.examples)
        if texts is not None and sizes.encoder is not None:
            length = min(texts.tokens + 2, self.length)
            examples = texts.examples["train"] if examples is None else examples
            rows = min(self.batch_size, examples) * texts.each
            step = Step(sizes.encoder, rows, length, self.budget, precision=self.precision)
        return self.training(sizes, step, examples)
