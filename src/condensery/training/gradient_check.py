"""``check_gradients`` tests whether a gradient from chunks or processes equals the gradient of the whole batch."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from condensery.errors import UserError
from condensery.losses.cached_backward import cached_backward
from condensery.losses.captured import copies, evaluated
from condensery.losses.gradient_cache import leaves
from condensery.losses.gradient_report import LOSS, GradientReport, Outcome, causes_of, compare
from condensery.ranges import Count, check_values
from condensery.training.data.steps import ALL, Share
from condensery.training.gradient_processes import ProcessError, in_processes, one_line
from condensery.training.gradient_trials import EVERY_PART, Cut, Replayed, TrialOfModule, TrialOfParts
from condensery.training.modules.optimisation import TrainingModule

Gradients = dict[str, Tensor]  # name of a weight -> its gradient; the loss itself is under LOSS if it is known

CUTS: dict[Cut, str] = {
    "whole": "in one chunk",
    "one row": "in chunks of one row",
    "uneven": "in uneven chunks",
    "as given": "in the chunks as given",
}
EXACT, ROUNDED = 1e-6, 1e-2  # largest allowed error in float64, and in other precisions if float64 is impossible
SEED = 17


def check_gradients(
    loss: Callable[..., Tensor] | TrainingModule,
    *parts: Any,
    cached: Callable[..., Any] = cached_backward,
    processes: Count = 1,
    frozen: bool = True,
) -> GradientReport:
    """Compare the gradient from the gradient cache with the gradient of the whole batch, computed without a cache.

    The gradient cache (Gao and Callan 2021b, §3.3) should be exact. A wrong gradient is hard to notice, because the loss may
    still decrease. The check computes both gradients in float64 with all graphs in memory, so give it a small model and
    a small batch. It tries one chunk, chunks of one row, uneven chunks and the given chunks, each with and without dropout.
    The dropout masks are the same in both passes of a chunk and in the computation without a cache. The check also freezes
    each part in turn. With ``processes=2``, it also runs two processes, and averages their gradients as DDP does. Weights,
    their ``.grad``, buffers and random states are restored afterwards.

        report = check_gradients(contrast, (query_encoder, query_chunks), (passage_encoder, passage_chunks))
        print(report)

    Args:
        loss: function of the vectors of each part, as in ``cached_backward``; or a training module, such as
            ``BiEncoderModule``.
        parts: encoders and their chunks, as in ``cached_backward``; with a module, its data module or a batch.
        cached: the function to check, with the arguments of ``cached_backward``. It adds to the ``.grad`` of all weights and
            returns the loss or None. With several processes, each process calls the function with its share of the rows.
            Your own function must then gather the vectors of all processes; for ``cached_backward`` the check gathers them.
        processes: 2 = the gradient is also computed in two processes on the CPU, each with half of the rows. If processes
            cannot be forked (outside of Linux, or if a GPU is used), functions must be importable, and the call must be
            guarded by ``if __name__ == "__main__":``.
        frozen: whether each part is also tried without a gradient.

    Returns:
        a report of the settings that were tried and of the errors. Its truth value is True if there is no error. ``print``
        shows the report. The report's method ``raise_if_wrong`` raises ``UserError`` if there is an error.

    Raises:
        UserError: the gradient cannot be computed without a cache, every gradient is 0, or the processes cannot be started.
    """
    check_values(check_gradients, {"processes": processes, "frozen": frozen})
    trial: TrialOfModule | TrialOfParts
    if isinstance(loss, TrainingModule):
        if len(parts) != 1 or cached is not cached_backward:
            raise UserError("check_gradients: with a module give one data module or batch, and nothing else")
        trial = TrialOfModule(loss, parts[0])
    else:
        trial = TrialOfParts(loss, parts, cached)
    return _Check(trial, processes, frozen).report()


@dataclass(frozen=True)
class _Setting:
    """A setting of the check: how the batch is split into chunks, dropout, the frozen part and the number of processes."""

    cut: Cut
    random: bool = False
    frozen: str | None = None
    processes: int = 1

    def name(self, drawn: bool) -> str:
        """Describe the setting in words. ``drawn``: whether the loss has dropout; the words then say if dropout is on."""
        words = [CUTS[self.cut]]
        if self.processes > 1:
            words.append(f"{self.processes} processes")
        if self.frozen is not None:
            words.append(f"{self.frozen} frozen")
        if drawn:
            words.append("with dropout" if self.random else "without dropout")
        return ", ".join(words)


class _Check:
    """Tries all settings of one trial."""

    def __init__(self, trial: TrialOfModule | TrialOfParts, processes: int, frozen: bool) -> None:
        self.trial, self.processes, self.freezes = trial, processes, frozen
        self.weights: dict[str, Tensor] = {}
        self.notes: list[str] = []
        self.drawn = False

    def report(self) -> GradientReport:
        """Try all settings, and report the results."""
        self.weights = self._find_weights()
        tolerance = EXACT
        with self._copies(double=True):
            try:
                self._plain("as given", Replayed(SEED)).backward()
            except (RuntimeError, TypeError, ValueError) as error:
                tolerance = ROUNDED
                self.notes.append(f"compared in the precision of the weights, because float64 fails: {one_line(error)}")
        with self._copies(double=tolerance == EXACT):
            self.drawn = self._draws(training=True)
            tried = [self._outcome(setting, tolerance) for setting in self._settings()]
            outcomes = [outcome for outcome in tried if outcome is not None]
            own, repeatable = self._of_the_loss(), self._alike(SEED, SEED)
        return GradientReport(tuple(outcomes), causes_of(outcomes, own, repeatable), tuple(self.notes))

    def _find_weights(self) -> dict[str, Tensor]:
        """Return the weights of the modules, and other leaf tensors from which the loss was computed, by name."""
        with self._copies(double=False):
            try:
                loss = self._plain("as given", Replayed(SEED))
                read = list(leaves(loss))
                moving = any(one.any() for one in torch.autograd.grad(loss, read)) if read else False
            except UserError:
                raise
            except Exception as error:
                raise UserError(f"check_gradients: the plain loss cannot be computed: {one_line(error)}") from error
        if not read:
            raise UserError("check_gradients: nothing that the loss depends on has requires_grad=True")
        if not moving:
            raise UserError(
                "check_gradients: every gradient is 0, so a wrong one cannot be found: the loss does not use the vectors, or"
                " is constant on this batch, such as a hinge loss that is 0 for each pair; give another batch or loss"
            )
        named = {name.lstrip("."): weight for name, weight in self.trial.captured.weights().items()}
        known = {id(weight) for weight in named.values()}
        others = [weight for weight in read if id(weight) not in known]
        return named | {f"a weight {tuple(weight.shape)}, no. {n}": weight for n, weight in enumerate(others, 1)}

    def _copies(self, double: bool) -> AbstractContextManager[None]:
        return copies([*self.trial.captured.values(), *self.weights.values()], double)

    def _settings(self) -> Iterator[_Setting]:
        seen: list[list[int]] = []
        for cut in CUTS:
            sizes = [len(chunk) for chunk in self.trial.chunks(cut, ALL)]
            if sizes in seen:
                continue
            seen.append(sizes)
            yield _Setting(cut)
            if self.drawn:
                yield _Setting(cut, random=True)
        for part in self.trial.freezable() if self.freezes else ():
            yield _Setting("uneven", self.drawn, frozen=part)
        if self.processes > 1 and self._can_be_shared():
            for random in (False, True) if self.drawn and self.trial.by_rows else (False,):
                yield _Setting("uneven", random, processes=self.processes)

    def _can_be_shared(self) -> bool:
        if self.trial.by_rows or not self._draws(training=False):
            return True
        self.notes.append("not tried in several processes: the module draws random numbers in evaluation mode, too")
        return False

    def _outcome(self, setting: _Setting, tolerance: float) -> Outcome | None:
        """Compare the two gradients in one setting.

        Returns:
            the outcome; None = no weight requires a gradient, or the gradient cannot be computed without a cache, as with
            batch norm over one row.
        """
        chunks = self._chunks(setting)
        outcome = Outcome(
            setting.name(self.drawn), len(chunks), setting.processes, setting.random, setting.frozen is not None
        )
        with self._mode(setting.random), self.trial.frozen(setting.frozen):
            try:
                loss = self.trial.plain(chunks, Replayed(SEED))
                if not loss.requires_grad:
                    return None
                expected = self._gradients(loss.backward) | {LOSS: loss.detach().reshape(1)}
            except (RuntimeError, TypeError, ValueError) as error:
                self.notes.append(f"not tried {outcome.setting}: {one_line(error)}")
                return None
            try:
                found, replayed = self._in_processes(setting) if setting.processes > 1 else self.share(setting, ALL)
            except ProcessError as error:
                return replace(outcome, failure=str(error))
            except (UserError, KeyboardInterrupt):
                raise
            except Exception as error:
                return replace(outcome, failure=one_line(error))
        for name in sorted(expected, key=lambda name: name != LOSS):
            if not expected[name].isfinite().all():
                what = name if name == LOSS else f"the gradient of {name}"
                raise UserError(f"check_gradients: even without a cache, {what} is not finite {outcome.setting}")
        if LOSS not in found:  # the checked function may return no loss
            del expected[LOSS]
        return replace(outcome, differences=compare(expected, found, tolerance), replayed=replayed)

    def _chunks(self, setting: _Setting) -> list[Any]:
        """Return the chunks of the whole batch.

        If the random numbers of a chunk depend only on its rows, the batch is cut into the chunks of all processes. The
        computation without a cache then draws the same random numbers as the processes.
        """
        processes = setting.processes if self.trial.by_rows else 1
        parts = [self.trial.chunks(setting.cut, Share(n, processes)) for n in range(processes)]
        return [chunk for part in parts for chunk in part]

    def _gradients(self, run: Callable[[], Any]) -> Gradients:
        """Return the gradients that ``run`` adds to the weights, and the loss that it returns."""
        for weight in self.weights.values():
            weight.grad = None
        loss = run()
        gradients: Gradients = {}
        for name, weight in self.weights.items():
            gradients[name] = torch.zeros_like(weight) if weight.grad is None else weight.grad
            weight.grad = None
        if isinstance(loss, float | Tensor):
            gradients[LOSS] = torch.as_tensor(loss).detach().reshape(1)
        return gradients

    def _plain(self, cut: Cut, random: Replayed) -> Tensor:
        return self.trial.plain(self.trial.chunks(cut, ALL), random)

    def _mode(self, random: bool) -> AbstractContextManager[None]:
        return nullcontext() if random else evaluated(self.trial.captured.modules.values())

    def _draws(self, training: bool) -> bool:
        """Return whether the loss depends on random numbers."""
        with self._mode(training):
            return not self._alike(SEED, SEED + 1)

    def _alike(self, *seeds: int) -> bool:
        """Return whether two seeds of torch's random numbers give the same loss."""
        return torch.equal(*(self._plain("as given", Replayed(seed)).detach() for seed in seeds))

    def _of_the_loss(self) -> list[str]:
        """Return the names of the weights that the loss reads and no encoder reads."""
        with self.trial.frozen(EVERY_PART):
            read = {id(leaf) for leaf in leaves(self._plain("as given", Replayed(SEED)))}
        return [name for name, weight in self.weights.items() if id(weight) in read]

    def _in_processes(self, setting: _Setting) -> tuple[Gradients, bool]:
        """Return the mean gradients over the processes, and whether every process replayed its random numbers."""
        if any(weight.device.type != "cpu" for weight in self.weights.values()):
            raise UserError("check_gradients: processes=2 computes on the CPU; move the model to the CPU")
        found = in_processes(setting.processes, partial(self.share, setting))
        names = found[0][0].keys()
        means = {name: torch.stack([gradients[name] for gradients, _ in found]).mean(dim=0) for name in names}
        return means, all(replayed for _, replayed in found)

    def share(self, setting: _Setting, share: Share) -> tuple[Gradients, bool]:
        """Return the gradients of one process, and whether the process replayed its random numbers."""
        random, chunks = Replayed(SEED), self.trial.chunks(setting.cut, share)
        return self._gradients(lambda: self.trial.cached(chunks, random)), random.replayed
