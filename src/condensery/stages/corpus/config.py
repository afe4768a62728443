"""Configs of the stages that turn a user's files into passages, queries, sentences and token ids."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from annotated_types import Ge, Gt, Le, Lt
from pydantic import Field, model_validator

from condensery.models.flops import T5_BASE, Step
from condensery.ranges import Count, CountOrZero, PositiveShare
from condensery.stages.base import FromRecipe, Input, Operational, Precision, Seed, StageConfig
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

WRITTEN = 12.0  # mean tokens of a generated query

FILLED = 0.85  # share of a passage's length that whole sentences fill

SENTENCE = 25.0  # mean tokens of a sentence of Wikipedia

Part = Annotated[float, Gt(0), Lt(1)]


@stage("corpus", "corpus:corpus", version=1, makes="corpus")
class CorpusConfig(StageConfig):
    """Read the user's files, in any supported format, into a collection on disk."""

    data: Annotated[DataConfig, FromRecipe("data")]
    """the data set to read: the group ``data``"""

    def work(self, read: Read) -> Work:
        """Estimate the work from the size of the input; the artifact holds one copy of the text."""
        sizes = Sizes(self._sizes())
        texts = total([sizes.tokens, product(sizes.collection.passages, sizes.collection.passage_tokens)])
        if sizes.collection.documents is None:
            texts = sizes.tokens
        return Work(sizes, seconds=sizes.collection.reading, disk=product(1.15 * CHARACTERS, texts))

    def actual_sizes(self, expected: Sizes, metrics: Mapping[str, Any]) -> Sizes:
        """Return the counted numbers of passages, separate documents and judged queries."""
        tokens = metrics["passage_characters"] / CHARACTERS / max(1, metrics["passages"])
        queries = {split: one["queries"] for split, one in metrics["splits"].items()}
        unjudged = metrics["queries"] - sum(queries.values())
        counted = CollectionSizes(metrics["passages"], tokens, metrics["documents"] or None, None, queries, unjudged)
        return Sizes(over(expected.collection, counted))

    def _sizes(self) -> CollectionSizes:
        """Return the sizes of the input after some training queries have been set aside.

        If the input has no dev split, some training queries become the dev split. Others may lose their judgements.
        """
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
    """Shared keys of the stages that make queries for passages."""

    passages: Annotated[str, Input("passages")] = "passages"
    """the stage with the passages"""
    tokenizer: Annotated[str, Input("tokenizer")] = "tokenizer"
    """the stage with the tokenizer of the passages, which also tokenises the queries"""

    def work(self, read: Read) -> Work:
        """Estimate the work of reading a few queries per passage from files, or of extracting them from the passage."""
        sizes = known(read)
        passages = sizes.collection.passages
        return Work(sizes, seconds=product(1e-4, passages), disk=product(100.0, passages))


@stage("extract_queries", "extract_queries:extract_queries", version=1, makes="queries")
class ExtractQueriesConfig(QueryStageConfig):
    """Extract the queries of each passage from the passage itself, without a model: the baseline for generated queries.

    With ``remove``, two kinds of passages have no query: those of a single sentence, and those whose token ids do not show
    where a sentence ends.
    """

    kind: Literal["sentence", "title", "both"] = "sentence"
    """sentence: the passage's sentences with the highest mean idf of their words; title: the passage's title; both:
    sentences and a title that no other passage has"""
    number: Count = 1
    """maximum number of sentences per passage (kind: sentence or both)"""
    minimum_words: Count = 4
    """minimum words of a sentence that becomes a query (kind: sentence or both)"""
    maximum_words: Count = 40
    """maximum words of a sentence that becomes a query (kind: sentence or both)"""
    remove: bool = False
    """remove the sentence from its passage in training; a passage of a single sentence then has no query"""

    @model_validator(mode="after")
    def _some_length_fits(self) -> Self:
        if self.minimum_words > self.maximum_words:
            raise ValueError("minimum_words is more than maximum_words")
        return self


