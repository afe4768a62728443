"""What stands in for BM25 in tests of adaptive batches; light, since the process that makes them imports it."""

import os
import signal
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sparse

from condensery.errors import UserError


@dataclass(frozen=True)
class RandomSimilarities:
    """Similarities of 13 queries and some passages; ``broken``: it has nothing to say, or takes the process with it."""

    passages: int
    broken: str = ""

    def __call__(self) -> sparse.csr_matrix:
        if self.broken == "user":
            raise UserError("corpus.jsonl:3: no words")
        if self.broken == "crash":
            raise ZeroDivisionError("by zero")
        if self.broken == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return sparse.random(13, self.passages, 0.5, "csr", np.float32, np.random.default_rng(2))
