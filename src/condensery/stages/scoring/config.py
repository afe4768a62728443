"""Configs of the stages that score pairs of a query and a passage: as a teacher, or to label queries."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from condensery.models.flops import Step
from condensery.ranges import Count, Positive, Share
from condensery.stages.base import Input, NamedFile, Operational, Precision, Seed, StageConfig
from condensery.stages.checks import Split, missing_split, not_encoded, of_another_split
from condensery.stages.registry import stage
from condensery.stages.workload import QUESTION, Read, Search, Work, known, product, search, together, total
from condensery.text.hashes import content_hashes
from condensery.text.input_file import InputFile

SEARCHED = 1000  # assumed number of passages that a retriever ranks per query; fusion scales scores over them


class ScoringStageConfig(StageConfig):
    """Shared keys of the stages that score pairs of a query and a passage with cross-encoders."""

    cross_encoders: Annotated[list[str], Input("cross_encoder"), Field(min_length=1)]
    """stages with cross-encoders (train_cross_encoder); the logits of several cross-encoders are averaged"""
    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    precision: Precision
    """numeric precision of cross-encoders: fp32, bf16 or fp16"""
    chunk_tokens: Count = 8192
    """padded tokens that a cross-encoder processes at once"""
    shard_size: Annotated[Count, Operational()] = 200
    """queries per shard file of cross-encoder scores; devices divide the shards among themselves, and a restart keeps
    complete shards"""

    def scoring(self, read: Read, queries: float | None, depth: int) -> Work:
        """Return the work of retrieving the ``depth`` best passages of ``queries`` queries and scoring them.

        Every cross-encoder reads each of these passages with its query. ``queries`` is None if the number is unknown.
        """
        sizes, scorers = known(read), read["cross_encoders"]
        size, text = known(read, "cross_encoders").encoder, sizes.collection.passage_tokens
        looked = search(known(read, "corpus", "retriever"), queries, depth) if "retriever" in read else Search(0.0, 0.0)
        if size is None or text is None or queries is None:
            return Work(sizes)
        pairs = queries * depth
        length = min(text + QUESTION, known(read, "cross_encoders").passage_length or 512)
        step = Step(size, len(scorers) * pairs, length, self.chunk_tokens, trained=False, precision=self.precision)
        return Work(replace(sizes, dimensions=0), 1, step, looked.products, looked.seconds, disk=8.0 * pairs)


@stage("score_pairs", "score_pairs:score_pairs", version=1, makes="pair_scores", together="several_shards")
class ScorePairsConfig(ScoringStageConfig):
    """Score the passages of training queries as a teacher, for the losses ``margin_mse`` and ``kl`` of finetune.

    The scored passages are the positives of each query and its best negatives from each stage of ``negatives``. A pair's
    score is the weighted mean over all ``cross_encoders`` and ``retrievers``. If ``file`` gives scored pairs, none of these
    keys is set.
    """

    data_checks = {"corpus": ["judged"]}
    cross_encoders: Annotated[list[str], Input("cross_encoder")] = []
    """stages with cross-encoders (train_cross_encoder), whose logits are the scores"""
    retrievers: Annotated[list[str], Input("index")] = []
    """stages with an index (bm25, encode, ann_index, fuse, rerank), or with an encoder (an index is then built)"""
    file: Annotated[NamedFile | None, Operational()] = None  # the id depends on its content, not on its path
    """in place of scorers: a file of scored pairs, as a TREC run or .jsonl with query_id, passage_ids and scores; plain
    or .gz"""
    negatives: Annotated[list[str], Input("negatives")] = []
    """stages with hard negatives (mine, read_negatives), which are scored in addition to the positives"""
    labels: Annotated[list[str], Input("labels")] = []
    """stages with labels (pseudo_label), whose queries and positives are scored in addition to the judged queries"""
    split: Split = "train"
    """the split whose queries are scored"""
    train_queries: Count | None = None
    """number of queries, drawn as finetune draws them with the same seed; null: all"""
    depth: Count | None = None
    """number of highest-ranked negatives that are scored for each query and source; null: all"""
    weights: list[Positive] | None = None
    """weight of each scorer in the mean, cross-encoders first; null: equal weights"""
    scaling: Literal["none", "min_max"] = "none"
    """none: raw scores; min_max: each scorer's scores of a query are scaled to [0, 1] before the mean"""
    seed: Seed
    """random seed that draws the queries if ``train_queries`` is set"""

    @model_validator(mode="after")
    def _somebody_scores(self) -> Self:
        scorers = [*self.cross_encoders, *self.retrievers]
        if self.file is not None and (scorers or self.negatives):
            raise ValueError("file has the pairs and their scores; leave out cross_encoders, retrievers and negatives")
        if self.file is None and not scorers:
            raise ValueError("nothing is set that scores the pairs; set cross_encoders, retrievers, or file")
        if self.weights is not None and len(self.weights) != len(scorers):
            raise ValueError(
                f"{len(self.weights)} weights for {len(scorers)} scorers; give one for each, cross_encoders first"
            )
        if len(scorers) > 1 and self.retrievers and self.scaling == "none" and self.weights is None:
            raise ValueError(
                "scores of different scales would be averaged; set scaling to min_max, or weights that fit their scales"
            )
        return self

    def identity(self) -> list[str]:
        """Return the content hash of the file, if there is one.

        Raises:
            UserError: the file is missing or unreadable; this is checked before anything is computed.
        """
        if self.file is None:
            return []
        named = InputFile("file with the scores of pairs", self.file, " that stage.score_pairs.file names", exact=True)
        return content_hashes([named.look()])

    def work(self, read: Read) -> Work:
        """Estimate the work: each cross-encoder reads every pair or, without cross-encoders, each retriever searches.

        A pair takes eight bytes in the arrays and about twenty in pair_scores.jsonl.
        """
        sizes = known(read)
        queries = sizes.collection.queries.get(self.split) if self.train_queries is None else float(self.train_queries)
        pairs = (
            [product(queries, float(self.depth))] * len(self.negatives)
            if self.depth
            else [one.negatives for one in read.get("negatives", ())]
        )
        number = total([queries, *pairs])
        disk = product(28.0, number)
        if self.retrievers and not self.cross_encoders:
            looked = together(search(index, queries, SEARCHED) for index in read.get("retrievers", ()))
            return Work(sizes, products=looked.products, seconds=looked.seconds, disk=disk)
        if not self.cross_encoders or number is None:
            return Work(sizes)
        return replace(self.scoring(read, number, 1), disk=disk)

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a split that the collection or an index does not have, or a reranked index of another split."""
        wrong = of_another_split(self.retrievers, inputs["retrievers"], self.split, f"; set its split to {self.split}")
        missing = wrong or missing_split(self.split, inputs["corpus"])
        return missing or not_encoded(self.split, "retrievers", inputs["retrievers"])


@stage("pseudo_label", "pseudo_label:pseudo_label", version=2, makes="labels", together="several_shards")
class PseudoLabelConfig(ScoringStageConfig):
    """Label queries without judgements (data.unlabelled_queries) by the probabilities of cross-encoders."""

    data_checks = {"corpus": ["unjudged"]}
    retriever: Annotated[str, Input("index")]
    """the stage with an index that supplies the candidates, or with an encoder (the index is then built automatically)"""
    depth: Count = 50
    """number of candidates per query: the passages that the retriever ranks highest"""
    positive: Share = 0.9
    """probability above which a candidate is a positive; a query without a positive is left out"""
    negative: Share = 0.1
    """probability below which a candidate is a negative; candidates in between are neither"""

    def work(self, read: Read) -> Work:
        """Estimate the work: the candidates of each unjudged query are retrieved, and every cross-encoder reads them."""
        return self.scoring(read, known(read, "corpus").collection.unjudged, self.depth)

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.negative > self.positive:
            raise ValueError(f"negative={self.negative} is above positive={self.positive}; lower negative")
        return self

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Return the field and the message of an error in the inputs; None = no error.

        There are three errors: a cross-encoder's scores are not probabilities; every query of the collection is judged; the
        retriever has not encoded the unjudged queries.
        """
        data = getattr(inputs["corpus"][0], "data", None) if inputs["corpus"] else None
        if data is not None and not data.unlabelled_queries:
            advice = "set data.unlabelled_queries to a number of training queries, or to unjudged"
            return "corpus", f"all queries of the collection {data.name} are judged; {advice}"
        return not_encoded("unjudged", "retriever", inputs["retriever"]) or no_probability(inputs)


def no_probability(inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
    """Return the field and the error message for a cross-encoder whose scores are not probabilities; None = no error."""
    if all(getattr(config, "loss", "pointwise") == "pointwise" for config in inputs["cross_encoders"]):
        return None
    return "cross_encoders", (
        "thresholds need probabilities, which a cross-encoder trained listwise does not give; set its loss to pointwise"
    )
