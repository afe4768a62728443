"""The report of a gradient check: which gradients are wrong, and the probable faults in the code that computed them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from condensery.errors import UserError, number_of

LOSS = "the loss itself"
# Each bound is relative to a largest entry: of all gradients (_SMALL), or of one gradient (_NEARLY, _LIKE).
_SMALL = 1e-6  # if a gradient's largest entry is below this bound, its error is measured relative to the bound
_NEARLY = 1e-2  # a smaller error is attributed to rounding
_LIKE = 1e-4  # largest deviation at which a gradient counts as a multiple of the correct gradient


@dataclass(frozen=True)
class Difference:
    """A weight whose gradient is wrong, with the error of the gradient.

    Attributes:
        weight: the weight's name, or ``LOSS``.
        error: largest difference between the gradient and the correct gradient, relative to the correct gradient's largest
            entry.
        factor: the gradient divided by the correct gradient; None = the gradient is not a multiple of the correct one.
        missing: whether the weight has no gradient, or only zeros.
    """

    weight: str
    error: float
    factor: float | None = None
    missing: bool = False

    def __str__(self) -> str:
        if self.missing:
            return f"{self.weight} has no gradient"
        multiple = "" if self.factor is None else f", {self.factor:.4g} times the right one"
        if self.weight == LOSS:
            return f"{LOSS} is wrong{multiple}"
        return f"the gradient of {self.weight} is off by {self.error:.2g} of its largest entry{multiple}"


@dataclass(frozen=True)
class Outcome:
    """The result of the check in one setting. Its truth value is True if every gradient is correct.

    Attributes:
        setting: name of the setting.
        chunks: number of chunks per process.
        processes: number of processes that share the batch.
        random: whether dropout or another source of random numbers is on.
        frozen: whether a part or a module is frozen.
        differences: the wrong gradients.
        failure: the exception that ended the check; None = no exception was raised.
        replayed: whether each chunk that was encoded twice began both passes in the same random state.
    """

    setting: str
    chunks: int = 1
    processes: int = 1
    random: bool = False
    frozen: bool = False
    differences: tuple[Difference, ...] = ()
    failure: str | None = None
    replayed: bool = True

    def __bool__(self) -> bool:
        return not self.differences and self.failure is None

    def __str__(self) -> str:
        """Return the setting with its failure, or with its largest error and the number of other wrong weights."""
        if self.failure is not None or not self.differences:
            return f"{self.setting}: {self.failure or 'right'}"
        worst = max(self.differences, key=lambda one: one.error)
        more = len(self.differences) - 1
        return f"{self.setting}: {worst}" + (f"; and {more} more" if more else "")


@dataclass(frozen=True)
class GradientReport:
    """The report of ``check_gradients``. Its truth value is True if every gradient is correct.

    Its string names the wrong gradients.

    Attributes:
        outcomes: the outcome of each setting that was tried.
        causes: the probable faults, one sentence each.
        notes: the settings that could not be tried, with the reason.
    """

    outcomes: tuple[Outcome, ...]
    causes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.outcomes) and all(self.outcomes)

    def __str__(self) -> str:
        wrong = [outcome for outcome in self.outcomes if not outcome]
        if not self.outcomes:
            head, body = ["no setting could be tried:"], []
        elif not wrong:
            head = [f"the gradient equals that of the whole batch in {number_of(len(self.outcomes), 'settings')}:"]
            body = [f"  {outcome.setting}" for outcome in self.outcomes]
        else:
            head = [f"the gradient is wrong in {len(wrong)} of {len(self.outcomes)} settings:"]
            body = [f"  {outcome}" for outcome in wrong]
        return "\n".join([*head, *body, *(f"probably: {cause}" for cause in self.causes), *self.notes])

    __repr__ = __str__

    def raise_if_wrong(self) -> None:
        """Raise ``UserError`` with the first cause if a gradient is wrong, or with the notes if no setting was possible."""
        if not self.outcomes:
            raise UserError(f"check_gradients: no setting could be tried; {'; '.join(self.notes)}")
        if not self:
            first = next(outcome for outcome in self.outcomes if not outcome)
            raise UserError(f"check_gradients: {first}; probably: {self.causes[0]}")


def compare(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], tolerance: float) -> tuple[Difference, ...]:
    """Return the weights whose gradients differ by more than ``tolerance`` times the correct gradient's largest entry.

    A correct gradient whose largest entry is below 1e-6 of the largest entry of all gradients may be a rounding error. Its
    difference is measured relative to this bound instead.
    """
    sizes = {name: float(value.abs().max()) for name, value in expected.items()}
    floor = _SMALL * max(size for name, size in [*sizes.items(), ("", 0.0)] if name != LOSS) or 1e-300
    differences = []
    for name, size in sizes.items():
        right, other = expected[name], found[name].to(expected[name])
        error = float((other - right).abs().max()) / max(size, floor)
        if not error <= tolerance:
            missing = size > floor and not other.any()
            differences.append(Difference(name, error, _factor(right, other), missing))
    return tuple(differences)


def _factor(right: Tensor, other: Tensor) -> float | None:
    square = float((right * right).sum())
    if not square:
        return None
    factor = float((right * other).sum()) / square
    off = float((other - factor * right).abs().max())
    return factor if factor and off <= _LIKE * float(other.abs().max()) else None


def causes_of(outcomes: Iterable[Outcome], of_the_loss: Iterable[str], repeatable: bool) -> tuple[str, ...]:
    """Return the probable causes of the differences, one sentence each, the most certain first.

    Args:
        outcomes: the outcomes of all settings.
        of_the_loss: names of the weights that the loss reads and no encoder reads.
        repeatable: whether an encoder returns the same vectors for the same chunk and the same state of torch's random
            number generators.
    """
    outcomes = list(outcomes)
    plain = [one for one in outcomes if one.processes == 1 and not one.frozen and one.failure is None]
    wrong = [one for one in outcomes if not one]
    causes = [f"`{one.setting}` ends in an exception" for one in wrong if one.failure is not None]
    if not repeatable:
        causes.append(
            "an encoder gives other vectors for the same chunk and the same random state of torch: draw its random numbers"
            " with torch, because the second pass cannot repeat those of Python or NumPy"
        )
    left = _left_out(wrong)
    causes += _of_weights_left_out(left, set(of_the_loss))
    if rest := [one for one in plain if _besides(one, left)]:
        causes += _of_one_process(plain, rest, left) if repeatable else []
    else:
        causes += _of_processes([one for one in wrong if one.processes > 1], left)
        if any(one.frozen and _besides(one, left) for one in wrong):
            causes.append("a frozen part is not skipped, so the weights of the other parts get a wrong gradient")
    return tuple(causes) or (("no simple cause: the gradient has a wrong direction",) if wrong else ())


def _left_out(wrong: list[Outcome]) -> list[str]:
    """Return the weights that lack a gradient in at least one outcome, and have a wrong gradient in no outcome."""
    differences = [one for each in wrong for one in each.differences]
    some = {one.weight for one in differences if not one.missing}
    return list(dict.fromkeys(one.weight for one in differences if one.missing and one.weight not in some))


def _besides(outcome: Outcome, left: list[str]) -> list[Difference]:
    """Return the differences of an outcome, except those of the weights in ``left``."""
    return [one for one in outcome.differences if one.weight not in left]


def _factors(outcomes: Iterable[Outcome], left: list[str]) -> set[float | None]:
    """Return the factors between gradients and correct gradients, to three digits; None = a gradient has no such factor."""
    found = [one for each in outcomes for one in _besides(each, left) if one.weight != LOSS]
    return {None if one.factor is None else float(f"{one.factor:.3g}") for one in found}


def _of_weights_left_out(left: list[str], of_the_loss: set[str]) -> list[str]:
    own, others = ([name for name in left if (name in of_the_loss) == side] for side in (True, False))
    causes = []
    if own:
        causes.append(
            f"weights of the loss get no gradient ({', '.join(own)}): the loss is differentiated with respect to the"
            " vectors only"
        )
    if others:
        causes.append(f"no gradient reaches {', '.join(others)}: the chunks of this encoder are not back-propagated")
    return causes


def _of_one_process(plain: list[Outcome], wrong: list[Outcome], left: list[str]) -> list[str]:
    """Return the causes of differences within one process. Causes that also occur without dropout come first."""
    steady = [one for one in wrong if not one.random]
    causes = [_of_chunks([one for one in plain if not one.random], steady, left)] if steady else []
    if len(steady) < len(wrong) and not (steady and all(one.replayed for one in wrong)):
        causes.append("dropout is not replayed: the second pass of a chunk draws other random numbers than the first")
    return causes


def _of_chunks(plain: list[Outcome], wrong: list[Outcome], left: list[str]) -> str:
    factors = _factors(wrong, left)
    if len(wrong) == len(plain) and factors == {-1.0}:
        return "the sign is wrong: every gradient is -1 times the right one"
    if len(wrong) == len(plain) and len(factors) == 1 and None not in factors:
        return f"a constant factor: every gradient is {factors.pop():g} times the right one"
    if not factors:
        return "the returned loss is not the loss of the whole batch"
    if factors == {None} and max(each.error for one in wrong for each in _besides(one, left)) < _NEARLY:
        return "the gradients are nearly right: something is rounded, such as vectors or gradients in half precision"
    for one in wrong:
        if any(difference.missing for difference in _besides(one, left)):
            return f"chunks are left out: some weights have no gradient {one.setting}"
    if all(one.chunks == 1 for one in wrong) or (len(wrong) == len(plain) and factors == {None}):
        return "no simple cause: the gradient has a wrong direction, however the batch is cut into chunks"
    seen = [(one.chunks, _factors([one], left)) for one in sorted(wrong, key=lambda one: one.chunks)]
    known = [
        f"{multiple.pop():g} times the right one with {n} chunks"
        for n, multiple in seen
        if len(multiple) == 1 and None not in multiple
    ]
    return (
        f"the gradient depends on how the batch is cut into chunks{': ' if known else ''}{', '.join(known)}; a chunk's"
        " gradient is scaled by its size or by the number of chunks, or the loss is computed of one chunk at a time"
    )


def _of_processes(wrong: list[Outcome], left: list[str]) -> list[str]:
    """Return the cause of the differences that occur only with several processes."""
    factors = _factors(wrong, left)
    if not factors:
        return []
    if len(factors) == 1 and None not in factors:
        return [
            f"with {wrong[0].processes} processes every gradient is {factors.pop():g} times the right one: the mean over the"
            " processes, as DDP takes it, must be the gradient of the whole batch"
        ]
    return [
        "the vectors of the other process carry no gradient: the gradient of its loss for this process's rows is lost when"
        " the vectors are gathered"
    ]
