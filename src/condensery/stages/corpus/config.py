"""Configs of the stages that turn a user's files into a collection, passages and token ids."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from annotated_types import Ge

from condensery.models.checkpoints.whole import check_whole
from condensery.ranges import Count
from condensery.stages.base import FromRecipe, Input, Operational, SentenceLanguage, StageConfig
from condensery.stages.checks import check_folder, model_folder, plugin_code
from condensery.stages.registry import stage
from condensery.stages.workload import Read, Sizes, Work, known, over, product, total
from condensery.text.config import FORMATS, DataConfig
from condensery.text.hashes import content_hashes
from condensery.text.sizes import CHARACTERS, HELD_OUT_SHARE, CollectionSizes

FILLED = 0.85  # mean share of a passage's maximum length that whole sentences fill


@stage("corpus", "corpus:corpus", version=1, makes="corpus")
class CorpusConfig(StageConfig):
    """Read the user's files, in any supported format, into a collection on disk."""

    data: Annotated[DataConfig, FromRecipe("data")]
    """the data set to read: the group ``data``"""

    def identity(self) -> list[str]:
        """Return the content hashes of the files that define and read the format of a plugin."""
        return plugin_code(FORMATS[self.data.format])

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
        pairs = {split: one["judgements"] for split, one in metrics["splits"].items()}
        unjudged = metrics["queries"] - sum(queries.values())
        texts = metrics["passages"], tokens, metrics["documents"] or None, None
        return Sizes(over(expected.collection, CollectionSizes(*texts, queries, pairs, unjudged)))

    def _sizes(self) -> CollectionSizes:
        """Return the sizes of the input after some training queries have been set aside.

        Some training queries replace a missing dev split. Others lose their judgements (``unlabelled_queries``).
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
        left = {**dict.fromkeys(sizes.pairs, 1.0), "train": train / sizes.queries["train"]}
        pairs = {split: number * left[split] for split, number in sizes.pairs.items()}
        return replace(sizes, queries={**judged, "train": train}, pairs=pairs, unjudged=unjudged)


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
    sentence_language: SentenceLanguage = "en"
    """language code; abbreviations and ordinals of this language do not end a sentence"""
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
    """the trained WordPiece lowercases text; a named tokenizer is not changed"""
    strip_accents: bool | Literal["latin"] = "latin"
    """accents that the trained WordPiece strips; latin: accents of Latin letters; true: all combining marks, even vowel
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

    def by_content(self) -> set[str]:
        """Return the key ``name`` if it names a folder, and ``strip_accents`` if a tokenizer is named.

        ``strip_accents`` was added later and does not change a named tokenizer, so older ids stay valid.
        """
        named = {"strip_accents"} if self.name is not None else set()
        return named | ({"name"} if model_folder(self.name) else set())

    def identity(self) -> list[str]:
        """Return the content hashes of a tokenizer in a folder. So the artifact id does not depend on the folder's path.

        Raises:
            UserError: the folder does not exist.
        """
        check_folder(self.name, "backbone.name, or backbone.tokenizer if it is set")
        folder = model_folder(self.name)
        if folder is None:
            return []
        named = (path for path in folder.iterdir() if path.name != "manifest.json")
        files = sorted(path for path in named if path.suffix in {".json", ".txt", ".model"})
        check_whole(path for path in files if "tokenizer" in path.name)
        return content_hashes(files)


@stage("tokens", "tokens:tokens", version=1, makes="tokens")
class TokensConfig(StageConfig):
    """Tokenise every text of a collection once, so that other stages read token ids."""

    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    tokenizer: Annotated[str, Input("tokenizer")] = "tokenizer"
    """the stage with the tokenizer"""
    titles: bool = True
    """passages are tokenised as title [SEP] text"""
    sentence_language: SentenceLanguage = "en"
    """language code; abbreviations and ordinals of this language do not end a sentence"""
    workers: Annotated[Count, Operational()] = 2
    """number of worker processes"""

    def work(self, read: Read) -> Work:
        """Estimate the work of tokenising every text once.

        A token takes two bytes on disk, or four if the vocabulary is larger than 65,536.
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
