"""Recipes whose data are named: fetched before anything is trained, then run to their table without a network."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from error_lines import names
from served import MARCO, Place, empty_home, publish_marco, served, stand_in
from small_runs import MODEL, metrics_of, run_command, some_text, splits_of, write, write_hub, write_marco

from condensery.system.files import read_json

pytest.importorskip("ir_datasets")

TEXT = some_text(documents=24, seed=5)
ROWS = ["BM25", *(f"{name}{end}" for name in ("BERT", "Condenser", "coCondenser") for end in ("", " + hard negatives"))]


@pytest.fixture
def marco(tmp_path: Path) -> Iterator[Place]:
    """A small MS MARCO, served as the real one is published."""
    empty_home()
    native = write_marco(tmp_path / "native", TEXT)
    files = {path.name: path.read_text() for path in native.iterdir()}
    asked = splits_of(TEXT)["dev"]
    for year, part in (("2019", asked[:3]), ("2020", asked[3:])):
        files[f"msmarco-test{year}-queries.tsv"] = "".join(f"{name}\t{words}\n" for name, words, _ in part)
        files[f"{year}qrels-pass.txt"] = "".join(f"{name} Q0 {passage} 3\n" for name, _, passage in part)
    with served(publish_marco(tmp_path / "published", files)) as place:
        stand_in(place.url, place.folder, *MARCO)
        yield place


FEW = ["stages.cocondenser.epochs=1", "stage.finetune.epochs=1", "stages.condenser_round1.backbone.name=null"]


def test_the_command_data_fetches_and_prints_every_file_and_the_stages(marco: Place, tmp_path: Path) -> None:
    done = run_command("data", "msmarco-passage", f"output_root={tmp_path / 'out'}").sound()
    assert "msmarco-passage: 7 files" in done.out
    assert "collectionandqueries.tar.gz" in done.out
    assert " corpus " in done.out  # the stages are shown
    assert not (tmp_path / "out").exists()
    asked = len(marco.asked)
    recipe = ["data", "msmarco-passage", "experiment=cocondenser_msmarco", "data.documents=null", "dry_run=plan"]
    for dtype, size in (("float16", "14.4 GB"), ("float32", "28.8 GB")):  # 8.8 million passages, 768 dimensions
        out = run_command(*recipe, f"stage.encode.dtype={dtype}").sound().out
        assert re.findall(r"\.index +│ +│.*│ +([\d.]+ GB) │", out) == [size] * 6
    assert len(marco.asked) == asked


@pytest.mark.slow
def test_a_recipe_on_named_data_runs_to_its_table_without_a_network(marco: Place, tmp_path: Path) -> None:
    recipe = ["experiment=cocondenser_msmarco", f"output_root={tmp_path / 'out'}", "logger=csv", *MODEL, *FEW]
    run_command("data", "msmarco-passage", *recipe).sound()
    stand_in("http://127.0.0.1:9", tmp_path, *MARCO)  # the network is gone
    asked = len(marco.asked)
    done = run_command("data=ir_datasets", "data.name=msmarco-passage", *recipe).sound()
    assert len(marco.asked) == asked
    assert list(metrics_of(done.folder)) == ROWS
    native = run_command("data=msmarco", f"data.root={tmp_path / 'native'}", "stages.corpus={stage: corpus}", recipe[1])
    corpora = native.sound().folder.parents[1] / "artifacts" / "corpus"
    described = [read_json(path) for path in corpora.glob("*/collection.json")]
    assert len(described) == 2
    assert len({(one["passages"], one["passage_characters"]) for one in described}) == 1


@pytest.mark.slow
def test_a_recipe_runs_to_its_table_on_a_data_set_of_the_hub(tmp_path: Path) -> None:
    folder = write_hub(tmp_path / "hub", TEXT) / "retrieval"
    recipe = ["experiment=cocondenser_msmarco", f"output_root={tmp_path / 'out'}", "logger=csv", *MODEL, *FEW]
    done = run_command("data=huggingface", f"data.name={folder}", *recipe).sound()
    assert list(metrics_of(done.folder)) == ROWS
    assert metrics_of(done.folder)["BM25"]["MRR@10"] > 0.3


@pytest.mark.slow
def test_triples_of_texts_train_a_retriever_with_their_own_negatives(tmp_path: Path) -> None:
    folder = write_hub(tmp_path / "hub", TEXT) / "triples"
    done = run_command(
        *("data=huggingface_triples", f"data.name={folder}", f"output_root={tmp_path / 'out'}", "logger=csv", *MODEL),
        *(f"stages.{name}={{stage: {name}}}" for name in ("corpus", "tokenizer", "tokens")),
        "stages.own={stage: read_negatives}",
        "stages.tuned={stage: finetune, init: backbone, negatives: [own], steps: 3, epochs: null}",
    ).sound()
    assert done.computed == ["corpus", "tokenizer", "tokens", "own", "tuned"]
    assert read_json(done.folder / "stages" / "own" / "manifest.json")["metrics"]["queries"] > 10


def test_without_a_network_a_recipe_on_named_data_ends_in_one_line(tmp_path: Path) -> None:
    empty_home()
    (tmp_path / "nothing").mkdir()
    stand_in("http://127.0.0.1:9", tmp_path / "nothing", *MARCO)
    given = [f"output_root={tmp_path / 'out'}", "logger=csv"]
    for arguments in (["data", "msmarco-passage"], ["data=ir_datasets", "data.name=msmarco-passage"]):
        done = run_command(*arguments, "experiment=cocondenser_msmarco", *given)
        assert done.code == 1
        names(done.err.splitlines()[-1], "data.name", "127.0.0.1:9")
        assert done.err.count("error: ") == 1


@pytest.mark.parametrize("arguments", [["data"], ["data", "seed=2"], ["seed=2", "data"]])
def test_the_command_data_wants_a_name(arguments: list[str]) -> None:
    done = run_command(*arguments)
    assert done.code == 1
    names(done.err, "data", "condensery data msmarco-passage")


def test_negatives_of_several_systems_are_read_by_the_stage(tmp_path: Path) -> None:
    native = write_marco(tmp_path / "native", TEXT)
    passages = [name for name, *_ in TEXT.passages]
    lines = (
        json.dumps({"qid": name, "pos": [passage], "neg": {"bm25": passages[:3], "tas-b": passages[3:9]}})
        for name, _, passage in splits_of(TEXT)["train"]
    )
    file = write(tmp_path / "msmarco-hard-negatives.jsonl.gz", lines)
    recipe = [
        "data=msmarco",
        f"data.root={native}",
        "stages.corpus={stage: corpus}",
        f"output_root={tmp_path / 'out'}",
        f"stages.hard={{stage: read_negatives, file: {file}}}",
    ]
    done = run_command(*recipe, "stages.hard.per_system=2").sound()
    first = (done.folder / "stages" / "hard" / "negatives.jsonl").read_text().splitlines()
    assert len(first) == len(splits_of(TEXT)["train"])
    assert all(len(json.loads(line)["negative_ids"]) in (3, 4) for line in first)
    assert "tas-c" in run_command(*recipe, "stages.hard.systems=[tas-c]").err
    done = run_command(*recipe[:-1], "stages.hard={stage: read_negatives, file: a.tsv, per_system: 2}")
    names(done.err, "stages.hard", "per_system", ".jsonl")
