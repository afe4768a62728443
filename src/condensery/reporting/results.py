"""Read and write ``results.json``, the results of a run, with one entry per row of its table."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, TypeAdapter

from condensery.errors import UserError
from condensery.system.files import RECOMPUTE, inside, read_as, read_json, write_json

Metric = Annotated[float, Field(ge=-1e6, le=1e6)]  # ranking metrics are in [0, 1], correlations in [-1, 1]
Cost = Annotated[float, Field(ge=-1e15, le=1e15)]
Unwritten = Field(exclude=True)  # marks a field that is read from the artifact
# keys of an entry that are written even if their values are empty
ALWAYS = ("row", "collection", "split", "metrics", "seed", "artifact")


@dataclass(frozen=True)
class Row:
    """The evaluation of one system on one split of one collection.

    Attributes:
        name: name of the system in the table.
        metrics: metric -> mean over the queries, between 0 and 1.
        per_query: metric -> value for each query, float64 (queries,), for significance tests; may be empty.
        query_ids: ids of these queries, in the same order.
        seed: seed of the run, if it has one.
        artifact: id of the evaluated artifact.
        failed: reason why there is no result, in one line; empty if there is a result.
        system: the name without the prefix that a sweep added; empty if no prefix was added.
        warnings: caveats on the data from which the numbers were computed, such as test queries that also occur in train.
        recommended: reasons for the recommendation if the table recommends this row (``table.recommend``); empty otherwise.
        costs: cost -> its amount, for the costs that the table shows (``table.costs``).
        settings: in a sweep, config key -> the values of this key in the jobs that produced this row.
        configs: config key -> its values in the stages that made the artifact; empty if the stages are not known. These
            values are read from the artifacts, and are not written.
    """

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)

    name: Annotated[str, Field(alias="row")]
    collection: str
    split: str
    metrics: dict[str, Metric]
    per_query: Annotated[dict[str, NDArray[np.float64]], Unwritten] = field(default_factory=dict, compare=False)
    query_ids: Annotated[Sequence[str], Unwritten] = field(default=(), compare=False)
    seed: int | None = None
    artifact: str = ""
    failed: str = ""
    warnings: Sequence[str] = field(default=(), compare=False)
    recommended: str = field(default="", compare=False)
    costs: dict[str, Cost] = field(default_factory=dict, compare=False)
    system: str = ""
    settings: dict[str, list[str]] = field(default_factory=dict, compare=False)
    configs: Annotated[dict[str, list[str]], Unwritten] = field(default_factory=dict, compare=False)


def write_results(path: Path, rows: Sequence[Row]) -> None:
    """Write the rows as ``results.json``. Their per-query values are left out, because the artifacts contain them."""
    entries = TypeAdapter(list[Row]).dump_python([*rows], mode="json", by_alias=True)
    write_json(path, [{key: value for key, value in one.items() if value or key in ALWAYS} for one in entries])


def read_results(path: Path) -> list[Row]:
    """Read the rows that ``write_results`` wrote. Raises ``UserError``, which names the invalid entry and field."""
    rows = read_as(path, list[Row])
    for number, (row, entry) in enumerate(zip(rows, read_json(path), strict=True)):
        if lacking := [key for key in ALWAYS if key not in entry]:
            raise UserError(f"{path}: {number}: {lacking[0]}: Field required; {RECOMPUTE}")
        if row.artifact:
            inside(Path("artifacts"), row.artifact, f"{path}: entry {number}")
    return [replace(row, per_query={}, query_ids=(), configs={}) for row in rows]
