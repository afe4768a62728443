"""Finds the last checkpoint of a run, resumes from it, and defines which settings may differ from those of the checkpoint.

New settings of the optimiser and of its schedule apply from the step of the checkpoint on. Settings of the batches and of the
loss must stay the same, because a run that changed them midway could not be reproduced. docs/howto/resuming.md has a table of
the settings.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.utilities import rank_zero_info
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from condensery.distributed import processes
from condensery.errors import UserError, shown
from condensery.losses.retrieval_loss import RetrievalLoss
from condensery.training.checkpoint_fingerprint import Fingerprint, Plain, described, settings_of

CHECKPOINTS = "checkpoints"  # folder of the checkpoints in the folder of a stage
RULED = ("learning_rate", "warmup_ratio", "weight_decay", "max_grad_norm")
_ENTRY = "condensery"
_ANEW = "use the same, or start a new training from its weights: load_from_checkpoint, then fit without ckpt_path"

_MADE = "create the module with the same checkpoint, towers and layers"


def last_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint of the highest step in a stage's folder; None if it has no checkpoint.

    Files with other names, such as a copy ``step=2 (1).ckpt``, are ignored.
    """
    steps = (path.stem.removeprefix("step=") for path in (folder / CHECKPOINTS).glob("step=*.ckpt"))
    last = max(map(int, filter(str.isdecimal, steps)), default=None)
    return None if last is None else folder / CHECKPOINTS / f"step={last}.ckpt"


def first_step(folder: Path) -> int:
    """Return the step at which training in this folder begins: the step of the last checkpoint, or 0."""
    checkpoint = last_checkpoint(folder)
    return int(checkpoint.stem.removeprefix("step=")) if checkpoint else 0


def check_same(saved: Mapping[str, Plain], here: Mapping[str, Plain], what: str) -> None:
    """Raise ``UserError`` for the first entry of ``here`` whose value in ``saved`` differs.

    Args:
        saved: the entries of the checkpoint.
        here: the entries of this run. An entry that is missing in ``saved`` or ``here`` is not compared.
        what: word for the entries in the message: data or settings.
    """
    for name, value in here.items():
        if name in saved and saved[name] != value:
            entry = name.removeprefix("batches.")
            raise UserError(f"the checkpoint was saved with other {what} ({entry} {saved[name]}, now {value}); {_ANEW}")


class Resumption:
    """Writes a module's entry into its checkpoints, and checks the entry when the module resumes from a checkpoint.

    Args:
        module: a ``TrainingModule``.
    """

    def __init__(self, module: pl.LightningModule) -> None:
        self.module = module
        self.step: int | None = None  # step of the checkpoint
        self.ruled: dict[str, Plain] = {}  # settings of the checkpoint's run that may differ in this run
        self.epoch: int | None = None  # number of batches per epoch in the checkpoint's run
        self.changes: list[str] = []  # changes of the number of processes so far, in words

    def save(self, checkpoint: dict[str, Any], steps: int, epoch: int | None) -> None:
        """Add the entry that ``load`` reads to a checkpoint.

        Args:
            checkpoint: the checkpoint, changed in place.
            steps: number of steps of the whole run.
            epoch: number of batches that Lightning counts as an epoch; None = not known.
        """
        data = getattr(self.module.trainer, "datamodule", None)
        checkpoint[_ENTRY] = {
            "settings": self._settings(),
            "ruled": self._ruled(steps),
            "epoch": epoch,
            "changes": self.changes,
            "data": None if data is None else type(data).__qualname__,
        }

    def load(self, checkpoint: dict[str, Any]) -> None:
        """Raise ``UserError`` if training cannot resume from the checkpoint.

        Training cannot resume if weights, settings or data differ, or if the checkpoint has no optimiser state.
        """
        if self.module.trainer.state.fn == "fit":
            self._check(checkpoint)
        # Convert the module first. Otherwise Lightning would load double-precision weights into an unconverted module.
        self.module.trainer.precision_plugin.convert_module(self.module)
        check_weights(self.module, checkpoint["state_dict"])

    def _check(self, checkpoint: dict[str, Any]) -> None:
        if "optimizer_states" not in checkpoint:
            raise UserError("the checkpoint holds only weights; load them with load_from_checkpoint, without ckpt_path")
        self.step, saved = checkpoint["global_step"], checkpoint.get(_ENTRY)
        if saved is not None:  # checkpoints of older versions have no such entry
            self.ruled, self.epoch, self.changes = saved["ruled"], saved["epoch"], saved.get("changes", [])
            check_same(saved["settings"], self._settings(), "settings")
            self._check_data(saved["data"], checkpoint)
        # if a callback ended ``fit`` within an epoch, Lightning counted this epoch as complete, which is corrected here
        if self.epoch and self.step % self.epoch:
            done = self.step // self.epoch
            passes = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]
            passes |= {"ready": done + 1, "started": done + 1, "processed": done, "completed": done}

    def _check_data(self, name: str | None, checkpoint: dict[str, Any]) -> None:
        """Raise ``UserError`` if the checkpoint was written with other data.

        Lightning restores a data module only from the state that a data module of the same class has saved. If the state
        was saved by another class, this method passes it to the data module, which checks it.
        """
        data: Any = getattr(self.module.trainer, "datamodule", None)
        if name is None or (data is not None and type(data).__qualname__ == name):
            return
        if not hasattr(data, "batches_an_epoch"):
            here = "loaders" if data is None else type(data).__qualname__
            raise UserError(f"the checkpoint was saved with other data ({name}, now {here}); {_ANEW}")
        data.load_state_dict(checkpoint[name])

    def check_length(self, steps: int, epoch: int | None) -> None:
        """Raise ``UserError`` if the run would end before the checkpoint's step, or if the length of an epoch has changed.

        Args:
            steps: number of steps of the whole run.
            epoch: number of batches that Lightning counts as an epoch; None = the number does not matter, because the
                trainer's ``max_steps`` ends the run.
        """
        if self.step is None:
            return
        if self.step > steps:
            raise UserError(
                f"the checkpoint is at step {self.step:,}, but this run ends at step {steps:,}; raise max_steps or max_epochs"
            )
        if self.ruled and epoch is not None and self.epoch is not None:
            check_same({"limit_train_batches": self.epoch}, {"limit_train_batches": epoch}, "settings")

    def tell(self, steps: int) -> None:
        """Print the settings that apply from the current step on and differ from those of the checkpoint's run.

        If the number of processes differs, the change is also added to ``changes``.
        """
        before, now = self.ruled.get("processes", processes()), processes()
        if before != now:
            self.changes = [*self.changes, f"processes: {before} up to step {self.step:,}, then {now}"]
        changed = [
            f"{name} {shown(str(value))} (the checkpoint had {shown(str(self.ruled[name]))})"
            for name, value in self._ruled(steps).items()
            if self.ruled.get(name, value) != value
        ]
        if changed:
            rank_zero_info(f"training resumes at step {self.step:,} with {', '.join(changed)}")
        self.step, self.ruled = None, {}

    def _ruled(self, steps: int) -> dict[str, Plain]:
        own = {name: getattr(self.module, name) for name in RULED}
        frozen = (name for name, weight in self.module.named_parameters() if not weight.requires_grad)
        own |= {"frozen weights": ", ".join(frozen) or "none", "steps": steps}
        return {**own, "precision": str(self.module.trainer.precision), "processes": processes()}

    def _settings(self) -> Fingerprint:
        """Return the settings on which the loss depends: settings of the module, of a loss object and of the model."""
        module: Any = self.module
        own = {name: value for name, value in settings_of(module).items() if name not in RULED}
        loss, model = getattr(module, "loss", None), module.model
        found = {"module": type(module).__qualname__, **own, "dropout": _dropout(model)}
        if hasattr(model, "shared"):
            found["towers"] = "shared" if model.shared else "separate"
        for name, part in (("loss", loss), ("vectors", getattr(model, "settings", None))):
            if part is not None and not isinstance(part, str):
                found |= described(part, name)
        if isinstance(loss, RetrievalLoss):  # a user's own class may keep settings as attributes
            found |= {f"loss.{name}": value for name, value in vars(loss).items() if _is_setting(name, value)}
        return found | described(getattr(model, "shape", None), "shape")


