"""Whatever a person gets wrong is said in one line that names file and line, or the key; nothing is left half done."""

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from error_lines import names
from small_runs import (
    MODEL,
    Done,
    Text,
    half_written,
    run_command,
    some_text,
    write_beir,
    write_documents,
    write_dpr,
    write_marco,
    write_tevatron,
    write_text_files,
)

TEXT = some_text(documents=6)
CORPUS = ["stages.corpus={stage: corpus}", "logger=csv", *MODEL]  # a recipe that only reads
BEIR = [*CORPUS, "data=beir", "data.splits.dev=dev"]
Break = Callable[[Path], object]


def one_line(done: Done, place: str, *words: str) -> str:
    """The error, checked to be one line on stderr with exit code 1 that names ``place`` and holds ``words``."""
    assert done.code == 1, done.out
    assert done.err.startswith("error: "), done.err
    assert done.err.endswith("\n")
    names(done.err, place, *words)
    return done.err


def line(path: str, number: int, text: str | bytes) -> Break:
    """Replace a line (from 1) of a file; 0 replaces all of it."""

    def change(root: Path) -> None:
        raw = text.encode() if isinstance(text, str) else text
        lines = (root / path).read_bytes().split(b"\n")
        lines[number - 1 : number] = [raw]
        (root / path).write_bytes(b"\n".join(lines) if number else raw)

    return change


def without(*names: str) -> Break:
    """Remove files."""
    return lambda root: [(root / name).unlink() for name in names]


def record(**fields: Any) -> str:
    return json.dumps(fields)


