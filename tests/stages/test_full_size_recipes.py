"""Every recipe on MS MARCO and on Natural Questions runs to its full table: on native files, and on those of ir_datasets.

The files are small, the models too, and what trains takes two steps. A new recipe is found by its name.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from error_lines import names
from paq_files import write_paq
from served import MARCO, empty_home, publish_marco, served, stand_in
from small_recipes import Checkpoints, few, models, small_checkpoints, stages_of
from small_runs import PROJECT, Done, metrics_of, run_command, some_text, splits_of, write, write_dpr, write_marco

TEXT = some_text(documents=24, seed=5)
NAMES = sorted(path.stem for path in (PROJECT / "conf" / "experiment").glob("*.yaml"))
ON_MARCO, ON_QUESTIONS = ([name for name in NAMES if name.endswith(end)] for end in ("_msmarco", "_nq"))
UNJUDGED = [(f"x{at}", f"what about {words.split()[0]}") for at, (_, _, words, _) in enumerate(TEXT.passages)]
DOCUMENT = "<DOC>\n<DOCNO>{}</DOCNO>\n<TEXT>\nhttps://x.org/{}\n{}\n{}\n</TEXT>\n</DOC>\n"


@dataclass(frozen=True)
class Small:
    """Small files of MS MARCO and of Natural Questions, checkpoints, and a folder of artifacts that all recipes share."""

    marco: Path
    questions: Path
    checkpoints: Checkpoints
    out: Path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    folder = tmp_path_factory.mktemp("full_size")
    marco = write_marco(folder / "marco", TEXT, trec=True)
    write(marco / "para.title.txt", (f"{name}\t{title}" for name, title, *_ in TEXT.passages))
    with open(marco / "queries.train.tsv", "a") as stream:  # queries that nobody judged, as the official file has them
        stream.writelines(f"{name}\t{words}\n" for name, words in UNJUDGED)
    write_paq(folder / "paq")
    questions = write_dpr(folder / "nq", TEXT)
    file = questions / "biencoder-nq-train.json"
    entries = json.loads(file.read_text())
    entries += [{"question": words, "answers": [words.split()[-1]], "positive_ctxs": []} for _, words in UNJUDGED]
    file.write_text(json.dumps(entries, indent=4))
    return Small(marco, questions, small_checkpoints(folder, TEXT), folder / "out")


@pytest.fixture(scope="module")
def by_name(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """MS MARCO's passages and documents, served as they are published, and ir_datasets that takes them from there."""
    pytest.importorskip("ir_datasets")
    empty_home()
    files = {path.name: path.read_text() for path in small.marco.iterdir()}
    asked = splits_of(TEXT)["dev"]
    for year, part in (("2019", asked[:3]), ("2020", asked[3:])):
        files[f"msmarco-test{year}-queries.tsv"] = "".join(f"{name}\t{words}\n" for name, words, _ in part)
        files[f"{year}qrels-pass.txt"] = "".join(f"{name} Q0 {passage} 3\n" for name, _, passage in part)
    folder = publish_marco(tmp_path_factory.mktemp("published"), files)
    lines = [line.split("\t") for line in files["msmarco-docs.tsv"].splitlines()]
    documents = "".join(DOCUMENT.format(name, name, title, body) for name, _, title, body in lines)
    write(folder / "msmarco-docs.trec.gz", documents.splitlines())
    with served(folder) as place:
        stand_in(place.url, folder, *MARCO, "msmarco-document")
        yield


def full_table(done: Done, recipe: str) -> None:
    """Check that every row of the recipe has every metric, and that the cost is printed before the first stage starts."""
    table = stages_of(recipe)["table"]
    found = metrics_of(done.folder)
    assert set(found) == {str(label) for label, stage in table["rows"].items() if stage}
    for row, metrics in found.items():
        assert set(metrics) >= set(table.get("metrics", [])), row
        assert all(math.isfinite(value) and 0 <= value <= 1 for value in metrics.values()), row
    assert (done.folder / "table.md").exists()
    cost = re.search(r"^\d+ stages? (are|is) to be made, in (about|at least) [\d.]+ (s|min|h) ", done.out, re.MULTILINE)
    first = re.search(r"^\[\S+\] starts$", done.out, re.MULTILINE)
    assert cost
    assert first
    assert cost.start() < first.start()


def command(recipe: str, small: Small) -> list[str]:
    """The recipe's command on small files, without those of the data; of a sweep the settings of the recipe itself."""
    swept = stages_of(recipe).get("hydra", {}).get("sweeper", {}).get("params", {})
    own = [one for one in few(recipe, small.checkpoints) if one.partition("=")[0] not in swept]
    sizes = ["stage.finetune.train_queries=14"] if recipe.startswith("abs_") else []
    sizes += [f"stages.pairs.root={small.out.parent / 'paq'}"] if recipe == "dpr_paq_msmarco" else []
    last = [str(stage) for stage in stages_of(recipe)["table"]["rows"].values() if stage][-1]
    again = f"force=[{last}.evaluation]"  # so that something is to be made, even if other recipes have all the stages
    given = [*models(small.checkpoints), *own, *sizes, again, f"output_root={small.out}", "logger=csv"]
    return [f"experiment={recipe}", *given]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [*ON_MARCO, *ON_QUESTIONS])
def test_it_runs_to_its_full_table_on_native_files(recipe: str, small: Small) -> None:
    root = small.marco if recipe in ON_MARCO else small.questions
    full_table(run_command(*command(recipe, small), f"data.root={root}").sound(), recipe)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ON_MARCO)
def test_it_runs_to_its_full_table_on_data_by_name(recipe: str, small: Small, by_name: None) -> None:
    given = [*command(recipe, small), "data=ir_datasets", "data.name=msmarco-passage"]
    missing = run_command(f"experiment={recipe}", f"data.root={small.out / 'nowhere'}", "dry_run=plan").err
    if "data.documents=msmarco-document" in missing:  # the line about missing files offers the documents
        given.append("data.documents=msmarco-document")
    if "titles" in stages_of(recipe).get("data", {}):  # a key of the native files
        given.append("~data.titles")
    full_table(run_command(*given).sound(), recipe)


@pytest.mark.slow
def test_too_few_passages_for_a_list_are_told_before_anything_is_trained(small: Small, tmp_path: Path) -> None:
    given = [*command("rocketqa_v2_msmarco", small), f"data.root={small.marco}", f"output_root={tmp_path}"]
    done = run_command(*(one for one in given if "force" not in one), "++stages.joint.negatives_per_query=127")
    assert (done.code, done.computed) == (1, ["corpus"])
    names(done.err, "stages.joint.negatives_per_query", "127, but up to 1 of 72 passages cannot be negatives")
    assert done.err.count("\n") == 1


def test_recipes_are_found() -> None:
    assert {"cocondenser_msmarco", "released_msmarco", "doc2query_msmarco", "low_data_msmarco"} <= set(ON_MARCO)
    assert {"cocondenser_nq", "rocketqa_nq", "low_data_nq", "attention_entropy_nq"} <= set(ON_QUESTIONS)
