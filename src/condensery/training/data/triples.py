"""The data module for fine-tuning: judged queries, each with a positive and hard negatives."""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError, shown
from condensery.models.cross_encoder import pair_separators
from condensery.ranges import Count, CountOrZero, Finite, Length, PositiveShare, Weight, check_values, fault, no_room
from condensery.retrieval.mining import mined
from condensery.retrieval.negative_pool import NegativePool
from condensery.retrieval.negatives import Negatives, open_negatives, read_negatives
from condensery.retrieval.no_negatives import NoNegatives
from condensery.retrieval.pair_scores import PairScores, TeacherScores
from condensery.retrieval.positive_aware import Below
from condensery.retrieval.relabelled import Relabelled, read_relabelled
from condensery.retrieval.searchers.base import Searcher, SearcherIndex, hash_of_passages, numbered
from condensery.retrieval.searchers.bm25 import BM25
from condensery.retrieval.searchers.reranked import Predict, Predicting
from condensery.retrieval.searchers.retriever import Retriever
from condensery.retrieval.teachers import taught_by
from condensery.system.cache import cached
from condensery.system.files import expanded, load_array
from condensery.text.collection import Collection
from condensery.text.sheets import filled_sheets
from condensery.text.to_collection import Given, collection_of
from condensery.text.words import is_blank
from condensery.tokens.artifacts import Tokens, pair_reader
from condensery.training.data.data_module import TokenDataModule
from condensery.training.data.list_batches import ListBatches
from condensery.training.data.steps import Order
from condensery.training.data.teaching import coverage
from condensery.training.data.training_queries import TextQueries, TrainingQueries, judged_queries, rows_of
from condensery.training.data.triple_batches import TripleBatches
from condensery.training.dev_passages import apart_from_dev
from condensery.training.validation import PairSample, ValidationSample, pair_sample

Mined = Searcher | type[BM25] | str | Path | Negatives
Scored = str | Path | PairScores | Mapping[str, Mapping[str, float]]
Taught = Searcher | type[BM25] | Predicting | Predict | Scored