BROKEN_FILES: dict[str, tuple[str, Break, list[str], list[str]]] = {
    # name: (format, what is broken, the place and the words that the message holds, overrides)
    "beir: broken JSON": ("beir", line("corpus.jsonl", 3, '{"_id": "x"'), ["corpus.jsonl:3", "JSON"], []),
    "beir: no object": ("beir", line("corpus.jsonl", 2, "[1]"), ["corpus.jsonl:2", "JSON object"], []),
    "beir: no text": (
        "beir",
        line("corpus.jsonl", 2, record(_id="x")),
        ["corpus.jsonl:2", '"text"', "missing"],
        [],
    ),
    "beir: id is a number": (
        "beir",
        line("corpus.jsonl", 2, record(_id=1, text="x")),
        ["corpus.jsonl:2", '"_id"', "string"],
        [],
    ),
    "beir: not UTF-8": ("beir", line("corpus.jsonl", 2, b'{"_id": "\xff"}'), ["corpus.jsonl:2", "UTF-8"], []),
    "beir: empty text": (
        "beir",
        line("corpus.jsonl", 2, record(_id="x", text=" ")),
        ["corpus.jsonl:2", "text", "empty"],
        [],
    ),
    "beir: id twice": (
        "beir",
        line("corpus.jsonl", 2, record(_id="0", text="x")),
        ["corpus.jsonl:2", "this id is also at"],
        [],
    ),
    "beir: id with a blank": (
        "beir",
        line("corpus.jsonl", 2, record(_id="a b", text="x")),
        ["corpus.jsonl:2", '"a b"'],
        [],
    ),
    "beir: document in two pieces": (
        "beir",
        line("corpus.jsonl", 5, record(_id="4", text="x", doc_id="d0")),
        ["corpus.jsonl:5", "passages of a document must be consecutive"],
        [],
    ),
    "beir: empty corpus": (
        "beir",
        line("corpus.jsonl", 0, ""),
        ["corpus.jsonl", "file", "empty"],
        ["data.splits={train: null, dev: null, test: null}"],
    ),
    "beir: no corpus": ("beir", without("corpus.jsonl"), ["corpus.jsonl", "no such file"], []),
    "beir: two files missing": (
        "beir",
        without("queries.jsonl", "qrels/test.tsv"),
        ["queries.jsonl", "2 files", "test.tsv"],
        ["data.splits.test=test"],
    ),
    "beir: broken query": ("beir", line("queries.jsonl", 4, "{"), ["queries.jsonl:4", "JSON"], []),
    "beir: empty query": (
        "beir",
        line("queries.jsonl", 1, record(_id="q0", text="")),
        ["queries.jsonl:1", "query", "empty"],
        [],
    ),
    "beir: two columns": (
        "beir",
        line("qrels/train.tsv", 3, "q0\t0"),
        ["train.tsv:3", "3 columns", "tabs"],
        [],
    ),
    "beir: grade is a word": (
        "beir",
        line("qrels/dev.tsv", 2, "q0\t0\tyes"),
        ["dev.tsv:2", "score", "whole number"],
        [],
    ),
    "beir: unknown passage": (
        "beir",
        line("qrels/test.tsv", 2, "q2\tnix\t1"),
        ["test.tsv:2", "no passage", "'nix'"],
        [],
    ),
    "beir: unknown query": (
        "beir",
        line("qrels/test.tsv", 2, "nix\t0\t1"),
        ["test.tsv:2", "no query", "'nix'"],
        [],
    ),
    "beir: query without positive": (
        "beir",
        line("qrels/train.tsv", 2, "q0\t0\t0"),
        ["train.tsv:2", "'q0'", "no positive"],
        [],
    ),
    "beir: no judgements": (
        "beir",
        line("qrels/test.tsv", 0, ""),
        ["test.tsv", "file", "empty"],
        [],
    ),
    "beir: passages no list": (
        "beir",
        lambda root: (root / "documents.jsonl").write_text(record(_id="d", passages="x")),
        ["documents.jsonl:1", '"passages"', "list"],
        ["data.documents=documents.jsonl"],
    ),
    "beir: broken gzip": (
        "beir",
        lambda root: (root / "corpus.jsonl").rename(root / "corpus.jsonl.gz"),
        ["corpus.jsonl.gz", "gzip"],
        [],
    ),
    "beir: cut gzip": (
        "beir",
        lambda root: (root / "corpus.jsonl").write_bytes(b"") or _cut(root / "corpus.jsonl"),
        ["corpus.jsonl.gz", "gzip"],
        [],
    ),
    "msmarco: one column": (
        "msmarco",
        line("collection.tsv", 4, "3 no tab"),
        ["collection.tsv:4", "2 columns", "tabs"],
        [],
    ),
    "msmarco: empty passage": ("msmarco", line("collection.tsv", 4, "3\t"), ["collection.tsv:4", "text", "empty"], []),
    "msmarco: broken query": (
        "msmarco",
        line("queries.train.tsv", 1, "1\t2\t3"),
        ["queries.train.tsv:1", "2 columns", "tabs"],
        [],
    ),
    "msmarco: broken qrels": (
        "msmarco",
        line("qrels.train.tsv", 1, "q0\t0\t1"),
        ["qrels.train.tsv:1", "4 columns", "white space"],
        [],
    ),
    "msmarco: broken document": (
        "msmarco",
        line("msmarco-docs.tsv", 2, "D\tu\tt"),
        ["msmarco-docs.tsv:2", "4 columns"],
        ["data.documents=msmarco-docs.tsv"],
    ),
    "msmarco: no titles": (
        "msmarco",
        lambda root: None,
        ["titles.tsv", "1 file", "missing", "this file is not an official one", "data.titles=null"],
        ["data.titles=titles.tsv"],
    ),
    "msmarco_documents: broken": (
        "msmarco_documents",
        line("msmarco-docs.tsv", 1, "D\tu"),
        ["msmarco-docs.tsv:1", "4 columns", "tabs"],
        ["data.splits={train: null, test: null}"],
    ),
    "documents: broken JSON": (
        "documents",
        line("documents.jsonl", 2, "{'_id'}"),
        ["documents.jsonl:2", "JSON"],
        [],
    ),
    "documents: passage no text": (
        "documents",
        line("documents.jsonl", 1, record(_id="d", passages=["a", 1])),
        ["documents.jsonl:1", '"passages"', "list of strings"],
        [],
    ),
    "documents: extra file missing": (
        "documents",
        lambda root: None,
        ["/nix/books.jsonl", "no such file"],
        ["data.extra=[/nix/books.jsonl]"],
    ),
    "documents: empty file": (
        "documents",
        line("documents.jsonl", 0, ""),
        ["documents.jsonl", "file", "empty"],
        [],
    ),
    "text: not UTF-8": ("text", line("d1.txt", 1, b"caf\xe9"), ["d1.txt:1", "UTF-8"], []),
    "text: no files": (
        "text",
        lambda root: shutil.rmtree(root) or root.mkdir(),
        ["ROOT", "no text files", "*.txt", "*.md"],
        [],
    ),
    "text: empty files": (
        "text",
        lambda root: [path.write_text("\n\n") for path in root.rglob("*.*")],
        ["ROOT", "collection", "empty"],
        [],
    ),
    "text: no queries": ("text", lambda root: None, ["queries.jsonl", "missing"], ["data.splits.test=test"]),
    "beir: UTF-16": (
        "beir",
        lambda root: (root / "corpus.jsonl").write_text((root / "corpus.jsonl").read_text(), encoding="utf-16-le"),
        ["corpus.jsonl", "UTF-16"],
        [],
    ),
    "beir: a folder for a file": (
        "beir",
        lambda root: (root / "corpus.jsonl").unlink() or (root / "corpus.jsonl").mkdir(),
        ["corpus.jsonl", "a folder"],
        [],
    ),
    "msmarco: titles of something else": (
        "msmarco",
        lambda root: (root / "titles.tsv").write_text("x1\tA title\n"),
        ["titles.tsv", "collection.tsv"],
        ["data.titles=titles.tsv"],
    ),
    "documents: an id of nothing": (
        "documents",
        line("documents.jsonl", 2, record(_id="", passages=["x"])),
        ["documents.jsonl:2", "id", "empty"],
        [],
    ),
    "nq: more behind the array": (
        "nq",
        lambda root: (root / "biencoder-nq-dev.json").open("a").write("\n[]"),
        ["biencoder-nq-dev.json", "ARRAY"],
        [],
    ),
    "triviaqa: an answer that is no list": (
        "triviaqa",
        line("trivia-test.qa.csv", 1, "who\tnobody"),
        ["trivia-test.qa.csv:1", "answers", "list"],
        [],
    ),
    "tevatron: NUL in an id": (
        "tevatron",
        line("train.jsonl", 1, record(query_id="q\0", query="x", positive_passages=[{"docid": "1", "text": "x"}])),
        ["train.jsonl:1", "'q\\x00'", "control character"],
        [],
    ),
    "a path of 5,000 characters": (
        "text",
        lambda root: None,
        ["x" * 40 + "…", "5,001 characters", "too long"],
        [f"data.root={'x' * 5000}"],
    ),
    "no folder": ("beir", lambda root: shutil.rmtree(root), ["data.root", "no such folder"], []),
    "pydocs: no such package": (
        "pydocs",
        lambda root: None,
        ["nix_package", "no package"],
        ["data.packages=[nix_package]"],
    ),
}
WRITERS: dict[str, Callable[[Path, Text], Path]] = {
    "beir": write_beir,
    "msmarco": write_marco,
    "msmarco_documents": write_marco,
    "documents": write_documents,
    "text": write_text_files,
    "nq": write_dpr,
    "triviaqa": lambda root, text: write_dpr(root, text, "trivia"),
    "tevatron": write_tevatron,
}


