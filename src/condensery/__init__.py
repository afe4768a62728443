"""Condensery trains dense retrievers from raw text, and measures whether each training step improved retrieval.

The names in ``__all__`` are the public API for Python programs. Each name is imported on first access, so that ``import
condensery`` costs nothing and changes nothing in the process.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers, `X as X` marks a name that this module exports
    from condensery.errors import UserError as UserError
    from condensery.evaluation.evaluate import evaluate as evaluate
    from condensery.losses.cached_backward import cached_backward as cached_backward
    from condensery.losses.registry import register as register
    from condensery.losses.retrieval_loss import RetrievalLoss as RetrievalLoss
    from condensery.results import run as run
    from condensery.retrieval.pair_scores import PairScores as PairScores
    from condensery.retrieval.searchers.base import Hit as Hit
    from condensery.retrieval.searchers.bm25 import BM25 as BM25
    from condensery.retrieval.searchers.fused import Fused as Fused
    from condensery.retrieval.searchers.reranked import Reranked as Reranked
    from condensery.retrieval.searchers.retriever import Retriever as Retriever
    from condensery.training.data.passage_queries import PassageQueryDataModule as PassageQueryDataModule
    from condensery.training.data.rankings import RankingDataModule as RankingDataModule
    from condensery.training.data.span_batches import ContextMasking as ContextMasking
    from condensery.training.data.spans import SpanPairDataModule as SpanPairDataModule
    from condensery.training.data.triples import TripleDataModule as TripleDataModule
    from condensery.training.gradient_check import check_gradients as check_gradients
    from condensery.training.modules.biencoder import BiEncoderModule as BiEncoderModule
    from condensery.training.modules.contrastive import ContrastiveModule as ContrastiveModule
    from condensery.training.modules.cross_encoder import CrossEncoderModule as CrossEncoderModule
    from condensery.training.modules.pretraining import CoCondenserModule as CoCondenserModule
    from condensery.training.modules.pretraining import CondenserModule as CondenserModule
    from condensery.training.modules.pretraining import InverseClozeModule as InverseClozeModule
    from condensery.training.modules.pretraining import MaskedAutoEncoderModule as MaskedAutoEncoderModule
    from condensery.training.modules.pretraining import QueryAsContextModule as QueryAsContextModule
    from condensery.training.modules.query_tower import QueryTowerModule as QueryTowerModule

__version__ = "0.2.0"

# name -> the module that defines it, from the imports above, which are executed only by type checkers
_MODULES = {
    alias.name: str(node.module)
    for node in ast.walk(ast.parse(Path(__file__).read_text(encoding="utf-8")))
    if isinstance(node, ast.ImportFrom) and str(node.module).startswith(f"{__name__}.")
    for alias in node.names
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