@stage("generate_queries", "generate_queries:generate_queries", version=1, makes="queries", together="several_shards")
class GenerateQueriesConfig(QueryStageConfig):
    """Generate queries for each passage with a sequence-to-sequence model, by top-k and nucleus sampling (doc2query)."""

    model: str | None = "doc2query/all-with_prefix-t5-base-v1"
    """hub name or folder of the generator; null: use that of ``generator``"""
    revision: str | None = None
    """commit, tag or branch of the model on the Hugging Face hub"""
    generator: Annotated[str | None, Input("generator")] = None
    """the stage that trains the generator (finetune_generator); null: use ``model``"""
    prefix: str = "text2query: "
    """string put before each passage; must equal the prefix in the generator's training; '' for castorini's doc2query
    models, which read the bare passage"""
    titles: bool = True
    """the generator reads a passage's title, if there is one, before the text"""
    number: Annotated[int, Ge(1), Le(1 << 20)] = 5
    """queries per passage; the first n stay the same if the number is changed"""
    top_k: CountOrZero = 25
    """top-k sampling: number of most probable tokens that are sampled from; 0: all"""
    top_p: PositiveShare = 0.95
    """nucleus sampling: cumulative probability of the tokens that are sampled from"""
    max_tokens: Count = 64
    """maximum tokens of a query"""
    max_input_tokens: Annotated[int, Ge(8)] = 384
    """maximum tokens of prefix, title and passage; a longer input is truncated"""
    batch_size: Count = 32
    """passages per batch; another batch size may change a query, because logits are rounded differently"""
    precision: Precision
    """numeric precision of the weights and of computation: fp32, bf16 or fp16"""
    seed: Seed
    """random seed of sampling"""
    shard_size: Annotated[Count, Operational()] = 512
    """approximate passages per shard file; devices divide the shards among themselves, and a restart keeps complete shards"""

    @model_validator(mode="after")
    def _one_generator(self) -> Self:
        if (self.model is None) == (self.generator is None):
            raise ValueError("give either model or generator, and set the other to null")
        return self

    def work(self, read: Read) -> Work:
        """Estimate the work: each passage is read once, and each query is generated token by token.

        A ``model`` is assumed to have the size of T5-base. Token-by-token generation stays far below a GPU's throughput for
        large matrix products, so the time shown is a lower bound.
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
        """Return the key ``model`` where it names a folder, whose content enters the id instead of its path."""
        return {"model"} if self._folder() else set()

    def identity(self) -> list[str]:
        """Return the content hashes of a model in a folder, so that the place of the folder does not matter.

        Raises:
            UserError: the folder does not exist, or holds no checkpoint.
        """
        check_checkpoint(self.model, "stage.generate_queries.model")
        folder = self._folder()
        return content_hashes(sorted(path for path in folder.iterdir() if path.is_file())) if folder else []


@stage("passages", "passages:passages", version=1, makes="passages")
class PassagesConfig(StageConfig):
    """Split documents into passages, for which queries can then be made (query-as-context pre-training)."""

    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    tokenizer: Annotated[str, Input("tokenizer")] = "tokenizer"
    """the stage with the tokenizer"""
    grouping: Literal["sentences", "collection"] = "sentences"
    """sentences: a passage is as many sentences of a document as fit into ``length``; collection: the collection's own
    passages, of any length"""
    length: Annotated[int, Ge(16)] = 144
    """maximum tokens of a passage, including [CLS], [SEP] and the title with its [SEP] (grouping: sentences)"""
    titles: bool = True
    """a passage is tokenised as title [SEP] text; false: titles are dropped"""
    workers: Annotated[Count, Operational()] = 2
    """number of worker processes"""

    def work(self, read: Read) -> Work:
        """Estimate the work of splitting documents into sentences, grouping these, and writing texts and token ids."""
        sizes = known(read)
        texts = sizes.collection
        if self.grouping == "sentences" and sizes.tokens is not None and sizes.text_tokens is not None:
            each = min(sizes.text_tokens, FILLED * (self.length - 2))
            texts = replace(texts, passages=sizes.tokens / each, passage_tokens=each)
        written = product(texts.passages, texts.passage_tokens)
        return Work(replace(sizes, collection=texts), seconds=product(6e-6, written), disk=product(7.0, written))

    def actual_sizes(self, expected: Sizes, metrics: Mapping[str, Any]) -> Sizes:
        """Return the counted passages and their mean length."""
        tokens = metrics["tokens_of_texts"] / max(1, metrics["passages"])
        return over(expected, Sizes(CollectionSizes(metrics["passages"], tokens)))


@stage("read_queries", "queries:read_queries", version=1, makes="queries")
class ReadQueriesConfig(QueryStageConfig):
    """Read existing queries for the passages from files (plain or .gz)."""

    path: Annotated[str, Operational()]  # the content enters the id, the path does not
    """a file, a folder of files, or a glob pattern such as queries/*.jsonl.gz"""
    format: Literal["auto", "jsonl", "tsv", "lines"] = "auto"
    """jsonl: {"id", "queries"}; tsv: passage id, tab, query; lines: line i of every file is for passage i; auto:
    detected from the files"""
    missing: Literal["error", "skip"] = "error"
    """a passage without a query: error raises an error; skip leaves the passage out of training"""

    def files(self) -> Sequence[Path]:
        """Return the paths of the files, sorted. Raises ``UserError`` where there are none."""
        from condensery.text.queries import query_files  # imports Arrow, which takes .3 s

        return query_files(self.path)

    def identity(self) -> list[str]:
        """Return the content hashes of the files.

        Raises:
            UserError: a file is missing or unreadable; this is checked before anything is computed.
        """
        files = list(self.files())
        look(files)
        return content_hashes(files)


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

    root: Annotated[str, Field(min_length=1), Operational()]  # the content enters the id, the path does not
    """the folder that contains the files"""
    each: ClassVar[int]  # sentences per example

    def inputs_in(self, root: Path) -> dict[str, InputFile]:
        """Return the input file of each split."""
        raise NotImplementedError

    def files(self) -> dict[str, Path]:
        """Return the path of each split's file. Raises ``UserError`` where a file is missing."""
        return {split: file.open_path() for split, file in self.inputs_in(expanded(self.root)).items()}

    def identity(self) -> list[str]:
        """Return the content hashes of the files.

        Raises:
            UserError: a file is missing or unreadable; this is checked before anything is computed.
        """
        files = list(self.files().values())
        look(files)
        return content_hashes(files)

    def work(self, read: Read) -> Work:
        """Estimate the work: each line of the files is an example."""
        return self.making(read, counted_examples(self.inputs_in(expanded(self.root)), self.each))


@stage("read_sts", "sentences:read_sts", version=1, makes="sentences")
class ReadStsConfig(SentenceFilesConfig):
    """Read the pairs and scores of the STS benchmark.

    The files are train.csv, dev.csv and test.csv, with the columns sentence1,sentence2,score.
    """

    each: ClassVar[int] = 2

    def inputs_in(self, root: Path) -> dict[str, InputFile]:
        """Return the input file of each split."""
        return sts_files(root)


@stage("read_triplets", "sentences:read_triplets", version=1, makes="sentences")
class ReadTripletsConfig(SentenceFilesConfig):
    """Read triplets of sentences in the format of Ein Dor et al. (2018), in place of the stage section_triplets.

    The files are train.csv, validation.csv and test.csv (wikipedia-sections-triplets.zip), plain or .gz.
    """

    each: ClassVar[int] = 3

    def inputs_in(self, root: Path) -> dict[str, InputFile]:
        """Return the input file of each split."""
        return triplet_files(root)


@stage("section_triplets", "sentences:section_triplets", version=1, makes="sentences")
class SectionTripletsConfig(SentenceStageConfig):
    """Sample triplets of sentences from articles: two sentences of one section, and one of another section."""

    path: Annotated[str, Field(min_length=1), Operational()]  # the content enters the id, the path does not
    """a file of documents with headings, plain or .gz"""
    dev_share: Part = 0.05
    """share of the articles, chosen by their ids, that form the split dev"""
    test_share: Part = 0.1
    """share of the articles that form the split test"""
    per_article: Count = 20
    """maximum number of triplets per article"""
    minimum_words: Count = 5
    """minimum words of a sentence; a shorter one is left out"""
    seed: CountOrZero = 1
    """random seed of splits and triplets; not the recipe's ``seed``, so that all training seeds get the same task"""

    @model_validator(mode="after")
    def _something_to_train_on(self) -> Self:
        if self.dev_share + self.test_share >= 1:
            raise ValueError("dev_share and test_share leave no article to train on")
        return self

    def _input(self) -> InputFile:
        hint = ', one JSON object a line: {"_id", "title", "passages": [...], "headings": [...]}'
        return InputFile("file of articles", expanded(self.path), hint)

    def file(self) -> Path:
        """Return the path of the file, plain or .gz. Raises ``UserError`` where the file is missing."""
        return self._input().open_path()

    def work(self, read: Read) -> Work:
        """Estimate the work: each line of the file is an article, with at most ``per_article`` triplets."""
        articles = counted_examples({"all": self._input()}, 1)
        if articles is None:
            return self.making(read, None)
        dev, test = self.dev_share, self.test_share
        number = self.per_article * articles.examples["all"]
        examples = {"train": (1 - dev - test) * number, "dev": dev * number, "test": test * number}
        return self.making(read, SentenceSizes(examples, 3, SENTENCE, articles.reading))

    def identity(self) -> list[str]:
        """Return the content hash of the file.

        Raises:
            UserError: the file is missing or unreadable; this is checked before anything is computed.
        """
        file = self.file()
        look([file])
        return content_hashes([file])


@stage("tokenizer", "tokenizer:tokenizer", version=1, makes="tokenizer")
class TokenizerConfig(StageConfig):
    """Load a named tokenizer, or train a WordPiece tokenizer on the collection."""

    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the text that a WordPiece is trained on"""
    name: Annotated[str | None, FromRecipe("backbone.tokenizer")]
    """hub name or folder of a tokenizer; null: train a WordPiece"""
    vocab_size: Annotated[int, Ge(100), FromRecipe("backbone.vocab_size")]
    """vocabulary size of the trained WordPiece"""
    lowercase: bool = True
    """the trained WordPiece lowercases text; a named tokenizer stays as it is"""
    strip_accents: bool | Literal["latin"] = "latin"
    """accents that the trained WordPiece strips. latin: those of Latin letters; true: all combining marks, also vowel
    signs; false: none"""

    def work(self, read: Read) -> Work:
        """Estimate the work of training a WordPiece, which counts the words of all texts."""
        sizes = known(read)
        if self.name is not None:
            return Work(sizes, seconds=1.0, disk=1e6)
        return Work(replace(sizes, vocabulary=self.vocab_size), seconds=product(3.7e-6, sizes.tokens), disk=2e5)

    def actual_sizes(self, expected: Sizes, metrics: Mapping[str, Any]) -> Sizes:
        """Return the sizes with the actual size of the vocabulary."""
        return replace(expected, vocabulary=metrics["size"])

    def _folder(self) -> Path | None:
        folder = expanded(self.name) if self.name else None
        return folder if folder is not None and folder.is_dir() else None

    def by_content(self) -> set[str]:
        """Return the key ``name`` where it names a folder, and ``strip_accents`` where a tokenizer is named.

        ``strip_accents`` was added later and does not change a named tokenizer, so older ids stay valid.
        """
        return ({"name"} if self._folder() else set()) | ({"strip_accents"} if self.name is not None else set())

    def identity(self) -> list[str]:
        """Return the content hashes of a tokenizer in a folder, so that the place of the folder does not matter.

        Raises:
            UserError: the folder does not exist.
        """
        check_folder(self.name, "backbone.tokenizer")
        folder = self._folder()
        if folder is None:
            return []
        return content_hashes(sorted(path for path in folder.iterdir() if path.suffix in {".json", ".txt", ".model"}))


@stage("tokens", "tokens:tokens", version=1, makes="tokens")
class TokensConfig(StageConfig):
    """Tokenise every text of a collection once, so that other stages read token ids."""

    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    tokenizer: Annotated[str, Input("tokenizer")] = "tokenizer"
    """the stage with the tokenizer"""
    titles: bool = True
    """passages are tokenised as title [SEP] text"""
    workers: Annotated[Count, Operational()] = 2
    """number of worker processes"""

    def work(self, read: Read) -> Work:
        """Estimate the work of tokenising every text once.

        A token takes two bytes on disk, or four where the vocabulary is larger than 65,536.
        """
        sizes = known(read)
        texts = product(sizes.collection.passages, sizes.collection.passage_tokens)
        if sizes.collection.documents is not None:
            texts = total([texts, sizes.tokens])
        each = 4.0 if (sizes.vocabulary or 0) > 1 << 16 else 2.0
        return Work(sizes, seconds=product(2.4e-6, texts), disk=product(each, texts))

    def actual_sizes(self, expected: Sizes, metrics: Mapping[str, Any]) -> Sizes:
        """Return the sizes with the counted mean lengths."""
        texts = expected.collection
        counted = CollectionSizes(
            passage_tokens=metrics["passages"] / (texts.passages or 1),
            document_tokens=metrics["documents"] / texts.documents if texts.documents else None,
        )
        return over(expected, Sizes(counted))
