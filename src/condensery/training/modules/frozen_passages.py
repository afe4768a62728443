"""Training of the queries' tower while the vectors of the passages are frozen."""

from condensery.errors import UserError
from condensery.models.blending import same_weights
from condensery.training.modules.encoders import TowersModule


def freeze_passages(module: TowersModule) -> None:
    """Freeze the tower of the passages. Raises ``UserError`` where queries and passages share one tower."""
    if module.model.shared:
        raise UserError(f"{type(module).__name__}: queries need a tower of their own; give towers='separate'")
    module.model.passage.requires_grad_(False)


def check_student(module: TowersModule) -> None:
    """Raise ``UserError`` where the passages' tower would give other vectors than the data module's student.

    The batches hold the student's vectors of passages. So the module's tower of the passages must encode as the student does,
    and it must be frozen: a tower that is trained would move away from the student's vectors.
    """
    student, own = getattr(getattr(module.trainer, "datamodule", None), "student", None), module.model.passage
    if student is None:
        return
    name, theirs = type(module).__name__, student.model.passage
    if any(weight.requires_grad for weight in own.parameters()):
        raise UserError(
            f"{name}: the passages have the vectors of the data module's student; give train_passages=False"
        )
    if own.settings != theirs.settings or not same_weights(own, theirs):
        raise UserError(f"{name}: the data module's student encodes passages in another way; begin with its checkpoint")
