"""Configs of the stages that mine, read, filter and audit hard negatives."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from condensery.ranges import Count, CountOrZero, Finite, PositiveShare, Share, Weight
from condensery.stages.base import Input, Later, NamedFile, Operational, StageConfig
from condensery.stages.checks import Split, missing_split, not_encoded
from condensery.stages.registry import stage
from condensery.stages.scoring.config import ScoringStageConfig, no_probability
from condensery.stages.workload import Read, Work, known, product, search
from condensery.text.hashes import content_hashes
from condensery.text.input_file import InputFile
from condensery.text.sheets import filled_sheets

RULES = ("below_share", "below_margin", "below_score")


class RelabelConfig(StageConfig):
    """Shared keys of the stages that use the judgements of filled-in audit sheets."""

    split: Split = "train"
    """the split whose queries get negatives; its judgements define the positives"""
    relabel: Path | Annotated[list[Path], Field(min_length=1)] | None = None
    """filled-in sheets of audit_negatives, as a folder or list of files: yes makes a positive; no exempts a negative from
    the rules (stage mine)"""

    def by_content(self) -> set[str]:
        """Also return ``relabel``. The id depends on the content of the sheets instead, which ``identity`` returns."""
        return super().by_content() | {"relabel"}

    def identity(self) -> list[str]:
        """Return the sorted content hashes of the sheets, so that their order does not matter.

        Raises:
            UserError: the sheets are missing.
        """
        return sorted(content_hashes(self.filled()))

    def filled(self) -> list[Path]:
        """Return the paths of the sheets. Raises ``UserError`` if they are missing."""
        return [] if self.relabel is None else filled_sheets(self.relabel, "relabel")


@stage("mine", "mine:mine", version=3, makes="negatives", together="shared_search")
class MineConfig(ScoringStageConfig, RelabelConfig):
    """Mine hard negatives: the passages that a retriever ranks highest and that are not relevant, by judgement or by text.

    Rules may also exclude candidates that score nearly as high as the query's positive (positive-aware mining:
    NV-Retriever). If a query has several positives, the lowest of their scores is used. The rules use the retriever's own
    scores, the scores of the index ``scorer``, or the probabilities of ``cross_encoders``.
    """

    data_checks = {"corpus": ["judged", "answers", "sheets"]}
    retriever: Annotated[str, Input("index")]
    """the stage with an index, or with an encoder (the index is then built automatically)"""
    depth: Count = 200
    """negatives kept for each query"""
    skip_top: CountOrZero = 0
    """number of highest-ranked passages that are skipped, because they may be unjudged positives"""
    without_answers: bool = False
    """also exclude passages that contain an answer to the query, if answers are known"""
    below_share: PositiveShare | None = None
    """keep candidates that score below this share of the positive's score, such as 0.95; null: no such rule"""
    below_margin: Weight | None = None
    """keep candidates that score below the positive's score minus this margin; null: no such rule"""
    below_score: Finite | None = None
    """keep candidates that score below this; null: no such rule"""
    scorer: Annotated[str | None, Input("index"), Later()] = None
    """another stage with an index or an encoder, whose scores the rules use; null: scores of ``retriever``"""
    cross_encoders: Annotated[list[str], Input("cross_encoder"), Later()] = []
    """stages with cross-encoders whose probabilities the rules use; the logits of several cross-encoders are averaged"""

    @model_validator(mode="after")
    def _judged_by_one(self) -> Self:
        if self.scorer is not None and self.cross_encoders:
            raise ValueError("scorer and cross_encoders are both set, but only one of them can judge; leave one out")
        for key in ("scorer", "cross_encoders"):
            if getattr(self, key) and not self._rules():
                raise ValueError(f"{key} has no effect without a rule; set below_share, below_margin or below_score")
        return self

    def _rules(self) -> list[str]:
        """Return the rules that are set, with their values."""
        return [f"{key}={value}" for key in RULES if (value := getattr(self, key)) is not None]

    def by_content(self) -> set[str]:
        """Also return the rules and the cross-encoders' settings, which ``identity`` adds to the id if they are used."""
        return super().by_content() | {*RULES, "precision", "chunk_tokens"}

    def identity(self) -> list[str]:
        """Return the sheets' hashes, the rules that are set, and the cross-encoders' precision and chunk size.

        Raises:
            UserError: the sheets are missing.
        """
        how = [f"precision={self.precision}", f"chunk_tokens={self.chunk_tokens}"] if self.cross_encoders else []
        return [*super().identity(), *self._rules(), *how]

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a split or answers that the collection lacks, or scores that are not probabilities.

        Also report a split whose queries the retriever has not encoded.
        """
        missing = missing_split(self.split, inputs["corpus"]) or self._missing_answers(inputs["corpus"])
        return missing or not_encoded(self.split, "retriever", inputs["retriever"]) or no_probability(inputs)

    def work(self, read: Read) -> Work:
        """Estimate the work of searching for all queries of the split.

        A negative takes four bytes in the arrays and twenty in negatives.jsonl.
        """
        sizes = known(read, "retriever", "corpus")
        queries = sizes.collection.queries.get(self.split)
        looked = search(sizes, queries, self.depth)
        sizes = replace(sizes, negatives=product(self.depth, queries))
        if self.cross_encoders:
            return replace(self.scoring(read, queries, self.depth), makes=sizes)
        return Work(sizes, products=looked.products, seconds=looked.seconds, disk=product(24.0 * self.depth, queries))

    def _missing_answers(self, corpus: Sequence[StageConfig]) -> tuple[str, str] | None:
        data = getattr(corpus[0], "data", None)
        if not self.without_answers or data is None or self.split in data.answered_splits():
            return None
        return "without_answers", f"the split {self.split} of {data.name} has no answers; set it to false"


@stage("read_negatives", "read_negatives:read_negatives", version=3, makes="negatives")
class ReadNegativesConfig(RelabelConfig):
    """Read published negatives.

    The sources are MS MARCO's triples of ids, sentence-transformers' msmarco-hard-negatives, or the collection's own files
    (DPR, Tevatron, triples of texts).
    """

    data_checks = {"corpus": ["judged", "own_negatives", "sheets"]}
    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    file: Annotated[NamedFile | None, Operational()] = None  # the id depends on its content, not on its path
    """file of triples (query, positive and negative id), or .jsonl with a list for each system; plain or .gz; null: the
    collection's own negatives"""
    depth: Count = 200
    """number of negatives kept for each query, from the beginning of its list"""
    systems: Annotated[list[str], Field(min_length=1)] | None = None
    """systems of a .jsonl file whose lists are used, such as [bm25, msmarco-distilbert-base-tas-b]; null: all"""
    per_system: Count | None = None
    """number of negatives used from the beginning of each list; null: all"""

    @property
    def has_lists(self) -> bool:
        """Whether the file has a list of negatives for each system."""
        return self.file is not None and self.file.name.endswith((".jsonl", ".jsonl.gz"))

    @model_validator(mode="after")
    def _systems_have_lists(self) -> Self:
        for key in ("systems", "per_system"):
            if getattr(self, key) is not None and not self.has_lists:
                raise ValueError(f"{key} is only for a .jsonl file, and file is {self.file}; leave it out")
        return self

    def by_content(self) -> set[str]:
        """Return ``relabel``, ``systems`` and ``per_system``, so that older ids stay valid if these are null."""
        return super().by_content() | {"systems", "per_system"}

    def identity(self) -> list[str]:
        """Return the content hashes of the file and of the sheets, and the chosen systems.

        Raises:
            UserError: a file is missing or unreadable; this is checked before anything is computed.
        """
        if self.file is None:
            return super().identity()
        named = InputFile("file of negatives", self.file, " that stage.read_negatives.file names", exact=True)
        chosen = [f"{key}={value}" for key in ("systems", "per_system") if (value := getattr(self, key)) is not None]
        return content_hashes([named.look()]) + chosen + super().identity()

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a split that the collection lacks, or negatives that neither the config nor the collection gives."""
        data = getattr(inputs["corpus"][0], "data", None)
        if self.file is None and data is not None and not data.gives_negatives():
            return "file", f"needs a file of negatives; the files of the collection {data.name} give no negatives"
        return missing_split(self.split, inputs["corpus"])


@stage("denoise", "denoise:denoise", version=1, makes="negatives", together="several_shards")
class DenoiseConfig(ScoringStageConfig):
    """Keep only hard negatives that cross-encoders judge irrelevant. The others are probably unjudged positives."""

    negatives: Annotated[str, Input("negatives")]
    """the stage with negatives (mine, read_negatives)"""
    below: Share = 0.1
    """a negative is kept if its probability of relevance (the sigmoid of the score) is below this"""

    def work(self, read: Read) -> Work:
        """Estimate the work: every cross-encoder reads each negative with its query."""
        return self.scoring(read, known(read, "negatives").negatives, 1)

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a cross-encoder whose scores are not probabilities."""
        return no_probability(inputs)


