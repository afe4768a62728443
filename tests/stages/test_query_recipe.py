"""Passages and queries from the command line: a recipe with every kind of stage for them, and what people get wrong."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import MODEL, Done, half_written, run_command, some_text, write, write_beir
from small_t5 import save_small_t5

from condensery.tokens.artifacts import Passages, Queries
from condensery.training.data import passage_queries as data

TEXT = some_text(documents=6)
STAGES = [
    "stages.corpus={stage: corpus}",
    "stages.tokenizer={stage: tokenizer}",
    "stages.passages={stage: passages, length: 48, workers: 1}",
]
OWN = "stages.own={stage: passages, grouping: collection, workers: 1}"  # their ids are those of the collection
WRITER = (
    "stages.writer={stage: finetune_generator, layers: 1, hidden: 32, heads: 2, intermediate: 64, steps: 4,"
    " epochs: null, batch_size: 8, log_every: 1}"
)
WARM_WRITER = WRITER.replace("steps: 4", "steps: 4, vectors: tokens")
TOKENS = "stages.tokens={stage: tokens, workers: 1}"
KINDS = {"passages", "read_queries", "extract_queries", "generate_queries", "finetune_generator"}


def _options(**options: Any) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in options.items()) + "}"


def queries_stage(kind: str, **options: Any) -> str:
    return f"stages.queries={_options(stage=kind, **options)}"


def pretraining(kind: str = "pretrain_cotmae", **options: Any) -> str:
    few = {"steps": 2, "epochs": "null", "batch_size": 4, "length": 48, "query_length": 16, "validate_every": 0}
    return f"stages.pre={_options(stage=kind, **{**few, **options})}"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recipe")


@pytest.fixture(scope="module")
def given(root: Path) -> list[str]:
    """What all runs here share: the collection, a small model, one store of artifacts."""
    beir = write_beir(root / "beir", TEXT)
    data = ["data=beir", f"data.root={beir}", "data.splits.dev=dev"]
    return [*STAGES, *data, "logger=csv", *MODEL, "backbone.vocab_size=300", f"output_root={root / 'out'}"]


@pytest.fixture(scope="module")
def done(given: list[str], root: Path) -> Done:
    path = write(root / "read.tsv", (f"{name}\tabout {title}" for name, title, _, _ in TEXT.passages))
    stages = [
        OWN,
        f"stages.read={_options(stage='read_queries', passages='own', path=path)}",
        f"stages.extracted={_options(stage='extract_queries')}",
        TOKENS,
        WARM_WRITER,
        f"stages.queries={_options(stage='generate_queries', model='null', generator='writer', max_tokens=8, number=2)}",
    ]
    return run_command(*given, *stages).sound()


def test_every_kind_of_stage_runs_and_is_reused(done: Done, given: list[str], root: Path) -> None:
    artifacts = done.folder.parents[1] / "artifacts"
    assert {path.parents[1].name for path in artifacts.glob("*/*/manifest.json")} >= KINDS
    assert not half_written(done.folder.parents[1])
    stages = done.folder / "stages"
    queries = {name: Queries((stages / name).resolve()) for name in ("read", "extracted", "queries")}
    assert queries["read"].texts(4) == [f"about {TEXT.passages[4][1]}"]
    assert len(queries["queries"].first) == len(Passages((stages / "passages").resolve()).table) + 1
    assert queries["queries"].counts.max() == 2
    manifest = json.loads((stages / "queries" / "manifest.json").read_text())
    assert manifest["metrics"]["queries"] == len(queries["queries"].store)
    assert (stages / "writer" / "logs" / "metrics.csv").is_file()
    same = queries_stage("generate_queries", model="null", generator="writer", max_tokens=8, number=2)
    again = run_command(*given, TOKENS, WARM_WRITER, same, "trainer.devices=2").sound()
    assert again.computed == [], "the number of processes is not part of what a stage is"


def test_where_files_lie_does_not_matter(done: Done, given: list[str], root: Path) -> None:
    moved = root / "moved.tsv"
    moved.write_bytes((root / "read.tsv").read_bytes())
    read = f"stages.read={_options(stage='read_queries', passages='own', path=moved)}"
    assert run_command(*given, OWN, read).sound().computed == []
    with moved.open("a") as lines:
        lines.write("0\tone more\n")
    assert run_command(*given, OWN, read).sound().computed == ["read"]


def one_line(done: Done, *wanted: str) -> None:
    assert done.code == 1, done.out
    assert done.err.startswith("error: "), done.err
    assert done.err.count("\n") == 1, done.err
    for words in wanted:
        assert words in done.err, f"{words!r} is not in: {done.err}"


CONFIGS: dict[str, tuple[str, list[str]]] = {
    "two generators": (
        queries_stage("generate_queries", generator="writer"),
        ["stages.queries", "give either model or generator"],
    ),
    "a folder that is not there": (
        queries_stage("generate_queries", model="./nix/t5"),
        ["stage.generate_queries.model: ./nix/t5: no such folder"],
    ),
    "a generator that is none": (
        queries_stage("generate_queries", model="null", generator="passages"),
        ["the stage 'passages' makes passages, but generator is needed here"],
    ),
    "a path that is not there": (queries_stage("read_queries", path="/nix/q.tsv"), ["/nix/q.tsv: no such file"]),
    "heads that do not divide": (
        WRITER.replace("heads: 2", "heads: 3"),
        ["stages.writer: hidden (32) must be a multiple of heads (3)"],
    ),
    "vectors for a model that knows its tokens": (
        WARM_WRITER.replace("steps: 4", "steps: 4, model: a/t5"),
        ["stages.writer: vectors is tokens, but model has token vectors already; set one of them to null"],
    ),
    "vectors of another size": (
        WARM_WRITER.replace("hidden: 32", "hidden: 16"),
        ["stages.writer.vectors: tokens has 32 dimensions, the model 16; set the dim of tokens to 16"],
    ),
    "a split that is not there": (
        WRITER.replace("steps: 4", "steps: 4, split: dev") + " data.splits.dev=null",
        [
            "stages.writer.split: dev, but the collection beir has no such split",
            "set data.splits.dev to a file of judgements in ",
        ],
    ),
    "mixed context without queries": (
        pretraining(mixed_context=0.5),
        ["stages.pre: mixed_context mixes passages into pairs with queries; name a stage in `queries`"],
    ),
    "queries that are longer than the positions": (
        pretraining(queries="passages", query_length=200),
        ["stages.pre: query_length=200 is longer than the backbone's 128 positions"],
    ),
    "passages that are no queries": (
        pretraining(queries="passages"),
        ["the stage 'passages' makes passages, but queries is needed here"],
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_fault_of_the_config_is_named_with_its_key(name: str, given: list[str], tmp_path: Path) -> None:
    stage, wanted = CONFIGS[name]
    extra = [WRITER] if "writer" in stage and not stage.startswith("stages.writer") else []
    extra += [TOKENS] if stage.startswith("stages.pre=") or "vectors: tokens" in stage else []
    stage, _, override = stage.partition(" data.")
    overrides = [f"data.{override}", "data.dev_queries=0"] if override else []
    one_line(run_command(*given, *extra, stage, *overrides, f"output_root={tmp_path}"), *wanted)
    assert not list(tmp_path.glob("artifacts/*/*/manifest.json")), "found only after work was done"


def test_a_fault_of_the_files_is_named_with_its_line(done: Done, given: list[str], tmp_path: Path) -> None:
    names = [name for name, *_ in TEXT.passages]
    whole = [f"{name}\tx" for name in names]
    broken: dict[str, tuple[list[str], str]] = {
        "unknown.tsv": ([*whole, "nix\tx"], "unknown.tsv:19: no passage has the id 'nix'"),
        "short.txt": (["x"] * 17, "short.txt: ends after 17 lines, but line i must be a query of passage i of 18"),
        "missing.tsv": (whole[1:], "1 of 18 passages has no query, the first is '0'; add queries to"),
    }
    for name, (lines, wanted) in broken.items():
        path = write(tmp_path / name, lines)
        one_line(run_command(*given, OWN, queries_stage("read_queries", passages="own", path=path)), wanted)


def test_a_model_that_cannot_write_is_one_line(done: Done, given: list[str], tmp_path: Path) -> None:
    words = (done.folder / "stages" / "tokenizer").resolve()
    save_small_t5(tmp_path / "startless", words, decoder_start_token_id=None)
    one_line(
        run_command(*given, queries_stage("generate_queries", model=tmp_path / "startless")),
        "stages.queries.model: ",
        "has no decoder_start_token_id",
    )
    startless = WRITER.replace("layers: 1", f"model: {tmp_path / 'startless'}")
    one_line(run_command(*given, startless), "stages.writer.model: ", "has no decoder_start_token_id")
    fp16 = queries_stage("generate_queries", model="nix/nix", precision="fp16")
    one_line(run_command(*given, fp16), "stages.queries.precision: fp16 needs a GPU")
    one_line(run_command(*given, queries_stage("generate_queries", model="nix/nix")), "cannot load 'nix/nix'")


def test_the_length_of_queries_does_not_count_without_queries(given: list[str], tmp_path: Path) -> None:
    overrides = [pretraining(query_length=200), TOKENS, f"output_root={tmp_path}", "dry_run=plan"]
    run_command(*given, *overrides).sound()


def test_a_sentence_that_is_removed_is_hidden_from_its_passage_in_training(
    given: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[data.PassageQueries] = []

    class Kept(data.PassageQueries):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(data, "PassageQueries", Kept)
    for remove in (True, False):
        queries = queries_stage("extract_queries", number=2, remove=remove)
        done = run_command(*given, TOKENS, queries, pretraining(queries="queries")).sound()
        assert "pre" in done.computed
        (source,) = made
        made.clear()
        rows = source.rows(0, 0, np.arange(source.items))
        lines = [" ".join(map(str, ["", *ids[1:-1].tolist(), ""])) for ids in np.split(rows.flat, rows.starts[1:-1])]
        contained = [query in passage for passage, query in zip(lines[::2], lines[1::2], strict=True)]
        assert len(contained) > 10
        assert contained == [not remove] * len(contained)


def test_queries_and_passages_of_another_tokenizer_are_one_line_and_another_name_for_the_same_is_fine(
    given: list[str], tmp_path: Path
) -> None:
    stages = [
        "stages.other={stage: tokenizer, vocab_size: 200}",
        "stages.same={stage: tokenizer}",
        "stages.foreign={stage: passages, length: 48, workers: 1, tokenizer: other}",
        TOKENS,
        pretraining(queries="queries"),
        f"output_root={tmp_path}",
    ]
    wrong = "were tokenised with another tokenizer than this stage uses; give both the same stage as `tokenizer`"
    of_queries = queries_stage("extract_queries", tokenizer="other")
    one_line(run_command(*given, *stages, of_queries), f"stages.pre.queries: the queries {wrong}")
    of_passages = queries_stage("extract_queries", passages="foreign")
    one_line(run_command(*given, *stages, of_passages), f"stages.pre.queries: the passages of these queries {wrong}")
    assert not list(tmp_path.glob("artifacts/pretrain_cotmae/*/logs")), "found only while it trained"
    run_command(*given, *stages, queries_stage("extract_queries", tokenizer="same")).sound()