class TripleDataModule(TokenDataModule):
    """The data of fine-tuning: queries, each with one positive and hard negatives (Karpukhin et al. 2020).

    A bi-encoder reads queries and passages separately. A cross-encoder (``pairs``) reads a query and a passage together.

    As in Karpukhin et al. 2020 (§3.2), the negatives of a query are its hard negatives and the passages of the other
    queries in the batch.

    Args:
        data: a folder (in the BEIR layout, of documents, or of plain text), a list of texts, a ``Collection``, or ``Tokens``.
        tokenizer: folder or hub name of the tokenizer; not needed if ``data`` is ``Tokens``.
        split: split whose judged queries are trained on; validation uses the split ``dev``, if there is one.
        negatives: source of the hard negatives: ``BM25`` or a ``Retriever``, which mines them in ``prepare_data``; a file
            or folder of negatives; or a sequence of these. Passages that are excluded as negatives of the query
            (``NoNegatives``) are never drawn. None = only the passages of the other queries are negatives.
        negatives_per_query: number of hard negatives drawn each time that a query is seen.
        mining_depth: number of negatives mined per query; the hard negatives are drawn from these.
        below_share: keep only mined passages that score below this share of the positive's score, such as 0.95
            (positive-aware mining, see ``Below``); None = no such limit.
        below_margin: keep only mined passages that score below the positive's score minus this margin; None = no such limit.
        below_score: keep only mined passages that score below this value; None = no such limit.
        relabel: filled annotation sheets of the stage ``audit_negatives``, a folder or files; passages that annotators judged
            relevant there become positives.
        train_queries: number of queries to train on, drawn by the seed; None = all queries.
        each_positive: True = a query comes once per epoch for each of its positives, as in sentence-transformers. False = a
            query comes once per epoch, with a newly drawn positive.
        leave_out_dev_passages: leave out the queries that share a relevant passage with a dev query.
        batch_size: number of queries per step.
        query_length: maximum query length in tokens, [CLS] and [SEP] included.
        passage_length: maximum passage length in tokens, [CLS] and [SEP] included.
        titles: True = passages are read as title [SEP] text.
        pairs: True = each input is a query and a passage, together at most ``passage_length`` tokens, for
            ``CrossEncoderModule``.
        chunk_tokens: maximum number of tokens in a chunk, padding included; gradients are accumulated over chunks.
        seed: seed of the order, and of the drawn positives and negatives.
        workers: number of processes that make batches, and that tokenise; 0 = the training process does both. With 1 or
            more, the program must be guarded by ``if __name__ == "__main__":``.
        teacher: source of the scores of positives and hard negatives, for distillation (the losses margin_mse and kl). A
            model is ``BM25``, a ``Retriever``, an object with ``predict`` such as sentence-transformers' ``CrossEncoder``,
            or a function. ``predict`` and the function take a list of pairs (query text, passage text) and return one
            number per pair. Existing scores are a file (``read_pair_scores``), a mapping query id -> passage id -> score,
            or ``PairScores``. None = no teacher.
        in_batch_teacher: ``BM25`` or a ``Retriever``, which scores each query with every passage of its batch (Lin et al.
            2020). It indexes the passages in each process. None = no such teacher.
        text_queries: pairs of a query that was built from a passage, such as the passage's title, and the passage's id.
            They are trained on in addition to the judged queries, each with its own passage as positive (``TextQueries``).
            None = no such queries.
        text_batch_size: number of ``text_queries`` per step.
        shared_negatives: number of passages that are drawn from the whole collection in each step and are negatives of all
            queries of the step; needs a ``student``.
        student: a retriever whose passage vectors are used and stay frozen, while
            ``BiEncoderModule(train_passages=False)`` trains the query tower. The student's prefixes and passage length are
            used, too. The passages are indexed if the student has not indexed them. None = passages are encoded.
        training: the queries with their positives and negatives, in place of ``split`` and ``negatives``.
        order: function that returns the epoch and the queries of a step; None = all queries, in a new random order each
            epoch.
        query_prefix: string put before each query, such as E5's "query: "; the encoder must have the same prefix, see
            ``TowersModule``. With ``pairs`` there is no prefix.
        passage_prefix: string put before each passage, and before the passage's title.

    Raises:
        UserError: a number is out of its range, or with ``pairs`` the query leaves no room for a passage; see also
            ``TokenDataModule``.
    """

    def __init__(
        self,
        data: Given | Tokens,
        tokenizer: str | Path | None = None,
        *,
        split: str = "train",
        negatives: Mined | Sequence[Mined] | None = None,
        negatives_per_query: CountOrZero = 7,
        mining_depth: Count = 200,
        below_share: PositiveShare | None = None,
        below_margin: Weight | None = None,
        below_score: Finite | None = None,
        relabel: str | Path | Sequence[str | Path] | None = None,
        train_queries: Count | None = None,
        each_positive: bool = False,
        leave_out_dev_passages: bool = False,
        batch_size: Count = 8,
        query_length: Length = 32,
        passage_length: Length = 128,
        titles: bool = True,
        pairs: bool = False,
        chunk_tokens: Count = 2048,
        seed: CountOrZero = 42,
        workers: CountOrZero = 0,
        teacher: Taught | None = None,
        in_batch_teacher: Searcher | type[BM25] | None = None,
        text_queries: Sequence[tuple[str, str]] | None = None,
        text_batch_size: Count = 48,
        shared_negatives: CountOrZero = 0,
        student: Retriever | None = None,
        training: TrainingQueries | None = None,
        order: Order | None = None,
        query_prefix: str = "",
        passage_prefix: str = "",
    ) -> None:
        check_values(TripleDataModule, locals())
        if pairs and (wrong := no_room(query_length, passage_length, "passage_length")):
            raise UserError(f"TripleDataModule: {wrong}")
        if teacher is not None and (pairs or training is not None):
            where = "a cross-encoder (pairs) takes no teacher" if pairs else "put it into `training`, which is given"
            raise UserError(f"TripleDataModule: leave out `teacher`: {where}")
        if in_batch_teacher is not None and (pairs or workers or isinstance(data, Tokens)):
            raise UserError("TripleDataModule: in_batch_teacher needs texts as `data`, workers=0, and no `pairs`")
        if student is not None:
            if pairs or student.windows > 1:
                raise UserError("TripleDataModule: `student` must be a Retriever with windows=1, and excludes `pairs`")
            settings = student.model.settings
            query_prefix, passage_prefix = settings.query_prefix, settings.passage_prefix
            passage_length, tokenizer = student.passage_length, tokenizer or student.tokenizer
        super().__init__(data, tokenizer, titles, workers)
        if shared_negatives and student is None:
            raise UserError("TripleDataModule: shared_negatives needs the vectors of a `student`; give one")
        self.student, self.text_batch_size, self.shared_negatives = student, text_batch_size, shared_negatives
        self.text_queries = _checked(text_queries, pairs)
        given: Any = [] if negatives is None else negatives
        self.negatives: list[Any] = [*given] if isinstance(given, list | tuple) else [given]
        for one in self.negatives:
            if fault(Mined, one):
                raise UserError(f"TripleDataModule: negatives: give BM25, a Retriever or files, not {shown(repr(one))}")
        self.below = Below(below_share, below_margin, below_score)
        self.relabel = [] if relabel is None else filled_sheets(relabel, "relabel")
        self.split, self.mining_depth, self.train_queries = split, mining_depth, train_queries
        self.each_positive, self.leave_out_dev_passages = each_positive, leave_out_dev_passages
        self.negatives_per_query = negatives_per_query if self.negatives or training else 0
        self.batch_size, self.query_length, self.passage_length = batch_size, query_length, passage_length
        self.pairs, self.chunk_tokens, self.seed = pairs, chunk_tokens, seed
        self.training, self.order, self.teacher, self.in_batch_teacher = training, order, teacher, in_batch_teacher
        self._taught: PairScores | None = None
        self.query_prefix, self.passage_prefix = query_prefix, passage_prefix

    @property
    def lengths(self) -> tuple[int, int]:
        """Maximum query length and passage length (with ``pairs``: pair length) in tokens, [CLS] and [SEP] included."""
        return self.query_length, self.passage_length

    def prepare_data(self) -> None:
        """Read, tokenise, encode, mine and score all that is not cached. Lightning calls this in one process per machine."""
        super().prepare_data()
        if self.student is not None:
            self._vectors(self.student)
        if self.teacher is None or self._collection is None:
            self._sources()
        else:
            self._judged()

    def make_batches(self) -> TripleBatches | ListBatches:
        """Return the object that makes the batches: ``TripleBatches``, or ``ListBatches`` if ``pairs`` is true."""
        if self.training is None:
            self.training = self._judged()
        triples = TripleBatches(
            self.readers,
            self.training,
            batch_size=self.batch_size,
            negatives=self.negatives_per_query,
            budget=self.chunk_tokens,
            seed=self.seed,
            order=self.order,
            shared_negatives=self.shared_negatives,
            text_queries=self._of_text(self.text_queries) if self.text_queries else None,
            vectors=None if self.student is None else partial(np.take, self._vectors(self.student), axis=0),
        )
        if self.in_batch_teacher is not None and self._collection is not None:
            triples.in_batch_teacher = SearcherIndex.of(self.in_batch_teacher, self._collection).score
        if not self.pairs:
            return triples
        assert self.tokenizer_folder is not None
        separators = pair_separators(self.tokenizer_folder)
        return ListBatches(triples, pair_reader(self.tokens, self.query_length, self.passage_length, separators))

    def validation_sample(self) -> ValidationSample | PairSample | None:
        """Return a few dev queries with passages; a ``PairSample`` if ``pairs`` is true. Without dev queries, return None."""
        if not self.pairs:
            return super().validation_sample()
        assert isinstance(self.batches, ListBatches)
        return None if self._collection is None else pair_sample(self._collection, self.batches.reader, 100, 2000)

    def _of_text(self, pairs: Sequence[tuple[str, str]]) -> TextQueries:
        if self._collection is None:
            raise UserError(
                "TripleDataModule: text_queries needs the ids of passages, which Tokens lack; give texts as `data`"
            )
        rows = {name: row for row, name in enumerate(self._collection.passages.column("id"))}
        if unknown := [name for _, name in pairs if name not in rows]:
            raise UserError(f"TripleDataModule: text_queries: no passage has the id {shown(str(unknown[0]))!r}")
        texts, own = [text for text, _ in pairs], np.array([rows[name] for _, name in pairs])
        tokens = self._tokens_of(collection_of(texts)).passages
        return TextQueries.of(texts, tokens, np.arange(len(pairs)), own, self._collection, self.text_batch_size)

    def _vectors(self, student: Retriever) -> NDArray[np.float32]:
        """Return the student's vectors (P, d) of the P passages of the collection."""
        if self._collection is None:
            raise UserError("TripleDataModule: `student` needs texts, which Tokens lack; give texts as `data`")
        ids, titles, texts = (self._collection.passages.column(name) for name in ("id", "title", "text"))
        known = hash_of_passages(ids, titles, texts)
        if len(student) and student.content_hash == known:
            return student.passage_vectors

        def make(folder: Path) -> None:
            np.save(folder / "vectors.npy", copy(student).index(numbered(titles, texts)).passage_vectors)

        return load_array(cached("passage_vectors", f"{known} {student.identity()}", make) / "vectors.npy", mapped=True)

    def _judged(self) -> TrainingQueries:
        if self._collection is None:
            raise UserError("TripleDataModule: `data` is Tokens, which have no judgements; give them as `training`")
        judged = judged_queries(self._collection, self.split, self.train_queries, self.seed)
        positives = self._relabelled(self._collection).added_to(judged)
        if self.leave_out_dev_passages:
            positives = apart_from_dev(positives, self._collection, "TripleDataModule: leave_out_dev_passages")
        each, rows = self.each_positive, rows_of(positives, self.each_positive)
        known, sources = NoNegatives.of(self._collection, positives), self._sources()
        training = TrainingQueries.of(positives, NegativePool(sources, rows), known=known, each=each)
        if self.teacher is None:
            return training
        self._taught = self._taught or taught_by(self.teacher, self._collection, positives, sources)
        training = replace(training, teacher=TeacherScores([self._taught], rows))
        if not coverage(training)[0]:
            raise UserError("TripleDataModule: `teacher` has no score of any positive or hard negative; give another")
        return training

    def _sources(self) -> list[Negatives]:
        collection = self._collection
        return [] if collection is None else [self._source(one, collection) for one in self.negatives]

    def _source(self, source: Any, collection: Collection) -> Negatives:
        if isinstance(source, Negatives):
            return source
        if isinstance(source, str | Path):
            path = expanded(source)
            return open_negatives(path, collection) if path.is_dir() else read_negatives(path, collection)
        searcher = source() if isinstance(source, type) else source
        return mined(searcher, collection, self.split, self.mining_depth, self.below, self._relabelled(collection))

    def _relabelled(self, collection: Collection) -> Relabelled:
        return read_relabelled(self.relabel, collection, self.split)


def _checked(text_queries: Sequence[tuple[str, str]] | None, pairs: bool) -> list[tuple[str, str]]:
    """Return ``text_queries`` as a list. Raises ``UserError`` if a query is blank, or if ``pairs`` is true."""
    made = list(text_queries) if isinstance(text_queries, Iterable) else [] if text_queries is None else [text_queries]
    if made and pairs:
        raise UserError("TripleDataModule: leave out `text_queries`: a cross-encoder (pairs) does not use them")
    for number, one in enumerate(made):
        if not isinstance(one, list | tuple) or len(one) != 2 or not isinstance(one[0], str) or is_blank(one[0]):
            raise UserError(f"TripleDataModule: text_queries[{number}] must be a text and an id; correct or remove it")
    return made
