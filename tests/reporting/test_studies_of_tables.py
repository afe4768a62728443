"""Every recipe stands in the table that its rows belong to, or there is a reason why it stands in none."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from shipped_tables import CONF, NAMES, config_of

RECIPES = {
    str(OmegaConf.load(path)["name"]): path.relative_to(CONF / "experiment").with_suffix("").as_posix()
    for path in sorted(CONF.glob("experiment/**/*.yaml"))
}
PRETRAINS, NO_PAPER = "it pre-trains and measures nothing", "no paper has such rows"
OWN_QUESTION = "a question of this project, on docstrings and at CPU size"
IN_NO_TABLE = {
    **dict.fromkeys(("condenser_wikipedia", "condenser_wikipedia_books", "ict_wikipedia"), PRETRAINS),
    **dict.fromkeys(("mini", "smoke"), "it shows that everything runs"),
    **dict.fromkeys(("quickstart", "cocondenser_squad", "cocondenser_local", "cocondenser_local_queries"), NO_PAPER),
    **dict.fromkeys(("adapt", "adapt_queries"), "its rows are of a collection of the user"),
    **dict.fromkeys(("ablation-released", "ablation-released_text"), "its rows are of a collection of the user"),
    "ablation-rocketqa": "ablation-rocketqa_comparison has its rows, with the metrics of the table",
    "ablation-batch_scheduling_size": "the paper has no table by the batch size",
    "ablation-attention_entropy": "its result is a figure",
    "ablation-attention_entropy_sections": "its result is a figure",
    "ablation-query_source": "its pairs are audited, and the audit stands beside the numbers of table=audit",
    **dict.fromkeys(
        [
            f"ablation-{name}"
            for name in (
                *("pretraining", "pretraining_steps", "hard_negatives", "second_round", "contrast_batch", "model_size"),
                *("warm_start", "warm_start_squad", "windows"),
            )
        ],
        OWN_QUESTION,
    ),
}


@cache
def recipe(name: str) -> Any:
    """The composed table of a recipe."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        composed = compose("config", [f"experiment={RECIPES[name]}"])
        return OmegaConf.to_container(composed.table, resolve=True)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_finds_its_table(name: str) -> None:
    tables = [table for table in NAMES if name in config_of(table).studies]
    if name in IN_NO_TABLE:
        assert not tables, IN_NO_TABLE[name]
        return
    assert tables, "name it in `studies` of the table that its rows belong to, or give the reason in IN_NO_TABLE"
    rows = recipe(name)
    assert [label for label, stage in rows["rows"].items() if stage is not None]
    for table in tables:
        wanted = {column.metric for column in config_of(table).columns.values()}
        assert wanted & set(rows["metrics"]), f"none of its metrics is one of table={table}"


@pytest.mark.parametrize("table", NAMES)
def test_a_table_names_recipes(table: str) -> None:
    assert set(config_of(table).studies) <= set(RECIPES)
    assert config_of(table).studies or table == "audit", "its numbers are of audits, not of rows"


def test_reasons_are_of_recipes() -> None:
    assert set(IN_NO_TABLE) <= set(RECIPES)
    assert Path(CONF).is_dir()
