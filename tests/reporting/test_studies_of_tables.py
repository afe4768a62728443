"""Every recipe stands in the table that its rows belong to, or there is a reason why it stands in none."""

import conf_pages
import pytest
from omegaconf import OmegaConf
from shipped_tables import CONF, NAMES

TABLES = {name: OmegaConf.load(CONF / "table" / f"{name}.yaml") for name in NAMES}
DEFAULT = OmegaConf.load(CONF / "table" / "measured.yaml")
STUDIES = {name: list(table.get("studies", [])) for name, table in TABLES.items()}
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
    **dict.fromkeys(
        ("ablation-released", "ablation-released_low_data", "ablation-released_text"),
        "its rows are of a collection of the user",
    ),
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
                *("warm_start", "warm_start_squad", "windows", "head_start", "pretraining_speed"),
                *("baselines", "baselines_released"),
            )
        ],
        OWN_QUESTION,
    ),
    **dict.fromkeys(
        (
            *("ance", "bert_nli", "deepct", "doc2query", "late_interaction", "splade"),
            *("led", "pair", "rocketqa_v2", "simlm", "tas_b", "tct_colbert"),
            *("simlm_pretraining", "seed", "costa", "lexmae", "master", "dpr_paq", "gar"),
        ),
        OWN_QUESTION,
    ),
    "attention_entropy_sections": "its result is a figure",
    "released_beir_by_name": "no paper has these checkpoints beside one another on BEIR",
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_finds_its_table(name: str) -> None:
    tables = [table for table, studies in STUDIES.items() if name in studies]
    if name in IN_NO_TABLE:
        assert not tables, IN_NO_TABLE[name]
        return
    assert tables, "name it in `studies` of the table that its rows belong to, or give the reason in IN_NO_TABLE"
    own = conf_pages.read(CONF / "experiment" / f"{RECIPES[name]}.yaml").whole()["table"]
    measured = set(own.get("metrics", DEFAULT.metrics))
    assert any(stage is not None for stage in own["rows"].values())
    for table in tables:
        wanted = {column.get("metric") for column in TABLES[table].columns.values()}
        assert wanted & measured, f"none of its metrics is one of table={table}"


@pytest.mark.parametrize("table", NAMES)
def test_a_table_names_recipes(table: str) -> None:
    assert set(STUDIES[table]) <= set(RECIPES)
    assert STUDIES[table] or table == "audit", "its numbers are of audits, not of rows"


def test_reasons_are_of_recipes() -> None:
    assert set(IN_NO_TABLE) <= set(RECIPES)
