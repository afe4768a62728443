"""Stage ``token_vectors``: computes the truncated SVD of the associations between a collection's tokens."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.models import warm_start
from condensery.retrieval.finite import check_finite
from condensery.stages.base import Context
from condensery.stages.warm_start.config import TokenVectorsConfig
from condensery.system.files import load_array
from condensery.system.progress import progress
from condensery.tokens.artifacts import Tokens
from condensery.tokens.cooccurrence import cooccurrences, positive_pmi, truncated_svd


def token_vectors(config: TokenVectorsConfig, context: Context) -> dict[str, Any]:
    """Write left.npy (V, dim), the left singular vectors, and values.npy (dim,), the singular values, largest first.

    V is the size of the vocabulary.
    """
    tokens = Tokens(context.input("tokens"))
    store, size = tokens.documents, tokens.vocabulary.size
    with progress(f"{context.stage_name}: pairs", store.token_count, "tokens") as task:
        associations = positive_pmi(cooccurrences(store, size, config.window, task), config.smoothing)
    left, values = truncated_svd(associations, config.dim)
    check_finite(left, f"{context.stage_name}: the vector of token", remedy="set another dim")
    np.save(context.folder / "left.npy", left.astype(np.float32))
    np.save(context.folder / "values.npy", values)
    return {"tokens": store.token_count, "associations": associations.nnz}


def read_token_vectors(folder: Path, seed: int) -> NDArray[np.float64]:
    """Return the token vectors (V, dim) of an artifact after a random rotation (``models.warm_start.token_vectors``).

    Args:
        folder: folder of the artifact.
        seed: random seed of the rotation.
    """
    left, values = (load_array(folder / f"{name}.npy") for name in ("left", "values"))
    return warm_start.token_vectors(left, values, seed)
