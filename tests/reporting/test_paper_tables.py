"""The tables of the papers: what they print as their command fills every cell that is not of published numbers alone.

The commands run as they are printed, on small files and with small models in the places of those on the hub.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from shipped_tables import CONF, NAMES, config_of
from small_recipes import SIZES, Checkpoints, few, models, small_checkpoints
from small_runs import (
    MODEL,
    run_command,
    some_text,
    write_articles,
    write_beir,
    write_dpr,
    write_marco,
    write_marco_documents,
    write_stsb,
)
from table_data import data

from condensery.pipeline.config import TableConfig
from condensery.pipeline.reports import table_of_studies
from condensery.pipeline.reports.report import table_of
from condensery.reporting.results import Row
from condensery.reporting.table import MISSING

TEXT = some_text(documents=24, seed=5)
COMMANDS = {name: OmegaConf.load(CONF / "table" / f"{name}.yaml").get("command") for name in NAMES}
OTHER_COMMANDS = {  # that a table's file names beside the one it prints
    "rocketqa_comparison": (
        "python run.py experiment=rocketqa_msmarco data.root=DIR; "
        "python run.py experiment=cocondenser_msmarco data.root=DIR"
    ),
    "abs_scheduling": "python run.py -m experiment=abs_msmarco table=abs_scheduling data.root=DIR",
}
OWN = {
    **{f"query_number{end}": ["++stages.query_as_context.candidates=1,5"] for end in ("_msmarco", "_cotmae_msmarco")},
    "abs_msmarco": ["stage.finetune.train_queries=14"],
    "ablation/rocketqa_comparison": ["data.unlabelled_queries=10"],
}
RUNS = [(name, command) for name, command in COMMANDS.items() if command] + list(OTHER_COMMANDS.items())


@dataclass(frozen=True)
class Small:
    """Small files, by the beginning of the recipes that read them, and checkpoints of small models."""

    roots: dict[str, Path]
    checkpoints: Checkpoints


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    folder = tmp_path_factory.mktemp("small")
    articles = write_articles(write_stsb(folder / "articles", TEXT), some_text(documents=30, paragraphs=6, seed=5))
    marco = write_marco(folder / "marco", TEXT, trec=True)
    with open(marco / "queries.train.tsv", "a") as stream:  # queries that nobody judged, as the official file has them
        stream.writelines(
            f"x{at}\twhat about {words.split()[0]}\n" for at, (_, _, words, _) in enumerate(TEXT.passages)
        )
    for column in config_of("query_as_context_beir").columns.values():
        name = {"cqadupstack": "cqadupstack/android"}.get(str(column.collection), str(column.collection))
        if name != "average":
            write_beir(folder / "beir" / name, some_text(documents=4, seed=len(name)))
    roots = {
        "cocondenser_msmarco_document": write_marco_documents(folder / "documents", TEXT),
        "cocondenser_beir": folder / "beir",
        "ablation/stsb": articles,
        "ablation/wiki_sections": articles,
        "ablation/": write_beir(folder / "squad", TEXT),
        **{one: write_dpr(folder / "nq", TEXT) for one in ("cocondenser_nq", "low_data_nq")},
        **{one: write_dpr(folder / "t", TEXT, "trivia") for one in ("cocondenser_triviaqa", "low_data_triviaqa")},
        "": marco,
    }
    return Small(roots, small_checkpoints(folder, TEXT))


def arguments(command: str, small: Small) -> list[str]:
    """The arguments of a printed command, with small files in the places of DIR and FOLDER, and few steps of everything."""
    given = shlex.split(command)[2:]
    (recipe,) = (word.partition("=")[2] for word in given if word.startswith("experiment="))
    root = next(folder for name, folder in small.roots.items() if recipe.startswith(name))
    places = {"stage.read_sts.root": str(root), "data.root": str(root)}
    words = []
    if recipe == "cocondenser_beir":  # sweeps over the folders of its collections
        words.append("data.root=" + ",".join(str(path.parent) for path in sorted(root.rglob("corpus.jsonl"))))
    for word in given:
        key, sign, value = word.partition("=")
        value = str(small.checkpoints.encoder) if value == "FOLDER" else places.get(key, value)
        words.append(f"{key}{sign}{value}")
    if recipe.startswith("ablation/"):
        words += ["data=squad", f"data.root={root}"] if root == small.roots["ablation/"] else []
        words += [*MODEL, "seed=1"]
    else:
        words += models(small.checkpoints)
    return [*words, *few(recipe, small.checkpoints), *OWN.get(recipe, [])]


def filled(config: TableConfig, rows: list[Row]) -> list[str]:
    """The names of the measured lines, after a check that each has a number wherever one can be measured."""
    columns = {
        label: column.model_copy(
            update={"where": {key: SIZES.get(value, value) for key, value in column.where.items()}}
        )
        for label, column in config.columns.items()
    }
    table = data(table_of(config.model_copy(update={"columns": columns}), rows, ""))
    measured = [row for block in table["blocks"] if not block["published"] for row in block["rows"]]
    for row in measured:
        for (label, column), cell in zip(columns.items(), row["cells"], strict=True):
            assert (cell["text"] != MISSING) == (column.metric is not None), f"{row['name']}: {label}"
    assert not [note for note in table["notes"] if note.startswith("Measured, but with no number")]
    return [row["name"] for row in measured]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "command"), RUNS, ids=[f"{name}: {command[15:60]}" for name, command in RUNS])
def test_the_command_of_a_table_fills_it(name: str, command: str, small: Small, tmp_path: Path) -> None:
    studies = []
    for one in command.split("; "):
        done = run_command(*arguments(one, small), f"output_root={tmp_path}", "logger=csv").sound()
        studies.append(done.folder)
    config = config_of(name)
    rows = table_of_studies.of_studies({study: table_of_studies.measured(tmp_path, study) for study in config.studies})
    names = filled(config, rows)
    assert names
    assert len(names) == len(set(names)) or len({row.collection for row in rows}) > 1
    if config.baseline:
        assert config.baseline in names