@stage("audit_negatives", "audit_negatives:audit_negatives", version=1, makes="suspects")
class AuditNegativesConfig(StageConfig):
    """List suspected false negatives on a sheet, for a person to judge.

    Suspects are each query's negatives with the highest scores by ``scorer`` or, if ``scorer`` is null, by the mining
    retriever. If ``scorer`` is null and mining excluded candidates by their scores, these candidates are the suspects
    instead.
    """

    negatives: Annotated[str, Input("negatives")]
    """the stage with negatives (mine, denoise, read_negatives)"""
    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    scorer: Annotated[str | None, Input("index")] = None
    """the stage with an index or an encoder that ranks suspects; null: the mining retriever, unless mining excluded
    candidates, which are then the suspects"""
    depth: Count = 3
    """maximum number of suspects per query"""
    rows: Count = 500
    """number of the most suspicious pairs, over all queries, on the sheet to be filled in"""

    def work(self, read: Read) -> Work:
        """Estimate the work of a few scores for each query."""
        return Work(known(read), seconds=5.0, disk=4e3 * self.rows)

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report negatives that no known retriever could score."""
        if self.scorer is not None or getattr(inputs["negatives"][0], "retriever", None) is not None:
            return None
        return "scorer", f"the stage {self.negatives!r} names no retriever; name a stage with an index or an encoder"
