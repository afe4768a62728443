"""What the tests of all baselines share."""

import pickle
from collections.abc import Iterator

import pytest

from condensery.training.data.steps import StepDataset


@pytest.fixture(scope="module", autouse=True)
def _batches_reach_worker_processes() -> Iterator[None]:
    """Whatever makes batches can be pickled, as ``trainer.workers`` needs it."""
    make = StepDataset.__init__

    def checked(self: StepDataset, *arguments: object) -> None:
        make(self, *arguments)  # type: ignore[arg-type]
        pickle.dumps(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepDataset, "__init__", checked)
        yield
