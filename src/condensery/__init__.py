"""Condensery trains dense retrievers from raw text, and measures whether each training step improved retrieval.

The names in ``__all__`` are the public API for Python programs. Each name is imported on first access, so that ``import
condensery`` costs nothing and changes nothing in the process.
"""

from importlib import import_module
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

_MODULES = {
    "BM25": "retrieval.searchers.bm25",
    "BiEncoderModule": "training.modules.biencoder",
    "CoCondenserModule": "training.modules.pretraining",
    "CondenserModule": "training.modules.pretraining",
    "ContextMasking": "training.data.span_batches",
    "ContrastiveModule": "training.modules.contrastive",
    "CrossEncoderModule": "training.modules.cross_encoder",
    "Fused": "retrieval.searchers.fused",
    "Hit": "retrieval.searchers.base",
    "InverseClozeModule": "training.modules.pretraining",
    "MaskedAutoEncoderModule": "training.modules.pretraining",
    "PairScores": "retrieval.pair_scores",
    "PassageQueryDataModule": "training.data.passage_queries",
    "QueryAsContextModule": "training.modules.pretraining",
    "QueryTowerModule": "training.modules.query_tower",
    "RankingDataModule": "training.data.rankings",
    "Reranked": "retrieval.searchers.reranked",
    "RetrievalLoss": "losses.retrieval_loss",
    "Retriever": "retrieval.searchers.retriever",
    "SpanPairDataModule": "training.data.spans",
    "TripleDataModule": "training.data.triples",
    "UserError": "errors",
    "cached_backward": "losses.cached_backward",
    "check_gradients": "training.gradient_check",
    "evaluate": "evaluation.evaluate",
    "register": "losses.registry",
    "run": "results",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
