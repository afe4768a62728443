"""A retriever whose rankings are known."""

import numpy as np

from condensery.retrieval.ranking import Ranking
from condensery.system.progress import ProgressTask


class InRowOrder:
    """Finds all passages in the order of their rows.

    Attributes:
        asked: how deep each search was.
    """

    scores = "its own"

    def __init__(self, passages: int = 10) -> None:
        self.passages, self.asked = passages, list[int]()

    def __len__(self) -> int:
        return self.passages

    def search(self, query_rows: np.ndarray, k: int, progress: ProgressTask | None = None) -> Ranking:
        self.asked.append(k)
        rows = np.tile(np.arange(k), (len(query_rows), 1))
        return -rows.astype(np.float32), rows
