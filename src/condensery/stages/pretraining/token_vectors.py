"""Stage ``token_vectors``: the truncated SVD of the associations between a collection's tokens."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from condensery.stages.base import Context, Input, StageConfig, stage
from condensery.stages.work import Read, Work, known, product

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class TokenVectorsConfig(StageConfig):
    """``window`` in tokens; ``smoothing``: see ``positive_pmi``; ``dim``: how many dimensions are kept."""

    tokens: Annotated[str, Input("tokens")]
    dim: Annotated[int, Field(ge=1)]
    window: Annotated[int, Field(ge=1, le=40)]
    smoothing: Annotated[float, Field(gt=0, le=1)]

    def work(self, read: Read) -> Work:
        """Pairs of neighbouring tokens are counted, and their matrix is taken apart."""
        sizes = known(read)
        return Work(sizes, seconds=product(6.6e-6, sizes.tokens), disk=product(4.0 * self.dim, sizes.vocabulary))


@stage("token_vectors", version=1, makes="token_vectors", cost=2.0, adapts="tokens")
def token_vectors(config: TokenVectorsConfig, context: Context) -> dict[str, Any]:
    """Write left.npy (V, dim), the left singular vectors, and values.npy (dim,), the singular values, falling."""
    import numpy as np

    from condensery.retrieval.finite import check_finite
    from condensery.system.progress import progress
    from condensery.tokens.artifacts import Tokens
    from condensery.tokens.cooccurrence import cooccurrences, positive_pmi, truncated_svd

    tokens = Tokens(context.input("tokens"))
    store, size = tokens.documents, tokens.vocabulary.size
    with progress(f"{context.stage_name}: pairs", store.token_count, "tokens") as task:
        associations = positive_pmi(cooccurrences(store, size, config.window, task), config.smoothing)
    left, values = truncated_svd(associations, config.dim)
    check_finite(left, f"{context.stage_name}: the vector of token", remedy="set another dim")
    np.save(context.folder / "left.npy", left.astype(np.float32))
    np.save(context.folder / "values.npy", values)
    return {"tokens": store.token_count, "associations": associations.nnz}


def other_dimensions(name: str | None, configs: Sequence[StageConfig], hidden: int) -> tuple[str, str] | None:
    """The complaint about the input ``vectors``, where they do not have the dimensions of the model that begins with them."""
    dims = [config.dim for config in configs if isinstance(config, TokenVectorsConfig)]
    if not dims or dims[0] == hidden:
        return None
    return "vectors", f"{name} has {dims[0]} dimensions, the model {hidden}; set its dim"


def read_token_vectors(folder: Path, seed: int) -> "NDArray[np.float64]":
    """The vectors (V, dim) of an artifact, turned by a random rotation: see ``models.warm_start.token_vectors``."""
    from condensery.models.warm_start import token_vectors
    from condensery.system.files import load_array

    left, values = (load_array(folder / f"{name}.npy") for name in ("left", "values"))
    return token_vectors(left, values, seed)