def _cut(path: Path) -> None:
    path.unlink()
    raw = gzip.compress(b'{"_id": "0", "text": "x"}\n' * 1000)
    path.with_name(path.name + ".gz").write_bytes(raw[: len(raw) // 2])


@pytest.mark.parametrize("name", BROKEN_FILES)
def test_a_broken_input_is_named_with_its_line(name: str, tmp_path: Path) -> None:
    form, change, (place, *words), overrides = BROKEN_FILES[name]
    root, out = tmp_path / "in", tmp_path / "out"
    if form in WRITERS:
        WRITERS[form](root, TEXT)
        overrides = [f"data.root={root}", *overrides]
    change(root)
    overrides = (
        ["data.splits.dev=dev", *overrides] if name.startswith("beir") and "empty corpus" not in name else overrides
    )
    done = run_command(*CORPUS, f"data={form}", *overrides, f"output_root={out}")
    said = one_line(done, place.replace("ROOT", str(root)), *words)
    assert str(root) in said or form not in WRITERS or "/nix/" in said or "xxxx" in said
    assert not half_written(out)
    assert not list(out.glob("artifacts/corpus/*/manifest.json"))


def test_after_the_fault_is_mended_the_run_goes_well(tmp_path: Path) -> None:
    root = write_beir(tmp_path / "in", TEXT)
    sound = (root / "corpus.jsonl").read_bytes()
    line("corpus.jsonl", 7, "{")(root)
    arguments = [*BEIR, f"data.root={root}", f"output_root={tmp_path / 'out'}"]
    one_line(run_command(*arguments), "corpus.jsonl:7")
    (root / "corpus.jsonl").write_bytes(sound)
    assert run_command(*arguments).sound().computed == ["corpus"]


BAD_CONFIGS: dict[str, tuple[list[str], list[str]]] = {
    # name: (overrides of the recipe `tiny`, the place and the words that the message holds)
    "root: unknown key": (["sed=2"], ["sed", "'seed'"]),
    "root: unknown key added": (["+sed=2"], ["sed", "'seed'"]),
    "data: unknown key": (["data.rot=x"], ["data.rot", "unknown", "'root'"]),
    "data.splits: unknown split": (["data.splits.valid=x"], ["data.splits.valid", "unknown"]),
    "backbone: unknown key": (["backbone.layer=2"], ["backbone.layer", "unknown", "'layers'"]),
    "trainer: unknown key": (["trainer.thread=2"], ["trainer.thread", "'threads'"]),
    "logger: unknown key": (
        ["logger.wandb.projekt=x"],
        ["logger.wandb.projekt", "'project'"],
    ),
    "logger: unknown logger": (["logger.mlflow=x"], ["logger.mlflow", "unknown"]),
    "table: unknown key": (["table.row=x"], ["table.row", "'rows'"]),
    "stage: unknown key": (["stage.finetune.lr=1"], ["stage.finetune.lr", "unknown"]),
    "stage: unknown kind": (
        ["stage.finetun.lr=1"],
        ["stage.finetun", "'finetune'"],
    ),
    "stages: unknown key": (["stages.round1.lr=1"], ["stages.round1.lr", "unknown"]),
    "stages: unknown kind": (["stages.x={stage: tune}"], ["stages.x.stage", "'tune'", "unknown kind"]),
    "stages: no kind": (["stages.x={init: mlm}"], ["stages.x", "not a stage"]),
    "stages: no stage of this name": (
        ["stages.round1.init=condensr"],
        ["stages.round1.init", "'condensr'", "'condenser'"],
    ),
    "stages: the wrong product": (
        ["stages.round1.init=bm25"],
        ["stages.round1.init", "'bm25'", "index", "encoder"],
    ),
    "stages: a circle": (["stages.condenser.init=cocondenser"], ["stages", "condenser", "cocondenser", "circle"]),
    "stages: text for a list": (
        ["stages.round1.negatives=bm25_negatives"],
        ["stages.round1.negatives", "list"],
    ),
    "table: unknown row as baseline": (
        ["table.baseline=BM26"],
        ["table.baseline", "'BM26'", "'BM25'"],
    ),
    "table: unknown stage": (["table.rows.x=round9"], ["table.rows.x", "'round9'"]),
    "table: unknown split": (["table.split=valid"], ["table.split", "'train', 'dev'", "'valid'"]),
    "table: unknown metric": (["table.metrics=[MRR@10,Hits@3]"], ["table.metrics", "'Hits@3'"]),
    "table: metric without number": (["table.metrics=[Recall@x]"], ["table.metrics", "'Recall@x'"]),
    "table: no metric": (["table.metrics=[]"], ["table.metrics", "at least 1"]),
    "force: unknown name": (["force=[rond1]"], ["force", "'rond1'", "'round1'"]),
    "type: text for a number": (["seed=one"], ["seed", "whole number", "'one'"]),
    "type: a number for a text": (
        ["data.root=1_000"],
        ["data.root", "text", "1000", "quotes keep a text as it is written"],
    ),
    "type: fraction for a whole number": (
        ["stage.finetune.batch_size=1.5"],
        ["stage.finetune.batch_size", "whole number"],
    ),
    "type: true for a number": (["stage.finetune.steps=true"], ["stage.finetune.steps", "number", "true"]),
    "type: text for true or false": (
        ["stage.pretrain_condenser.late_mlm=perhaps"],
        ["stage.pretrain_condenser.late_mlm", "true or false"],
    ),
    "head_steps: no head": (
        ["stages.condenser.head_layers=0", "stages.condenser.head_steps=1"],
        ["stages.condenser", "head_steps", "no head"],
    ),
    "head_steps: no step for the backbone": (
        ["stages.condenser.steps=3", "stages.condenser.head_steps=3"],
        ["stages.condenser", "head_steps", "3 steps", "backbone"],
    ),
    "type: null": (["jobs=null"], ["jobs", "whole number", "null"]),
    "type: NaN": (["stage.finetune.learning_rate=nan"], ["stage.finetune.learning_rate", "finite"]),
    "range: jobs": (["jobs=0"], ["jobs", "> 0", "0"]),
    "an old key, for one stage": (
        ["stages.round1.clip=2"],
        ["stages.round1.clip", "'max_grad_norm'"],
    ),
    "an old key, for a kind": (
        ["+stage.finetune.warmup=0.2"],
        ["stage.finetune.warmup", "'warmup_ratio'"],
    ),
    "a key as others call it": (["stage.finetune.lr=1"], ["stage.finetune.lr", "'learning_rate'"]),
    "a kind of nobody": (["+stages.near={stage: haiku}"], ["stages.near.stage", "'haiku'", "CONDENSERY_STAGES"]),
    "an old kind": (
        ["+stages.near={stage: approximate}"],
        ["stages.near.stage", "'approximate'", "'ann_index'"],
    ),
    "an old loss": (
        ["stages.round1.loss=ltr"],
        ["stages.round1.loss", "'ltr'", "'learning_to_rank'"],
    ),
    "an option that a loss does not have": (
        ["stages.round1.loss={name: info_nce, temprature: 2}"],
        ["stages.round1.loss", "'temprature'", "'temperature'"],
    ),
    "options of no loss": (["stages.round1.loss={temperature: 2}"], ["stages.round1.loss", "name", "info_nce"]),
    "range: warm-up": (["stages.round1.warmup_ratio=2"], ["stages.round1.warmup_ratio", "<= 1", "2"]),
    "range: heads": (["backbone.heads=3"], ["backbone", "hidden (32)", "heads (3)", "multiple"]),
    "a group with null": (["data=null"], ["data=null"]),
    "a stage with a number": (["stages.round1=3"], ["stages.round1", "mapping"]),
    "a stage left out that another reads": (
        ["stages.round1=null"],
        ["stages.mined.retriever", "'round1'"],
    ),
    "an unknown option": (["backbone=huge"], ["backbone=huge", "no such option"]),
    "an unknown recipe": (["experiment=huge"], ["experiment=huge", "no such option"]),
    "no value": (["stages.x={stage: mine}"], ["stages.x.retriever", "value"]),
    "steps and epochs": (
        ["stages.round1.epochs=1", "stages.round1.steps=2"],
        ["stages.round1", "steps, epochs, token_budget", "steps and epochs"],
    ),
    "neither steps nor epochs": (
        ["stages.round1.steps=null"],
        ["stages.round1", "steps, epochs, token_budget", "null"],
    ),
    "split of fine-tuning": (["stages.round1.split=valid"], ["stages.round1.split", "valid"]),
    "metrics beyond the depth": (["table.metrics=[Recall@1000]"], ["stage.evaluate.depth", "1000"]),
    "split that the collection lacks": (
        ["data.splits.test=null"],
        ["table.split", "test", "beir", "data.splits.test"],
    ),
    "length beyond the positions": (
        ["stages.condenser.length=128"],
        ["stages.condenser", "length=128", "64"],
    ),
    "queries beyond the positions": (
        ["stages.round1.query_length=65"],
        ["stages.round1", "query_length=65", "64", "lower it"],
    ),
    "backbone: a folder that is not there": (
        ["backbone.name=/nix/weights"],
        ["backbone.name", "/nix/weights", "no such folder"],
    ),
    "a depth too many": (
        ["stages.round1.negative_depths=[3,4,5]"],
        ["stages.round1.negative_depths", "3 numbers", "one for each", "null"],
    ),
    "a weight of nothing": (["stages.round1.negative_weights=[0]"], ["stages.round1.negative_weights", "> 0"]),
    "no queries": (["stage.finetune.train_queries=0"], ["stage.finetune.train_queries", ">= 1", "0"]),
    "split of mining": (["stages.mined.split=valid"], ["stages.mined.split", "valid"]),
    "triples: no file": (
        ["stages.x={stage: read_negatives, file: /nix/triples.tsv}"],
        ["/nix/triples.tsv", "no such file"],
    ),
    "tokenizer: a folder that is not there": (
        ["backbone.tokenizer=./nix/words"],
        ["backbone.tokenizer", "./nix/words", "no such folder"],
    ),
}


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_a_fault_of_the_config_is_named_with_its_key(name: str, on_beir: list[str], tmp_path: Path) -> None:
    overrides, wanted = BAD_CONFIGS[name]
    given = [override for override in on_beir if name != "a group with null" or "data=" not in override]
    one_line(run_command("experiment=tiny", *given, f"output_root={tmp_path / 'out'}", *overrides), *wanted)
    assert not (tmp_path / "out").exists(), "found only after work was begun"


LATE: dict[str, tuple[list[str], list[str]]] = {
    # faults that show when the collection, the tokens or a checkpoint is at hand
    "skip_from too large": (["stages.condenser.skip_from=3"], ["skip_from", "3"]),
    "a head of another shape": (["stages.cocondenser.head_layers=1"], ["head_layers"]),
    "no step for the backbone": (
        ["stages.condenser.steps=null", "stages.condenser.epochs=1", "stages.condenser.head_steps=1000"],
        ["head_steps", "1,000", "below the number of all steps"],
    ),
    "min_length too large": (["stages.condenser.min_length=20"], ["min_length=20", "length=32"]),
    "no document is long enough": (
        ["backbone.max_positions=512", "stages.condenser.length=512", "stages.condenser.min_length=250"],
        ["stages.condenser.min_length", "500 tokens"],
    ),
    "an unknown tokenizer": (
        ["backbone.tokenizer=nix/nix"],
        ["'nix/nix'", "tokenizer", "no such folder"],
    ),
    "a folder that is no tokenizer": (["backbone.tokenizer=EMPTY"], ["EMPTY", "tokenizer"]),
    "a checkpoint without weights": (["backbone.name=CONFIG"], ["backbone.name", "CONFIG", "no weights"]),
    "a folder that is no checkpoint": (["backbone.name=EMPTY"], ["backbone.name", "EMPTY", "config.json"]),
    "an adapter": (["backbone.name=ADAPTER"], ["ADAPTER/adapter_config.json", "merge"]),
    "a checkpoint that is not on the hub": (["backbone.name=nix/nix"], ["backbone.name", "'nix/nix'"]),
    "a vocabulary too small for the alphabet": (
        ["backbone.vocab_size=100", "stage.tokenizer.vocab_size=10"],
        ["stage.tokenizer.vocab_size", "10"],
    ),
    "fp16 on a CPU": (["trainer.precision=fp16"], ["trainer.precision", "fp16", "GPU"]),
    "a GPU that is not there": (
        ["trainer.accelerator=gpu", "stages.round1.learning_rate=2.0e-3"],
        ["trainer.accelerator"],
    ),
    "an unknown stemmer": (["stages.bm25.stemmer=klingon"], ["stages.bm25.stemmer", "klingon", "english"]),
    "unknown stopwords": (["stages.bm25.stopwords=klingon"], ["stages.bm25.stopwords", "klingon", "english"]),
    "no code of a language": (["sentence_language=german"], ["sentence_language", "'german'", "such as de"]),
    "an unknown language": (["stages.bm25.language=chinse"], ["stages.bm25.language", "did you mean 'chinese'"]),
}


@pytest.mark.parametrize("name", LATE)
def test_a_fault_that_shows_late_is_one_line_too(name: str, finished: Done, on_beir: list[str], tmp_path: Path) -> None:
    overrides, wanted = LATE[name]
    root = finished.folder.parents[1]
    (tmp_path / "empty").mkdir()
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")

    def placed(word: str) -> str:
        for name in ("empty", "config", "adapter"):
            word = word.replace(name.upper(), str(tmp_path / name))
        return word

    given = [placed(override) for override in overrides]
    place, *words = (placed(word) for word in wanted)
    one_line(run_command("experiment=tiny", *on_beir, f"output_root={root}", *given), place, *words)
    assert not half_written(root)


def test_negatives_without_a_query_of_the_split(finished: Done, on_beir: list[str]) -> None:
    root = finished.folder.parents[1]
    mined = ["stages.bm25_negatives.split=test"]
    done = run_command("experiment=short", *on_beir, f"output_root={root}", *mined)
    one_line(done, "stages.round1.negatives", "bm25_negatives has no negatives for the train queries")


def test_a_broken_triple_is_named_with_its_line(finished: Done, on_beir: list[str], tmp_path: Path) -> None:
    root = finished.folder.parents[1]
    for content, wanted in (
        ("q0\t0\t1\nq0\t1\n", ["triples.tsv:2", "3"]),
        ("q0\t0\tnix\n", ["triples.tsv:1", "passage 'nix'"]),
        ("", ["triples.tsv"]),
    ):
        (tmp_path / "triples.tsv").write_text(content)
        stage = f"stages.triples={{stage: read_negatives, file: {tmp_path / 'triples.tsv'}}}"
        one_line(run_command("experiment=short", *on_beir, f"output_root={root}", stage), *wanted)
    assert not list(root.glob("artifacts/triples/*/manifest.json"))


def test_a_closed_output_root(on_beir: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    one_line(
        run_command("experiment=tiny", *on_beir, f"output_root={tmp_path / 'file' / 'out'}"), str(tmp_path / "file")
    )
    one_line(run_command("experiment=tiny", *on_beir, f"output_root={tmp_path / 'file'}"), str(tmp_path / "file"))
    (link := tmp_path / "link").symlink_to(tmp_path / "nowhere")
    one_line(run_command("experiment=tiny", *on_beir, f"output_root={link}"), str(link), "a link to nothing")
    given = [f"backbone.name={link}", f"output_root={tmp_path}"]
    done = run_command("experiment=tiny", *on_beir, *given)
    one_line(done, "backbone.name", f"{link}: a link to {tmp_path / 'nowhere'}, which does not exist")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_root_without_permission(on_beir: list[str], tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    one_line(run_command("experiment=tiny", *on_beir, f"output_root={closed}"), str(closed), "no permission")


def test_a_damaged_artifact_is_named_with_the_way_out(on_beir: list[str], tmp_path: Path) -> None:
    arguments = [*CORPUS, *on_beir, f"output_root={tmp_path}"]
    run_command(*arguments).sound()
    next(tmp_path.glob("artifacts/corpus/*/passages.arrow")).write_bytes(b"short")
    one_line(run_command(*arguments), "passages.arrow", "5 bytes", "force=[corpus]")
    run_command(*arguments, "force=[corpus]").sound()
    assert run_command(*arguments).sound().computed == []


@pytest.mark.parametrize("override", ["name=a\nb", "stages.a\nb=1", 'experiment="a\nb"'])
def test_a_line_break_in_an_override_does_not_break_the_error_line(override: str, tmp_path: Path) -> None:
    assert one_line(run_command(*CORPUS, override, f"output_root={tmp_path}"), "").count("\n") == 1


def test_a_missing_folder_is_told_beside_the_split_that_it_lacks(tmp_path: Path) -> None:
    recipe = [*BEIR, "stages.bm25={stage: bm25}", "stages.evaluation={stage: evaluate, index: bm25}"]
    done = run_command(*recipe, f"data.root={tmp_path / 'nowhere'}", f"output_root={tmp_path}")
    one_line(done, "table.split", f"{tmp_path / 'nowhere'} (there is no such folder)")
    (link := tmp_path / "link").symlink_to(tmp_path / "nowhere")
    done = run_command(*recipe, f"data.root={link}", f"output_root={tmp_path}")
    one_line(done, "table.split", f"{link} (there is a link to {tmp_path / 'nowhere'}, which does not exist")
    wanted = f"data.name: {link}: a link to {tmp_path / 'nowhere'}, which does not exist"
    one_line(
        run_command(*recipe, "data=huggingface", f"data.name={link}", f"output_root={tmp_path}"), "data.name", wanted
    )
