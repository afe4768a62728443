"""Keys of the stages that make passages, queries, sentences and tokens of a user's files."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from condensery.models.flops import T5_BASE, Step
from condensery.stages.base import Input, Operational, StageConfig
from condensery.stages.checks import check_checkpoint, check_folder
from condensery.stages.registry import stage
from condensery.stages.workload import Read, Sizes, Work, known, over, product, total
from condensery.system.files import expanded
from condensery.system.inputs import look
from condensery.text.config import DataConfig
from condensery.text.formats.sts import sts_files
from condensery.text.formats.triplets import triplet_files
from condensery.text.hashes import content_hashes
from condensery.text.input_file import InputFile
from condensery.text.sizes import CHARACTERS, HELD_OUT_SHARE, CollectionSizes, SentenceSizes, counted_examples

WRITTEN = 12.0  # tokens of a query

FILLED = 0.85  # of a passage, by whole sentences

SENTENCE = 25.0  # tokens of a sentence of Wikipedia

Part = Annotated[float, Field(gt=0, lt=1)]


@stage("corpus", "corpus:corpus", version=1, makes="corpus")
class CorpusConfig(StageConfig):
    """``data`` says what is read; see ``conf/data/``."""

    data: DataConfig

    def work(self, read: Read) -> Work:
        """As large as the input; the text lies there once."""
        sizes = Sizes(self._sizes())
        texts = total([sizes.tokens, product(sizes.collection.passages, sizes.collection.passage_tokens)])
        if sizes.collection.documents is None:
            texts = sizes.tokens
        return Work(sizes, seconds=sizes.collection.reading, disk=product(1.15 * CHARACTERS, texts))

    def actual_sizes(self, expected: Sizes, metrics: Mapping[str, Any]) -> Sizes:
        """Passages, separate documents and judged queries, as they were counted."""
        tokens = metrics["passage_characters"] / CHARACTERS / max(1, metrics["passages"])
        queries = {split: one["queries"] for split, one in metrics["splits"].items()}
        unjudged = metrics["queries"] - sum(queries.values())
        counted = CollectionSizes(metrics["passages"], tokens, metrics["documents"] or None, None, queries, unjudged)
        return Sizes(over(expected.collection, counted))

    def _sizes(self) -> CollectionSizes:
        """Of the input; some training queries become dev where there is none, and some lose their judgements."""
        sizes, aside = self.data.sizes(), self.data.unlabelled_queries
        train, unjudged = sizes.queries.get("train"), sizes.unjudged
        if train is None:
            return sizes
        judged = dict(sizes.queries)
        if self.data.dev_queries and "dev" not in {*judged, *self.data.answered_splits()}:
            judged["dev"] = min(float(self.data.dev_queries), train / HELD_OUT_SHARE)
            train -= judged["dev"]
        if isinstance(aside, int):
            unjudged = min(float(aside), train / 2)
            train -= unjudged
        return replace(sizes, queries={**judged, "train": train}, unjudged=unjudged)


class QueryStageConfig(StageConfig):
    """The passages that queries are made for; ``tokenizer`` reads the queries as it read the passages."""

    passages: Annotated[str, Input("passages")]
    tokenizer: Annotated[str, Input("tokenizer")]

    def work(self, read: Read) -> Work:
        """Queries that are read or taken from the passages: a few for each."""
        sizes = known(read)
        passages = sizes.collection.passages
        return Work(sizes, seconds=product(1e-4, passages), disk=product(100.0, passages))


@stage("extract_queries", "extract_queries:extract_queries", version=1, makes="queries")
class ExtractQueriesConfig(QueryStageConfig):
    """The ``number`` most salient sentences of ``minimum_words`` to ``maximum_words`` words, the title, or both.

    Of both, a title that several passages have is no query of any.

    ``remove`` tells training to hide the sentence from the passage that it is a query of; a passage of one sentence,
    of which nothing would be left, then has no query, nor has one whose sentences cannot be told in its tokens.
    """

    kind: Literal["sentence", "title", "both"]
    number: Annotated[int, Field(ge=1)]
    minimum_words: Annotated[int, Field(ge=1)]
    maximum_words: Annotated[int, Field(ge=1)]
    remove: bool

    @model_validator(mode="after")
    def _some_length_fits(self) -> Self:
        if self.minimum_words > self.maximum_words:
            raise ValueError("minimum_words is more than maximum_words")
        return self


@stage(
    "generate_queries",
    "generate_queries:generate_queries",
    version=1,
    makes="queries",
    cost=lambda config: 10.0 * config.number,
    together="several_shards",
)
class GenerateQueriesConfig(QueryStageConfig):
    """The generator is ``model`` (hub name or folder), or the artifact of the stage ``generator``."""

    model: str | None
    revision: str | None
    generator: Annotated[str | None, Input("generator")]
    prefix: str
    titles: bool
    number: Annotated[int, Field(ge=1, le=1 << 20)]
    top_k: Annotated[int, Field(ge=0)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    max_tokens: Annotated[int, Field(ge=1)]
    max_input_tokens: Annotated[int, Field(ge=8)]
    batch_size: Annotated[int, Field(ge=1)]
    precision: Literal["fp32", "bf16", "fp16"]
    seed: Annotated[int, Field(ge=0)]
    shard_size: Annotated[int, Field(ge=1), Operational()]

    @model_validator(mode="after")
    def _one_generator(self) -> Self:
        if (self.model is None) == (self.generator is None):
            raise ValueError("give either model or generator, and set the other to null")
        return self

    def work(self, read: Read) -> Work:
        """Each passage is read once, and each query written token by token; a ``model`` counts as T5-base.

        Token by token a GPU is far from its rate of large products: what is shown is what it takes at least.
        """
        sizes = known(read, "passages", "tokenizer")
        generator = known(read, "generator").encoder or T5_BASE
        texts, number = sizes.collection, self.number
        if texts.passages is None or texts.passage_tokens is None:
            return Work(sizes)
        length = min(texts.passage_tokens, self.max_input_tokens)
        rows = texts.passages * (1 + number * min(WRITTEN, self.max_tokens) / length)
        step = Step(generator, rows, length, 8192, trained=False, precision=self.precision)
        return Work(sizes, 1, step, seconds=1e-4 * texts.passages, disk=60.0 * number * texts.passages)

    def _folder(self) -> Path | None:
        folder = expanded(self.model) if self.model else None
        return folder if folder is not None and folder.is_dir() else None

    def by_content(self) -> set[str]:
        """The model, where it is a folder."""
        return {"model"} if self._folder() else set()

    def identity(self) -> list[str]:
        """A model in a folder counts by content, wherever it lies. ``UserError`` where it is not there."""
        check_checkpoint(self.model, "stage.generate_queries.model")
        folder = self._folder()
        return content_hashes(sorted(path for path in folder.iterdir() if path.is_file())) if folder else []


@stage("passages", "passages:passages", version=1, makes="passages")
class PassagesConfig(StageConfig):
    """``length`` is in tokens, [CLS], [SEP] and the title with its [SEP] included."""

    corpus: Annotated[str, Input("corpus")]
    tokenizer: Annotated[str, Input("tokenizer")]
    grouping: Literal["sentences", "collection"]
    length: Annotated[int, Field(ge=16)]
    titles: bool
    workers: Annotated[int, Field(ge=1), Operational()]

    def work(self, read: Read) -> Work:
        """Every document is split into sentences, and these into groups; texts and tokens are written."""
        sizes = known(read)
        texts = sizes.collection
        if self.grouping == "sentences" and sizes.tokens is not None and sizes.text_tokens is not None:
            each = min(sizes.text_tokens, FILLED * (self.length - 2))
            texts = replace(texts, passages=sizes.tokens / each, passage_tokens=each)
        written = product(texts.passages, texts.passage_tokens)
        return Work(replace(sizes, collection=texts), seconds=product(6e-6, written), disk=product(7.0, written))

    def actual_sizes(self, expected: Sizes, metrics: Mapping[str, Any]) -> Sizes:
        """The passages, as they were counted."""
        tokens = metrics["tokens_of_texts"] / max(1, metrics["passages"])
        return over(expected, Sizes(CollectionSizes(metrics["passages"], tokens)))


@stage("read_queries", "read_queries:read_queries", version=1, makes="queries")
class ReadQueriesConfig(QueryStageConfig):
    """``path`` is a file, a folder of files or a pattern, plain or .gz."""

    path: Annotated[str, Operational()]  # the content counts, not where it lies
    format: Literal["auto", "jsonl", "tsv", "lines"]
    missing: Literal["error", "skip"]

    def files(self) -> Sequence[Path]:
        """The files, sorted. Raises ``UserError`` where there are none."""
        from condensery.text.queries import query_files  # with Arrow, which takes .3 s

        return query_files(self.path)

    def identity(self) -> list[str]:
        """The content of the files. Raises ``UserError`` where there is none to read, before anything is computed."""
        files = list(self.files())
        look(files)
        return content_hashes(files)


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


@stage("read_sts", "read_sts:read_sts", version=1, makes="sentences")
class ReadStsConfig(SentenceFilesConfig):
    """``root`` is the folder with train.csv, dev.csv and test.csv."""

    each: ClassVar[int] = 2

    def inputs_in(self, root: Path) -> dict[str, InputFile]:
        """See ``SentenceFilesConfig``."""
        return sts_files(root)


@stage("read_triplets", "read_triplets:read_triplets", version=1, makes="sentences")
class ReadTripletsConfig(SentenceFilesConfig):
    """``root`` is the folder with train.csv, validation.csv and test.csv."""

    each: ClassVar[int] = 3

    def inputs_in(self, root: Path) -> dict[str, InputFile]:
        """See ``SentenceFilesConfig``."""
        return triplet_files(root)


@stage("section_triplets", "section_triplets:section_triplets", version=1, makes="sentences")
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


@stage("tokenizer", "tokenizer:tokenizer", version=1, makes="tokenizer")
class TokenizerConfig(StageConfig):
    """``name`` is a hub name or a folder; null trains a WordPiece of ``vocab_size`` entries.

    ``lowercase`` and ``strip_accents`` are those of the trained one; a named tokenizer stays as it is.
    """

    corpus: Annotated[str, Input("corpus")]
    name: str | None
    vocab_size: Annotated[int, Field(ge=100)]
    lowercase: bool
    strip_accents: bool | Literal["latin"]

    def work(self, read: Read) -> Work:
        """Words of all texts are counted where a WordPiece is trained."""
        sizes = known(read)
        if self.name is not None:
            return Work(sizes, seconds=1.0, disk=1e6)
        return Work(replace(sizes, vocabulary=self.vocab_size), seconds=product(3.7e-6, sizes.tokens), disk=2e5)

    def actual_sizes(self, expected: Sizes, metrics: Mapping[str, Any]) -> Sizes:
        """The true size of the vocabulary."""
        return replace(expected, vocabulary=metrics["size"])

    def _folder(self) -> Path | None:
        folder = expanded(self.name) if self.name else None
        return folder if folder is not None and folder.is_dir() else None

    def by_content(self) -> set[str]:
        """The name, where it is a folder; of a named tokenizer a key that came later and changes nothing of it."""
        return ({"name"} if self._folder() else set()) | ({"strip_accents"} if self.name is not None else set())

    def identity(self) -> list[str]:
        """A tokenizer in a folder counts by content, wherever it lies. ``UserError`` where it is not there."""
        check_folder(self.name, "backbone.tokenizer")
        folder = self._folder()
        if folder is None:
            return []
        return content_hashes(sorted(path for path in folder.iterdir() if path.suffix in {".json", ".txt", ".model"}))


@stage("tokens", "tokens:tokens", version=1, makes="tokens")
class TokensConfig(StageConfig):
    """``titles``: passages are read as title [SEP] text."""

    corpus: Annotated[str, Input("corpus")]
    tokenizer: Annotated[str, Input("tokenizer")]
    titles: bool
    workers: Annotated[int, Field(ge=1), Operational()]

    def work(self, read: Read) -> Work:
        """Every text is tokenised once; a token takes two bytes, and four where the vocabulary is larger than 65,536."""
        sizes = known(read)
        texts = product(sizes.collection.passages, sizes.collection.passage_tokens)
        if sizes.collection.documents is not None:
            texts = total([texts, sizes.tokens])
        each = 4.0 if (sizes.vocabulary or 0) > 1 << 16 else 2.0
        return Work(sizes, seconds=product(2.4e-6, texts), disk=product(each, texts))

    def actual_sizes(self, expected: Sizes, metrics: Mapping[str, Any]) -> Sizes:
        """The mean lengths, as they were counted."""
        texts = expected.collection
        counted = CollectionSizes(
            passage_tokens=metrics["passages"] / (texts.passages or 1),
            document_tokens=metrics["documents"] / texts.documents if texts.documents else None,
        )
        return over(expected, Sizes(counted))
