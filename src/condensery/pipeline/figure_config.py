"""The configs of figures, for the key ``figures`` of the root."""

from collections.abc import Collection
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from condensery.errors import UserError, check_known
from condensery.keys import Keys, Text, no_bool_as_number
from condensery.reporting.table_layout import Cost
from condensery.stages.base import LeaveOut, Name
from condensery.stages.checks import Split

Stages = Annotated[dict[Text, Text], Field(min_length=1)]  # label in the figure -> a stage


class _Figure(Keys):
    """Base of all kinds of figures; ``title``: null = the default of the kind."""

    title: Text | None = None

    def named_stages(self) -> dict[str, list[str]]:
        """Return the stages that the figure reads, by the key that names them."""
        return {}


class AttentionEntropyFigure(_Figure):
    """CLS attention entropy by layer (Gao and Callan 2021a, figure 2): one panel per model, before and after fine-tuning.

    Attributes:
        stage: a stage of kind ``attention_entropy``.
        models: label in the figure -> the encoders [before, after].
    """

    kind: Literal["attention_entropy"]
    stage: Text
    models: Annotated[dict[Text, Annotated[list[Text], Field(min_length=2, max_length=2)]], Field(min_length=1)]

    def named_stages(self) -> dict[str, list[str]]:
        encoders = [name for pair in self.models.values() for name in pair if name != "backbone"]
        return {"stage": [self.stage], "models": encoders}


class _ScoreFigure(_Figure):
    """Shared keys of figures of scores.

    Attributes:
        rows: rows of the table; null = all rows.
        metric: metric that is plotted, or a list of metrics, each in a panel; null = the table's first metric.
    """

    rows: Annotated[list[Text], Field(min_length=1)] | None = None
    metric: Text | Annotated[list[Text], Field(min_length=1)] | None = None

    @property
    def metrics(self) -> list[str]:
        """The metrics that the config names."""
        return [self.metric] if isinstance(self.metric, str) else list(self.metric or ())


class DifferencesFigure(_ScoreFigure):
    """The difference in one metric between each row of the table and the baseline, with the table's confidence interval."""

    kind: Literal["differences"]
    metric: Text | None = None


class _PanelsFigure(_ScoreFigure):
    """Shared keys of figures of scores against a quantity.

    Attributes:
        split: split whose rows are drawn; null = all splits.
    """

    split: Split | None = None


class ScoreBySizeFigure(_PanelsFigure):
    """A metric against the number of training queries or examples, over the jobs of a sweep.

    Figures 2 to 4 of the early version of Gao and Callan 2021a have this form.
    """

    kind: Literal["score_by_size"]


class ScoreByStepsFigure(_PanelsFigure):
    """A metric against the amount of pre-training of the row's encoder, over the jobs of a sweep.

    Attributes:
        amount: ``tokens``, ``steps`` or ``cpu_seconds`` of all pre-training stages together; or ``batch_size``, the texts per
            batch of the last pre-training stage.
        reference: a row, whose score at its largest amount is the target. A table gives the amount with which each
            other row first reaches the target.
    """

    kind: Literal["score_by_steps"]
    amount: Literal["tokens", "steps", "cpu_seconds", "batch_size"] = "tokens"
    reference: Text | None = None


class ScoreByCostFigure(_PanelsFigure):
    """A metric against a cost, with one point per row. ``table.costs`` explains the costs."""

    kind: Literal["score_by_cost"]
    cost: Cost


class _StagesFigure(_Figure):
    stages: Stages

    def named_stages(self) -> dict[str, list[str]]:
        return {"stages": list(self.stages.values())}


class FirstEpochsFigure(_StagesFigure):
    """Training losses of several stages on a log scale (figure 5 of the early version of Gao and Callan 2021a).

    Attributes:
        epochs, steps: end of the x axis; at most one of the two is set. If both are null, the axis ends at the end of
            training.
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
    """Training loss and validation of several stages by step (Zhao et al., figures 3 to 5).

    Attributes:
        metric: metric of validation; MRR@100 needs the stages' key ``validation_candidates``.
    """

    kind: Literal["training"]
    metric: Literal["MRR@10", "MRR@100"] = "MRR@10"


FigureConfig = Annotated[
    AttentionEntropyFigure
    | DifferencesFigure
    | ScoreBySizeFigure
    | ScoreByStepsFigure
    | ScoreByCostFigure
    | FirstEpochsFigure
    | TrainingFigure,
    Field(discriminator="kind"),
]


# Figures by name. If the whole key is null, no figure is drawn. A figure whose value is null is left out.
Figures = Annotated[dict[Name, FigureConfig], LeaveOut, BeforeValidator(lambda value: {} if value is None else value)]


def check(
    name: str, figure: FigureConfig, kinds: dict[str, str], rows: Collection[str], metrics: Collection[str]
) -> None:
    """Check that the recipe has everything that a figure names.

    Args:
        name: name of the figure.
        figure: config of the figure.
        kinds: stage -> kind of the stage.
        rows: rows of the table.
        metrics: metrics of the table.

    Raises:
        UserError: a stage, row or metric is missing, or a stage is of the wrong kind.
    """
    for key, stages in figure.named_stages().items():
        for stage in stages:
            check_known(stage, kinds, f"figures.{name}.{key}: no stage is named {stage!r}")
    if isinstance(figure, AttentionEntropyFigure) and kinds[figure.stage] != "attention_entropy":
        raise UserError(f"figures.{name}.stage: {figure.stage!r} is not of kind attention_entropy")
    if isinstance(figure, _ScoreFigure):
        for row in (*(figure.rows or ()), *filter(None, [getattr(figure, "reference", None)])):
            check_known(row, rows, f"figures.{name}.rows: {row!r} is not a row of the table")
        for metric in figure.metrics:
            check_known(metric, metrics, f"figures.{name}.metric: {metric!r} is not in table.metrics")
