"""The tables of the papers: what they print as their command fills every cell that is not of published numbers alone.

The commands run as they are printed, on small files and with small models in the places of those on the hub.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import conf_pages
import pytest
from shipped_tables import NAMES, config_of
from small_runs import (
    MODEL,
    PROJECT,
    run_command,
    some_text,
    write_articles,
    write_beir,
    write_documents,
    write_dpr,
    write_marco,
    write_marco_documents,
    write_stsb,
)
from small_t5 import save_small_t5
from table_data import data

from condensery.pipeline.config import TableConfig
from condensery.pipeline.reports import table_of_studies
from condensery.pipeline.reports.report import table_of
from condensery.reporting.results import Row
from condensery.reporting.table import MISSING
from condensery.stages.registry import registry

TEXT = some_text(documents=24, seed=5)
SIZES = {500: 6, 1000: 8, 10000: 12, 100000: 14}  # training examples of the papers -> those of the small files
MEASURABLE = [name for name in NAMES if config_of(name).command]
OTHER_COMMANDS = {  # that a table's file names beside the one it prints
    "rocketqa_comparison": (
        "python run.py experiment=rocketqa_msmarco data.root=DIR; "
        "python run.py experiment=cocondenser_msmarco data.root=DIR"
    ),
    "abs_scheduling": "python run.py -m experiment=abs_msmarco table=abs_scheduling data.root=DIR",
}
POSITIONS = "backbone.max_positions=160"
LENGTHS = {"query_length": 32, "passage_length": 100, "length": 100}  # tokens, of all that is trained
OWN = {
    **{f"query_number{end}": ["++stages.query_as_context.candidates=1,5"] for end in ("_msmarco", "_cotmae_msmarco")},
    "abs_msmarco": ["stage.finetune.train_queries=14"],
    "rocketqa_msmarco": [
        *("stage.denoise.below=1", "stage.pseudo_label.positive=0.01", "stage.pseudo_label.negative=0"),
    ],
    "ablation/rocketqa_comparison": [
        *("stage.denoise.below=1", "stage.pseudo_label.positive=0.01", "stage.pseudo_label.negative=0"),
        "data.unlabelled_queries=10",
    ],
}
RUNS = [(name, str(config_of(name).command)) for name in MEASURABLE] + list(OTHER_COMMANDS.items())


@dataclass(frozen=True)
class Small:
    """Small files, by the beginning of the recipes that read them, and checkpoints of small models."""

    roots: dict[str, Path]
    encoder: Path
    generator: Path


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
    done = run_command(
        "experiment=condenser_wikipedia", f"data.root={write_documents(folder / 'text', TEXT)}", *MODEL, POSITIONS,
        "stages.condenser.steps=1", "stages.condenser.epochs=null", f"output_root={folder / 'out'}", "logger=csv",
    ).sound()  # fmt: skip
    encoder = (done.folder / "stages" / "condenser").resolve()
    save_small_t5(folder / "t5", (done.folder / "stages" / "tokenizer").resolve())
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
    return Small(roots, encoder, folder / "t5")


def arguments(command: str, small: Small) -> list[str]:
    """The arguments of a printed command, with small files in the places of DIR and FOLDER, and few steps of everything."""
    given = shlex.split(command)[2:]
    (recipe,) = (word.partition("=")[2] for word in given if word.startswith("experiment="))
    root = next(folder for name, folder in small.roots.items() if recipe.startswith(name))
    places = {"stage.read_sts.root": str(root), "data.root": str(root)}
    if recipe == "cocondenser_beir":
        places["data.root"] = ",".join(str(path.parent) for path in sorted(root.rglob("corpus.jsonl")))
    words = []
    for word in given:
        key, sign, value = word.partition("=")
        value = str(small.encoder) if value == "FOLDER" else places.get(key, value)
        words.append(f"{key}{sign}{value}")
    if recipe.startswith("ablation/"):
        words += ["data=squad", f"data.root={root}"] if root == small.roots["ablation/"] else []
        words += [*MODEL, "seed=1"]
    else:
        models = [f"backbone.{key}={small.encoder}" for key in ("name", "tokenizer")]
        words += [*(one for one in MODEL if not one.startswith("backbone")), *models]
    return [*words, *few(recipe, small), *OWN.get(recipe, [])]


def few(recipe: str, small: Small) -> Iterator[str]:
    """Two steps of everything that trains, inputs that fit, and the local checkpoint instead of those on the hub."""
    whole = conf_pages.read(PROJECT / "conf" / "experiment" / f"{recipe}.yaml").whole()
    for name, given in whole["stages"].items():
        kind = (given or {}).get("stage")
        fields = registry()[kind].config.model_fields if kind else {}
        if "max_grad_norm" in fields:
            yield from (f"++stages.{name}.{key}" for key in ("steps=2", "epochs=null", "token_budget=null"))
        if kind in ("finetune", "train_cross_encoder"):
            yield f"++stages.{name}.batch_size=4"
        lengths = {key: tokens for key, tokens in LENGTHS.items() if key in fields}
        yield from (f"++stages.{name}.{key}={tokens}" for key, tokens in lengths.items())
        for key, value in (given or {}).get("backbone", {}).items():
            if "/" in str(value):
                yield f"stages.{name}.backbone.{key}={small.encoder}"
        if kind == "tokenizer" and "name" in given:
            yield f"stages.{name}.name={small.encoder}"
        if kind == "generate_queries" and given.get("model", True):
            yield from (f"++stages.{name}.{key}" for key in (f"model={small.generator}", "max_tokens=8"))
    for sizes in whole.get("hydra", {}).get("sweeper", {}).get("params", {}).items():
        key, values = sizes
        for size, smaller in SIZES.items():
            values = re.sub(rf"\b{size}\b", str(smaller), str(values))
        if values != str(sizes[1]):
            yield f"{key}={values}"


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
