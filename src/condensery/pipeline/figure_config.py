"""The key ``figures`` of the root: what each kind of figure shows."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from condensery.errors import UserError, close_to
from condensery.reporting.layout import Text
from condensery.stages.base import LeaveOut, Name, no_bool_as_number

Stages = Annotated[dict[Text, Text], Field(min_length=1)]  # what the figure calls it -> a stage


class _Figure(BaseModel):
    """``title``: null = what the kind shows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: Text | None = None

    def named_stages(self) -> dict[str, list[str]]:
        """The stages that it reads, by the key that names them."""
        return {}

    def named_rows(self) -> list[str]:
        """The rows of the table that it names."""
        return []


class AttentionEntropyFigure(_Figure):
    """CLS attention entropy by layer (Gao and Callan 2021a, figure 2): of each model a panel, before and after tuning.

    ``stage``: of kind ``attention_entropy``; ``models``: what the figure calls it -> the encoders [before, after].
    """

    kind: Literal["attention_entropy"]
    stage: Text
    models: Annotated[dict[Text, Annotated[list[Text], Field(min_length=2, max_length=2)]], Field(min_length=1)]

    def named_stages(self) -> dict[str, list[str]]:
        encoders = [name for pair in self.models.values() for name in pair if name != "backbone"]
        return {"stage": [self.stage], "models": encoders}


class _ScoreFigure(_Figure):
    """``rows``: of the table; null = all. ``metric``: null = the table's first."""

    rows: Annotated[list[Text], Field(min_length=1)] | None = None
    metric: Text | None = None

    def named_rows(self) -> list[str]:
        return list(self.rows or [])


class DifferencesFigure(_ScoreFigure):
    """How far the rows of the table are from its baseline, each with the interval that the table gives it."""

    kind: Literal["differences"]


class ScoreBySizeFigure(_ScoreFigure):
    """A metric against the number of training queries or examples, over the jobs of a sweep.

    Figures 2 to 4 of the early version of Gao and Callan 2021a.
    """

    kind: Literal["score_by_size"]


class ScoreByStepsFigure(_ScoreFigure):
    """A metric against the pre-training behind it, over the jobs of a sweep.

    Against the tokens that were read, the steps (of all its stages), or the texts of a batch (of its last stage).
    """

    kind: Literal["score_by_steps"]
    amount: Literal["tokens", "steps", "batch_size"] = "tokens"


class _StagesFigure(_Figure):
    stages: Stages

    def named_stages(self) -> dict[str, list[str]]:
        return {"stages": list(self.stages.values())}


class FirstEpochsFigure(_StagesFigure):
    """Training losses of several stages on a log scale, up to so many epochs or steps; null = all.

    Figure 5 of the early version of Gao and Callan 2021a.
    """

    kind: Literal["first_epochs"]
    epochs: Annotated[float, Field(gt=0)] | None = None
    steps: Annotated[int, Field(gt=0)] | None = None

    @field_validator("epochs", "steps", mode="before")
    @classmethod
    def _true_is_not_one(cls, value: Any, info: ValidationInfo) -> Any:
        return no_bool_as_number(cls, value, info)

    @model_validator(mode="after")
    def _one_end(self) -> Self:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("give epochs or steps, not both")
        return self


class TrainingFigure(_StagesFigure):
    """Training loss and validation MRR@10 of several stages by step (Zhao et al., figures 3 to 5)."""

    kind: Literal["training"]


FigureConfig = Annotated[
    AttentionEntropyFigure
    | DifferencesFigure
    | ScoreBySizeFigure
    | ScoreByStepsFigure
    | FirstEpochsFigure
    | TrainingFigure,
    Field(discriminator="kind"),
]


def _none_for_null(value: Any) -> Any:
    return {} if value is None else value


# By name; null draws none, and in the place of a figure not that one.
Figures = Annotated[dict[Name, FigureConfig], LeaveOut, BeforeValidator(_none_for_null)]


def check(name: str, figure: FigureConfig, kinds: dict[str, str], rows: Iterable[str], metrics: Iterable[str]) -> None:
    """Raise ``UserError`` where a figure names what the recipe does not have. ``kinds``: stage -> its kind."""
    for key, stages in figure.named_stages().items():
        for stage in stages:
            if stage not in kinds:
                raise UserError(f"figures.{name}.{key}: no stage is named {stage!r}{close_to(stage, kinds)}")
    if isinstance(figure, AttentionEntropyFigure) and kinds[figure.stage] != "attention_entropy":
        raise UserError(f"figures.{name}.stage: {figure.stage!r} is not of kind attention_entropy")
    for row in figure.named_rows():
        if row not in rows:
            raise UserError(f"figures.{name}.rows: {row!r} is not a row of the table{close_to(row, rows)}")
    metric = getattr(figure, "metric", None)
    if metric is not None and metric not in metrics:
        raise UserError(f"figures.{name}.metric: {metric!r} is not in table.metrics{close_to(metric, metrics)}")
