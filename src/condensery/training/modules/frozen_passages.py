"""Passages whose vectors are frozen while the tower of the queries is trained."""

from condensery.errors import UserError
from condensery.models.blending import same_weights
from condensery.training.modules.encoders import TowersModule


def freeze_passages(module: TowersModule) -> None:
    """Train the tower of the queries alone. Raises ``UserError`` where it is that of the passages as well."""
    if module.model.shared:
        raise UserError(f"{type(module).__name__}: queries need a tower of their own; give towers='separate'")
    module.model.passage.requires_grad_(False)


def check_student(module: TowersModule) -> None:
    """Raise ``UserError`` where the data module's student, whose vectors are the passages', encodes them in another way.

    It does, too, where the tower of the passages is trained: its vectors would change and those of the student would not.
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
