"""Stage ``distil_ranking``: a retriever's queries learn to find what a better ranking finds; no judgement is needed."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from condensery.errors import UserError
from condensery.models.flops import Step
from condensery.stages.base import Artifact, Context, Input, stage
from condensery.stages.card import card_of, name_of_data
from condensery.stages.frozen_passages import vectors_of
from condensery.stages.pair_scorers import cross_encoder
from condensery.stages.training import CollectionConfig, Count, OptimisedStageConfig, run_training
from condensery.stages.work import Read, Search, Work, known, search, together

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy as np

    from condensery.retrieval.free_texts import Encode
    from condensery.retrieval.ranking import Ranking
    from condensery.retrieval.reranking import PairScorer
    from condensery.text.collection import Collection
    from condensery.tokens.artifacts import Queries

Temperature = Annotated[float, Field(gt=0)]
SENTENCE = 30.0  # tokens of a query that is a sentence
SHARD = 200  # queries whose scores of cross-encoders are kept on a restart


class DistilRankingConfig(CollectionConfig, OptimisedStageConfig):
    """``student``: the index of the retriever; ``teacher``: what ranks better, such as BM25 and the student joined.

    ``cross_encoders`` score what the teacher ranks in its place (GPL: Wang et al. 2022); of several the mean counts.
    """

    student: Annotated[str, Input("index")]
    teacher: Annotated[str, Input("index")]
    cross_encoders: Annotated[list[str], Input("cross_encoder")]
    queries: Annotated[str, Input("queries")]
    number: Count
    depth: Count
    query_length: Annotated[int, Field(ge=8)]
    temperature: Temperature
    teacher_temperature: Temperature

    def lengths(self) -> dict[str, int]:
        """None that a retriever could be too short for: its own counts where it is shorter."""
        return {}

    def by_content(self) -> set[str]:
        """``cross_encoders`` came later: where there are none the ids are those of before."""
        return super().by_content() | (set() if self.cross_encoders else {"cross_encoders"})

    def work(self, read: Read) -> Work:
        """The teacher is asked, cross-encoders read what it ranks, and steps of queries alone are made."""
        sizes = replace(known(read, "teacher", "student"), same_passages=True)
        if sizes.encoder is None:
            return Work(sizes)
        step = Step(sizes.encoder, self.batch_size, SENTENCE, self.budget, contrast=True, precision=self.precision)
        work = self.training(sizes, step, float(self.number))
        looked = search(known(read, "teacher"), float(self.number), self.depth)
        return Work(sizes, work.steps, step, together([looked, self._scoring(read)]).products, work.seconds, work.disk)

    def _scoring(self, read: Read) -> Search:
        """The products of cross-encoders that read each query with what the teacher ranks for it."""
        pairs, found = float(self.number) * self.depth, Search(0.0, 0.0)
        for scorer in read.get("cross_encoders", ()):
            text = scorer.collection.passage_tokens
            if scorer.encoder is None or text is None:
                return Search(None, None)
            length = min(text + SENTENCE, scorer.passage_length or 512)
            scored = Step(scorer.encoder, pairs, length, self.budget, trained=False, precision=self.precision)
            found = together([found, Search(scored.flops, 0.0)])
        return found


@stage("distil_ranking", version=2, makes="encoder", cost=10.0)
def distil_ranking(config: DistilRankingConfig, context: Context) -> dict[str, Any]:
    """Save the retriever with a tower of its own for queries; that of the passages, and so their vectors, are as before."""
    from condensery.models.biencoder import BiEncoder
    from condensery.models.checkpoint import load_retriever
    from condensery.text.collection import Collection
    from condensery.tokens.artifacts import Queries, Tokens
    from condensery.tokens.prefixes import Prefixes
    from condensery.training.batches.rankings import RankingBatches
    from condensery.training.datamodules.base import StepDataModule
    from condensery.training.held_out import chosen_queries
    from condensery.training.modules.query_tower import QueryTowerModule

    collection, queries = Collection(context.input("corpus")), Queries(context.input("queries"))
    index, encoder = vectors_of(context, "student", config.student)
    saved = load_retriever(encoder)
    rows = chosen_queries(queries, config.number, config.seed)
    if not len(rows):
        raise UserError(f"stages.{context.stage_name}.queries: all passages with a query are held out; give more text")
    ranking = _ranked(config, context, collection, queries, rows)
    lengths = min(config.query_length, saved.query_length), saved.passage_length
    prefix = Prefixes.of(encoder, saved.model.settings.query_prefix, "", lengths).query
    batches = RankingBatches(
        queries.store,
        rows,
        ranking,
        index.passage_vectors,
        Tokens(context.input("tokens")).vocabulary,
        batch_size=config.batch_size,
        query_length=lengths[0],
        budget=config.budget,
        seed=config.seed,
        prefix=prefix,
    )
    towers = saved.model if not saved.model.shared else BiEncoder.from_encoder(saved.model.passage, separate=True)
    module = QueryTowerModule(
        towers.train(),
        temperature=config.temperature,
        teacher_temperature=config.teacher_temperature,
        **config.optimiser(),
    )
    data = StepDataModule(batches, context.runtime.workers)
    values = run_training(module, data, config.loop(batches), config, context, None)
    card = card_of(type(config), config.model_dump(mode="json"), name_of_data(context.input("corpus")), values)
    module.save_pretrained(context.folder, encoder, (saved.query_length, saved.passage_length), card)
    return {"queries": len(rows), **values}


def _ranked(
    config: DistilRankingConfig, context: Context, collection: "Collection", queries: "Queries", rows: "np.ndarray"
) -> "Ranking":
    """What the teacher ranks for queries (n,): scores and passages (n, depth), kept in the stage's folder."""
    import numpy as np

    from condensery.retrieval.free_texts import ranked, searcher
    from condensery.retrieval.index import open_index
    from condensery.retrieval.reranking import logits, ordered, score_in_shards
    from condensery.system.files import atomic, load_array

    files = [context.folder / f"teacher-{name}.npy" for name in ("scores", "passages")]
    if not all(file.exists() for file in files):
        teacher = open_index(context.input("teacher"), collection, context.runtime.threads)
        ask = searcher(teacher, _encoder_of(context))
        depth, label = min(config.depth, len(teacher)), f"{context.stage_name}: teacher"
        found: list[np.ndarray] = [*ranked(ask, queries.texts_at(rows), depth, label)]
        for file, part in zip(files, found, strict=True):
            with atomic(file) as temporary, open(temporary, "wb") as stream:
                np.save(stream, part)
    scores, passages = (load_array(file) for file in files)
    if not config.cross_encoders:
        return scores, passages
    scorers = [
        _scorer(artifact, config, context, collection, queries) for artifact in context.artifacts("cross_encoders")
    ]
    label = f"{context.stage_name}: cross-encoders"
    scores = score_in_shards(
        logits(scorers, config.budget, label),
        rows,
        passages,
        context.folder / "cross-encoder-scores.npy",
        shard_size=SHARD,
        label=label,
        each=len(scorers),
    )
    return ordered(scores, passages, passages.shape[1])


def _scorer(
    artifact: Artifact, config: DistilRankingConfig, context: Context, collection: "Collection", queries: "Queries"
) -> "PairScorer":
    """A cross-encoder that reads the made queries. Raises ``UserError`` where it reads other tokens than they are in."""
    if artifact.input("tokens").id != context.artifact("tokens").id:
        raise UserError(
            f"stages.{context.stage_name}.cross_encoders: {artifact.kind}/{artifact.id} reads other tokens than those of"
            f" {config.tokens}, in which the queries are"
        )
    return cross_encoder(artifact, collection, config.precision, context, queries.store)


def _encoder_of(context: Context) -> "Callable[[Path], Encode]":
    """From the folder of vectors to what encodes queries as they were encoded."""
    from condensery.retrieval.searchers import Retriever

    def encoder_of(vectors: "Path") -> "Encode":
        encoder = Artifact(vectors).ancestor("encoder")
        if encoder is None:
            raise UserError(f"{vectors} does not say which encoder made it; run its stage again")
        device = context.runtime.accelerator
        return Retriever(encoder.path, device="cpu" if device == "cpu" else None).encode_queries

    return encoder_of