def _is_setting(name: str, value: Any) -> bool:
    return isinstance(value, Plain) and not name.startswith("_") and name not in ("training", "call_super_init")


def _dropout(model: nn.Module) -> str:
    """Return all dropout rates in the configs of a model, as one string."""
    configs = [vars(part.config) for part in model.modules() if hasattr(part, "config")]
    rates = {rate for config in configs for name, rate in config.items() if "dropout" in name and rate is not None}
    return " and ".join(str(rate) for rate in sorted(rates))


def check_weights(module: nn.Module, saved: Mapping[str, Any]) -> None:
    """Raise ``UserError`` if the names or shapes of the saved weights differ from those of the module's weights."""
    here, strict = module.state_dict(), getattr(module, "strict_loading", True)
    for name in [*here, *(other for other in saved if other not in here)] if strict else here.keys() & saved.keys():
        shapes = [tuple(one[name].shape) if name in one else "missing" for one in (saved, here)]
        if shapes[0] != shapes[1]:
            raise UserError(f"the checkpoint is of another model ({name} {shapes[0]}, now {shapes[1]}); {_MADE}")


class Schedule(LambdaLR):
    """A learning-rate schedule that keeps its own settings when a run resumes. Only the step comes from the checkpoint."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Read only the step from the saved state, and keep the settings of this schedule."""
        own = self.base_lrs
        super().load_state_dict(state_dict)
        self.set_peaks(own)

    def set_peaks(self, rates: list[float | Tensor]) -> None:
        """Set the highest learning rate of each group of weights, and the rate of the current step that follows from it."""
        self.base_lrs = rates
        self._last_lr = [rate * factor(self.last_epoch) for rate, factor in zip(rates, self.lr_lambdas, strict=True)]
        for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
            group["lr"] = rate


def keep_own_settings(optimiser: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Return an optimiser's saved state with the settings of ``optimiser``.

    The optimiser then loads the moments of the weights from the checkpoint, and keeps its own settings.

    Raises:
        UserError: the number of weights in the checkpoint differs.
    """
    own, saved = optimiser.param_groups, state["param_groups"]
    numbers = [[len(group["params"]) for group in groups] for groups in (saved, own)]
    if numbers[0] != numbers[1]:
        raise UserError(
            f"the checkpoint is of another model ({sum(numbers[0])} weights, now {sum(numbers[1])}); {_MADE}"
        )
    return {
        **state,
        "param_groups": [{**one, "params": other["params"]} for one, other in zip(own, saved, strict=True)],
    }
