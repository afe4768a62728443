"""The data module of queries with a teacher's rankings of the passages."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from condensery.errors import UserError
from condensery.ranges import Count, CountOrZero, Length, check_values
from condensery.retrieval.indexes.opening import ranked
from condensery.retrieval.searchers.base import Searcher
from condensery.retrieval.searchers.retriever import Retriever
from condensery.text.words import is_blank
from condensery.tokens.prefixes import Prefixes
from condensery.tokens.text_reader import TextReader
from condensery.training.checkpoint_fingerprint import hashed
from condensery.training.data.data_module import TokenDataModule
from condensery.training.data.ranking_batches import RankingBatches


class RankingDataModule(TokenDataModule):
    """The data for training a query tower: queries, a teacher's rankings of passages, and frozen passage vectors.

    Passage vectors are frozen as in ADORE (Zhan et al. 2021, §4.2). The queries need no relevance judgements. They can be
    titles or sentences of the passages, or questions of users. ``QueryTowerModule`` trains on this data module, starting
    from the checkpoint of the student.

    Args:
        queries: list of query texts.
        student: a retriever that has indexed the passages. Its passage vectors, tokenizer, prefixes and lengths are used.
        teacher: a better searcher, such as ``Fused([BM25().index(passages), student], [0.6, 0.4])``, that has indexed the
            same passages. It ranks passages for each query once, in ``setup``.
        depth: number of passages that the teacher ranks per query.
        batch_size: number of queries per step.
        query_length: maximum query length in tokens in training, [CLS] and [SEP] included; at most the student's maximum.
        chunk_tokens: maximum number of tokens in a chunk, padding included; gradients are accumulated over chunks.
        seed: seed of the order.
        workers: number of processes that make batches, and that tokenise; 0 = the training process does both. With 1 or
            more, the program must be guarded by ``if __name__ == "__main__":``.

    Raises:
        UserError: a number is out of its range; a query is not a string or is blank; the student has no indexed passages, or
            several windows per passage; the teacher has indexed other passages; or student or teacher has the wrong type.

    Attributes:
        pairs: kind of the batches, as the argument ``pairs`` of ``SpanPairDataModule``; here always ``ranking``.
    """

    pairs = "ranking"

    def __init__(
        self,
        queries: Sequence[str],
        student: Retriever,
        teacher: Searcher,
        *,
        depth: Count = 100,
        batch_size: Count = 64,
        query_length: Length = 64,
        chunk_tokens: Count = 4096,
        seed: CountOrZero = 42,
        workers: CountOrZero = 0,
    ) -> None:
        check_values(RankingDataModule, locals())
        queries = [] if isinstance(queries, str) or not isinstance(queries, Iterable) else list(queries)
        if not queries:
            raise UserError("RankingDataModule: `queries` must be a list with at least one text")
        for number, query in enumerate(queries):
            if not isinstance(query, str) or is_blank(query):
                raise UserError(f"RankingDataModule: queries[{number}] is not a text, or is blank; leave it out")
        if student.windows > 1:
            raise UserError(
                f"RankingDataModule: the student has up to {student.windows} vectors per passage; make it with windows=1"
            )
        if not len(student):
            raise UserError("RankingDataModule: the student has indexed nothing; call its index(passages) first")
        if teacher.content_hash != student.content_hash:
            raise UserError(
                f"RankingDataModule: the teacher has indexed other passages ({len(teacher):,}) than the student"
                f" ({len(student):,}); call index() of both with the same passages"
            )
        self.queries = queries
        super().__init__(self.queries, student.tokenizer, titles=False, workers=workers)
        self.student, self.teacher, self.depth, self.batch_size = student, teacher, depth, batch_size
        self.query_length, self.chunk_tokens, self.seed = min(query_length, student.query_length), chunk_tokens, seed
        self._learned: dict[str, str] = {}

    @property
    def lengths(self) -> tuple[int, int]:
        """The student's maximum query length and passage length in tokens, [CLS] and [SEP] included."""
        return self.student.query_length, self.student.passage_length

    def make_batches(self) -> RankingBatches:
        """Rank passages for all queries with the teacher, and return the object that makes the batches."""
        named = {"passages": self.student.content_hash, "student": self.student.identity()}
        named["teacher"] = self.teacher.identity()
        self._learned = {name: hashed(text.encode()) for name, text in named.items()}
        lengths, prefix = (self.query_length, self.student.passage_length), self.student.model.settings.query_prefix
        before = Prefixes.of(self.tokenizer_folder, prefix, "", lengths).query
        return RankingBatches(
            TextReader(self.tokens.passages, self.vocabulary, self.query_length, prefix=before),
            np.arange(len(self.queries)),
            ranked(self.teacher.rank, self.queries, min(self.depth, len(self.teacher)), "teacher"),
            partial(np.take, self.student.passage_vectors, axis=0),
            batch_size=self.batch_size,
            budget=self.chunk_tokens,
            seed=self.seed,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state of ``StepDataModule``, with hashes that identify passages, student and teacher."""
        return super().state_dict() | self._learned
