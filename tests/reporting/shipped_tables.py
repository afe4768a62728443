"""The tables of ``conf/table`` as Hydra composes them."""

from functools import cache
from pathlib import Path

from compositions import composed_once
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from table_data import data

from condensery.pipeline.config import TableConfig
from condensery.reporting.comparison import comparison
from condensery.reporting.table import Table

CONF = Path(__file__).resolve().parents[2] / "conf"
NAMES = sorted(path.stem for path in (CONF / "table").glob("*.yaml") if path.stem != "measured")


@cache
def config_of(name: str) -> TableConfig:
    """The table as it is chosen with ``table=NAME``."""
    with composed_once(), initialize_config_dir(str(CONF), version_base="1.3"):
        found = OmegaConf.to_container(compose("config", [f"table={name}"]).table, resolve=True)
    return TableConfig.model_validate(found)


@cache
def from_nothing(name: str) -> Table:
    """The table with nothing measured."""
    config = config_of(name)
    return comparison(config, [], config.split, config.baseline, studies=config.studies)


def cell_of(name: str, column: str, row: str, block: str = "") -> str:
    """The text of a published cell; ``block`` is needed where a row's label comes twice."""
    shown = data(from_nothing(name))
    (found,) = [
        line
        for one in shown["blocks"]
        for line in one["rows"]
        if line["name"] == row and block in one["heading"].removeprefix("published")
    ]
    assert all(cell["published"] for cell in found["cells"])
    text: str = found["cells"][shown["columns"].index(column)]["text"]
    return text
