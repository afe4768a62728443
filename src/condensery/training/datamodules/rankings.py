"""Queries with what a teacher ranks for them."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from condensery.arguments import check_numbers
from condensery.errors import UserError
from condensery.retrieval.dense_searcher import Retriever
from condensery.retrieval.free_texts import ranked
from condensery.retrieval.searcher import Searcher
from condensery.text.blank import is_blank
from condensery.tokens.prefixes import Prefixes
from condensery.training.batches.rankings import RankingBatches
from condensery.training.datamodules.steps import TokenDataModule
from condensery.training.fingerprint import hashed


class RankingDataModule(TokenDataModule):
    """Queries, and the passages that a teacher ranks for each, whose vectors are frozen (Zhan et al. 2021, §4.2).

    No query need be judged: titles, sentences of the passages or what people have asked will do. ``QueryTowerModule`` is
    trained on them, from the checkpoint of the student.

    Args:
        queries: texts.
        student: has indexed the passages; its vectors of them, its tokenizer, prefixes and lengths are taken.
        teacher: ranks better, such as ``Fused([BM25().index(passages), student], [0.6, 0.4])``; has indexed the same
            passages. It is asked each query once, in ``setup``.
        depth: passages that the teacher ranks for a query.
        batch_size: queries a step.
        query_length: longest query in tokens while training, [CLS] and [SEP] included; at most that of the student.
        chunk_tokens: padded tokens that are in memory together; a larger batch is accumulated.
        seed: of the order.
        workers: processes that make batches, and that tokenise; 0 = none besides the training. With more, the program
            stands below ``if __name__ == "__main__":``.

    Raises:
        UserError: a number is out of its range, a query is no text or blank, the student has indexed nothing or several
            windows of a passage, the teacher other passages, or one of the two is none.

    Attributes:
        pairs: what the batches are of, as ``SpanPairDataModule`` says it.
    """

    pairs = "ranking"

    def __init__(
        self,
        queries: Sequence[str],
        student: Retriever,
        teacher: Searcher,
        *,
        depth: int = 100,
        batch_size: int = 64,
        query_length: int = 64,
        chunk_tokens: int = 4096,
        seed: int = 42,
        workers: int = 0,
    ) -> None:
        check_numbers("RankingDataModule", locals())
        if isinstance(queries, str) or not queries:
            raise UserError("RankingDataModule: queries must be a list of texts that is not empty")
        for number, query in enumerate(queries):
            if not isinstance(query, str) or is_blank(query):
                raise UserError(f"RankingDataModule: queries[{number}] is no text or a blank one; leave it out")
        if not isinstance(student, Retriever) or not isinstance(teacher, Searcher):
            raise UserError(
                "RankingDataModule: give a Retriever as student and a Searcher as teacher, which have indexed the passages"
            )
        if student.windows > 1:
            raise UserError(
                f"RankingDataModule: the student has up to {student.windows} vectors of a passage; index it with windows=1"
            )
        if not len(student):
            raise UserError("RankingDataModule: the student has indexed nothing; call its index(passages) first")
        if teacher.content_hash != student.content_hash:
            raise UserError(
                f"RankingDataModule: the teacher has indexed other passages ({len(teacher):,}) than the student"
                f" ({len(student):,}); index both with the same"
            )
        self.queries = list(queries)
        super().__init__(self.queries, student.tokenizer, titles=False, workers=workers)
        self.student, self.teacher, self.depth, self.batch_size = student, teacher, depth, batch_size
        self.query_length, self.chunk_tokens, self.seed = min(query_length, student.query_length), chunk_tokens, seed
        self._learned: dict[str, str] = {}

    @property
    def lengths(self) -> tuple[int, int]:
        """Longest query and passage that the student reads, in tokens, [CLS] and [SEP] included."""
        return self.student.query_length, self.student.passage_length

    def make_batches(self) -> RankingBatches:
        """See ``TokenDataModule``; the teacher is asked."""
        named = {"passages": self.student.content_hash, "student": self.student.identity()}
        named["teacher"] = self.teacher.identity()
        self._learned = {name: hashed(text.encode()) for name, text in named.items()}
        lengths, prefix = (self.query_length, self.student.passage_length), self.student.model.settings.query_prefix
        return RankingBatches(
            self.tokens.passages,
            np.arange(len(self.queries)),
            ranked(self.teacher.rank, self.queries, min(self.depth, len(self.teacher)), "teacher"),
            partial(np.take, self.student.passage_vectors, axis=0),
            self.vocabulary,
            batch_size=self.batch_size,
            query_length=self.query_length,
            budget=self.chunk_tokens,
            seed=self.seed,
            prefix=Prefixes.of(self.tokenizer_folder, prefix, "", lengths).query,
        )

    def state_dict(self) -> dict[str, Any]:
        """See ``StepDataModule``; student and teacher are known by what their results depend on."""
        return super().state_dict() | self._learned
