"""Whatever a person gets wrong is said in one line that names file and line, or the key; nothing is left half done."""

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small import (
    MODEL,
    Done,
    Text,
    door,
    half_written,
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


def one_line(done: Done, *wanted: str) -> str:
    """The error, checked to be one line on stderr with exit code 1 that holds ``wanted``."""
    assert done.code == 1, done.out
    assert done.err.startswith("error: "), done.err
    assert done.err.count("\n") == 1, done.err
    assert done.err.endswith("\n")
    for words in wanted:
        assert words in done.err, f"{words!r} is not in: {done.err}"
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


BROKEN_FILES: dict[str, tuple[str, Break, str, list[str]]] = {
    # name: (format, what is broken, what the message holds, overrides)
    "beir: broken JSON": ("beir", line("corpus.jsonl", 3, '{"_id": "x"'), "corpus.jsonl:3: not valid JSON", []),
    "beir: no object": ("beir", line("corpus.jsonl", 2, "[1]"), "corpus.jsonl:2: a JSON object is expected", []),
    "beir: no text": (
        "beir",
        line("corpus.jsonl", 2, record(_id="x")),
        'corpus.jsonl:2: the field "text" is missing',
        [],
    ),
    "beir: id is a number": (
        "beir",
        line("corpus.jsonl", 2, record(_id=1, text="x")),
        'corpus.jsonl:2: the field "_id" must be a string',
        [],
    ),
    "beir: not UTF-8": ("beir", line("corpus.jsonl", 2, b'{"_id": "\xff"}'), "corpus.jsonl:2: not valid UTF-8", []),
    "beir: empty text": (
        "beir",
        line("corpus.jsonl", 2, record(_id="x", text=" ")),
        "corpus.jsonl:2: the text is empty",
        [],
    ),
    "beir: id twice": (
        "beir",
        line("corpus.jsonl", 2, record(_id="0", text="x")),
        "corpus.jsonl:2: this id is already",
        [],
    ),
    "beir: id with a blank": (
        "beir",
        line("corpus.jsonl", 2, record(_id="a b", text="x")),
        'corpus.jsonl:2: the passage id "a b"',
        [],
    ),
    "beir: document in two pieces": (
        "beir",
        line("corpus.jsonl", 5, record(_id="4", text="x", doc_id="d0")),
        "corpus.jsonl:5: the passages of one document must stand together",
        [],
    ),
    "beir: empty corpus": (
        "beir",
        line("corpus.jsonl", 0, ""),
        "corpus.jsonl: the file is empty; it is the corpus",
        ["data.splits={train: null, dev: null, test: null}"],
    ),
    "beir: no corpus": ("beir", without("corpus.jsonl"), "corpus.jsonl: no such file", []),
    "beir: two files missing": (
        "beir",
        without("queries.jsonl", "qrels/test.tsv"),
        "2 files are missing: queries.jsonl",
        [],
    ),
    "beir: broken query": ("beir", line("queries.jsonl", 4, "{"), "queries.jsonl:4: not valid JSON", []),
    "beir: empty query": (
        "beir",
        line("queries.jsonl", 1, record(_id="q0", text="")),
        "queries.jsonl:1: the text of the query is empty",
        [],
    ),
    "beir: two columns": (
        "beir",
        line("qrels/train.tsv", 3, "q0\t0"),
        "train.tsv:3: 3 columns separated by tabs are expected",
        [],
    ),
    "beir: grade is a word": (
        "beir",
        line("qrels/dev.tsv", 2, "q0\t0\tyes"),
        "dev.tsv:2: the score must be a whole number",
        [],
    ),
    "beir: unknown passage": (
        "beir",
        line("qrels/test.tsv", 2, "q2\tnix\t1"),
        "test.tsv:2: no passage has this passage id",
        [],
    ),
    "beir: unknown query": (
        "beir",
        line("qrels/test.tsv", 2, "nix\t0\t1"),
        "test.tsv:2: no query has this query id",
        [],
    ),
    "beir: query without positive": (
        "beir",
        line("qrels/train.tsv", 2, "q0\t0\t0"),
        "of the split train has no positive",
        [],
    ),
    "beir: no judgements": (
        "beir",
        line("qrels/test.tsv", 0, ""),
        "test.tsv: the file is empty",
        [],
    ),
    "beir: passages no list": (
        "beir",
        lambda root: (root / "documents.jsonl").write_text(record(_id="d", passages="x")),
        'documents.jsonl:1: the field "passages" must be a list',
        ["data.documents=documents.jsonl"],
    ),
    "beir: broken gzip": (
        "beir",
        lambda root: (root / "corpus.jsonl").rename(root / "corpus.jsonl.gz"),
        "corpus.jsonl.gz: not a whole gzip file",
        [],
    ),
    "beir: cut gzip": (
        "beir",
        lambda root: (root / "corpus.jsonl").write_bytes(b"") or _cut(root / "corpus.jsonl"),
        "corpus.jsonl.gz: not a whole gzip file",
        [],
    ),
    "msmarco: one column": (
        "msmarco",
        line("collection.tsv", 4, "3 no tab"),
        "collection.tsv:4: 2 columns separated by tabs",
        [],
    ),
    "msmarco: empty passage": ("msmarco", line("collection.tsv", 4, "3\t"), "collection.tsv:4: the text is empty", []),
    "msmarco: broken query": (
        "msmarco",
        line("queries.train.tsv", 1, "1\t2\t3"),
        "queries.train.tsv:1: 2 columns separated by tabs",
        [],
    ),
    "msmarco: broken qrels": (
        "msmarco",
        line("qrels.train.tsv", 1, "q0\t0\t1"),
        "qrels.train.tsv:1: 4 columns separated by white space",
        [],
    ),
    "msmarco: broken document": (
        "msmarco",
        line("msmarco-docs.tsv", 2, "D\tu\tt"),
        "msmarco-docs.tsv:2: 4 columns",
        ["data.documents=msmarco-docs.tsv"],
    ),
    "msmarco: no titles": (
        "msmarco",
        lambda root: None,
        "1 file is missing: titles.tsv (titles; titles are not part of the official files",
        ["data.titles=titles.tsv"],
    ),
    "msmarco_documents: broken": (
        "msmarco_documents",
        line("msmarco-docs.tsv", 1, "D\tu"),
        "msmarco-docs.tsv:1: 4 columns separated by tabs",
        ["data.splits={train: null, test: null}"],
    ),
    "documents: broken JSON": (
        "documents",
        line("documents.jsonl", 2, "{'_id'}"),
        "documents.jsonl:2: not valid JSON",
        [],
    ),
    "documents: passage no text": (
        "documents",
        line("documents.jsonl", 1, record(_id="d", passages=["a", 1])),
        'documents.jsonl:1: "passages" must be a list of strings',
        [],
    ),
    "documents: extra file missing": (
        "documents",
        lambda root: None,
        "/nix/books.jsonl: no such file",
        ["data.extra=[/nix/books.jsonl]"],
    ),
    "documents: empty file": (
        "documents",
        line("documents.jsonl", 0, ""),
        "jsonl: the file is empty",
        [],
    ),
    "text: not UTF-8": ("text", line("d1.txt", 1, b"caf\xe9"), "d1.txt:1: not valid UTF-8", []),
    "text: no files": ("text", lambda root: shutil.rmtree(root) or root.mkdir(), "no text files here (*.txt, *.md", []),
    "text: empty files": (
        "text",
        lambda root: [path.write_text("\n\n") for path in root.rglob("*.*")],
        "the collection would be empty",
        [],
    ),
    "text: no queries": ("text", lambda root: None, "queries.jsonl", ["data.splits.test=test"]),
    "beir: UTF-16": (
        "beir",
        lambda root: (root / "corpus.jsonl").write_text((root / "corpus.jsonl").read_text(), encoding="utf-16-le"),
        "corpus.jsonl: holds NUL bytes, so it is UTF-16",
        [],
    ),
    "beir: a folder for a file": (
        "beir",
        lambda root: (root / "corpus.jsonl").unlink() or (root / "corpus.jsonl").mkdir(),
        "corpus.jsonl: a folder, not a file",
        [],
    ),
    "msmarco: titles of something else": (
        "msmarco",
        lambda root: (root / "titles.tsv").write_text("x1\tA title\n"),
        "titles.tsv: no line is of a passage of collection.tsv",
        ["data.titles=titles.tsv"],
    ),
    "documents: an id of nothing": (
        "documents",
        line("documents.jsonl", 2, record(_id="", passages=["x"])),
        "documents.jsonl:2: the document id is empty",
        [],
    ),
    "nq: more behind the array": (
        "nq",
        lambda root: (root / "biencoder-nq-dev.json").open("a").write("\n[]"),
        "biencoder-nq-dev.json:",
        [],
    ),
    "triviaqa: an answer that is no list": (
        "triviaqa",
        line("trivia-test.qa.csv", 1, "who\tnobody"),
        "trivia-test.qa.csv:1: the answers must be a list",
        [],
    ),
    "tevatron: NUL in an id": (
        "tevatron",
        line("train.jsonl", 1, record(query_id="q\0", query="x", positive_passages=[{"docid": "1", "text": "x"}])),
        "train.jsonl:1: the query id 'q\\x00' holds a control character",
        [],
    ),
    "a path of 5,000 characters": ("text", lambda root: None, "the name is too long", [f"data.root={'x' * 5000}"]),
    "no folder": ("beir", lambda root: shutil.rmtree(root), "no such folder; data.root must name", []),
    "pydocs: no such package": ("pydocs", lambda root: None, "nix_package", ["data.packages=[nix_package]"]),
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
    form, change, message, overrides = BROKEN_FILES[name]
    root, out = tmp_path / "in", tmp_path / "out"
    if form in WRITERS:
        WRITERS[form](root, TEXT)
        overrides = [f"data.root={root}", *overrides]
    change(root)
    overrides = (
        ["data.splits.dev=dev", *overrides] if name.startswith("beir") and "empty corpus" not in name else overrides
    )
    done = door(*CORPUS, f"data={form}", *overrides, f"output_root={out}")
    said = one_line(done, message)
    assert str(root) in said or form not in WRITERS or "/nix/" in said or "xxxx" in said
    assert not half_written(out)
    assert not list(out.glob("artifacts/corpus/*/manifest.json"))


def test_after_the_fault_is_mended_the_run_goes_well(tmp_path: Path) -> None:
    root = write_beir(tmp_path / "in", TEXT)
    sound = (root / "corpus.jsonl").read_bytes()
    line("corpus.jsonl", 7, "{")(root)
    arguments = [*BEIR, f"data.root={root}", f"output_root={tmp_path / 'out'}"]
    one_line(door(*arguments), "corpus.jsonl:7:")
    (root / "corpus.jsonl").write_bytes(sound)
    assert door(*arguments).sound().computed == ["corpus"]


BAD_CONFIGS: dict[str, tuple[list[str], list[str]]] = {
    # name: (overrides of the recipe `tiny`, what the message holds)
    "root: unknown key": (["sed=2"], ["sed: unknown key (did you mean 'seed'?)"]),
    "root: unknown key added": (["+sed=2"], ["sed: unknown key (did you mean 'seed'?)"]),
    "data: unknown key": (["data.rot=x"], ["data.rot: unknown key"]),
    "data.splits: unknown split": (["data.splits.valid=x"], ["data.splits.valid: unknown key"]),
    "backbone: unknown key": (["backbone.layer=2"], ["backbone.layer: unknown key"]),
    "trainer: unknown key": (["trainer.thread=2"], ["trainer.thread: unknown key (did you mean 'threads'?)"]),
    "logger: unknown key": (
        ["logger.wandb.projekt=x"],
        ["logger.wandb.projekt: unknown key (did you mean 'project'?)"],
    ),
    "logger: unknown logger": (["logger.tensorboard=x"], ["logger.tensorboard: unknown key"]),
    "table: unknown key": (["table.row=x"], ["table.row: unknown key (did you mean 'rows'?)"]),
    "stage: unknown key": (["stage.finetune.lr=1"], ["stage.finetune.lr: unknown key"]),
    "stage: unknown kind": (
        ["stage.finetun.lr=1"],
        ["stage.finetun: unknown kind of stage (did you mean 'finetune'?)"],
    ),
    "stages: unknown key": (["stages.round1.lr=1"], ["stages.round1.lr: unknown key"]),
    "stages: unknown kind": (["stages.x={stage: tune}"], ["stages.x.stage: unknown kind of stage 'tune'"]),
    "stages: no kind": (["stages.x={init: mlm}"], ["stages.x: not a stage of the recipe"]),
    "stages: no stage of this name": (
        ["stages.round1.init=condensr"],
        ["stages.round1.init: no stage is named 'condensr' (did you mean 'condenser'?)"],
    ),
    "stages: the wrong product": (
        ["stages.round1.init=bm25"],
        ["stages.round1.init: the stage 'bm25' makes index, but encoder is needed"],
    ),
    "stages: a circle": (["stages.condenser.init=cocondenser"], ["in a circle"]),
    "stages: text for a list": (
        ["stages.round1.negatives=bm25_negatives"],
        ["stages.round1.negatives: must be a list"],
    ),
    "table: unknown row as baseline": (
        ["table.baseline=BM26"],
        ["table.baseline: 'BM26' is not a row of the table (did you mean 'BM25'?)"],
    ),
    "table: unknown stage": (["table.rows.x=round9"], ["table.rows.x: no stage is named 'round9'"]),
    "table: unknown split": (["table.split=valid"], ["table.split: must be 'train', 'dev', ", "got 'valid'"]),
    "table: unknown metric": (["table.metrics=[MRR@10,Hits@3]"], ["table.metrics", "metric 'Hits@3' does not exist"]),
    "table: metric without number": (["table.metrics=[Recall@x]"], ["table.metrics", "'Recall@x'"]),
    "table: no metric": (["table.metrics=[]"], ["table.metrics: must have at least 1 item"]),
    "force: unknown name": (["force=[rond1]"], ["force: no stage is named 'rond1' (did you mean 'round1'?)"]),
    "type: text for a number": (["seed=one"], ["seed: must be a whole number, got 'one'"]),
    "type: fraction for a whole number": (
        ["stage.finetune.batch_size=1.5"],
        ["stage.finetune.batch_size: must be a whole number"],
    ),
    "type: true for a number": (["stage.finetune.steps=true"], ["stage.finetune.steps: must be a number, got true"]),
    "type: text for true or false": (
        ["stage.pretrain_condenser.late_mlm=perhaps"],
        ["stage.pretrain_condenser.late_mlm: must be true or false"],
    ),
    "type: null": (["jobs=null"], ["jobs: must be a whole number, got null"]),
    "type: NaN": (["stage.finetune.learning_rate=nan"], ["stage.finetune.learning_rate: must be a finite number"]),
    "range: jobs": (["jobs=0"], ["jobs: must be > 0, got 0"]),
    "an old key, for one stage": (
        ["stages.round1.clip=2"],
        ["stages.round1.clip: unknown key (it is now called 'max_grad_norm')"],
    ),
    "an old key, for a kind": (
        ["+stage.finetune.warmup=0.2"],
        ["stage.finetune.warmup: unknown key (it is now called 'warmup_ratio')"],
    ),
    "an old kind": (
        ["+stages.near={stage: approximate}"],
        ["stages.near.stage: ", "'approximate' (it is now called 'ann_index')"],
    ),
    "an old loss": (
        ["stages.round1.loss=ltr"],
        ["stages.round1.loss: there is no loss 'ltr' (it is now called 'learning_to_rank')"],
    ),
    "range: warm-up": (["stages.round1.warmup_ratio=2"], ["stages.round1.warmup_ratio: must be <= 1, got 2"]),
    "range: heads": (["backbone.heads=3"], ["backbone: hidden (32) must be a multiple of heads (3)"]),
    "a group with null": (["data=null"], ["data=null"]),
    "a stage with a number": (["stages.round1=3"], ["stages.round1: must be a mapping"]),
    "a stage left out that another reads": (
        ["stages.round1=null"],
        ["stages.mined.retriever: no stage is named 'round1'"],
    ),
    "an unknown option": (["backbone=huge"], ["backbone=huge: there is no such option"]),
    "an unknown recipe": (["experiment=huge"], ["experiment=huge: there is no such option"]),
    "no value": (["stages.x={stage: mine}"], ["stages.x.retriever: needs a value"]),
    "steps and epochs": (
        ["stages.round1.epochs=1"],
        ["stages.round1", "one of steps, epochs, token_budget", "got steps and epochs"],
    ),
    "neither steps nor epochs": (
        ["stages.round1.steps=null"],
        ["stages.round1", "one of steps, epochs, token_budget", "all are null"],
    ),
    "split of fine-tuning": (["stages.round1.split=valid"], ["stages.round1.split", "valid"]),
    "metrics beyond the depth": (["table.metrics=[Recall@1000]"], ["stage.evaluate.depth", "1000"]),
    "split that the collection lacks": (
        ["data.splits.test=null"],
        ["table.split: test, but the collection beir has no such split: set data.splits.test"],
    ),
    "length beyond the positions": (
        ["stages.condenser.length=128"],
        ["stages.condenser: length=128 is longer than the backbone's 64 positions"],
    ),
    "queries beyond the positions": (["stages.round1.query_length=65"], ["stages.round1: query_length=65", "64"]),
    "backbone: a folder that is not there": (
        ["backbone.name=/nix/weights"],
        ["backbone.name: /nix/weights: no such folder"],
    ),
    "a depth too many": (
        ["stages.round1.negative_depths=[3,4,5]"],
        ["stages.round1.negative_depths: 3 numbers for", "sources of negatives; give one for each, or null"],
    ),
    "a weight of nothing": (["stages.round1.negative_weights=[0]"], ["stages.round1.negative_weights", "must be > 0"]),
    "no queries": (["stage.finetune.train_queries=0"], ["stage.finetune.train_queries: must be > 0, got 0"]),
    "split of mining": (["stages.mined.split=valid"], ["stages.mined.split", "valid"]),
    "triples: no file": (
        ["stages.x={stage: read_negatives, file: /nix/triples.tsv}"],
        ["/nix/triples.tsv: no such file"],
    ),
    "tokenizer: a folder that is not there": (
        ["backbone.tokenizer=./nix/words"],
        ["backbone.tokenizer: ./nix/words", "no such folder"],
    ),
}


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_a_fault_of_the_config_is_named_with_its_key(name: str, on_beir: list[str], tmp_path: Path) -> None:
    overrides, wanted = BAD_CONFIGS[name]
    given = [override for override in on_beir if name != "a group with null" or "data=" not in override]
    one_line(door("experiment=tiny", *given, f"output_root={tmp_path}", *overrides), *wanted)
    assert not list(tmp_path.glob("artifacts/*/*/manifest.json")), "found only after work was done"


LATE: dict[str, tuple[list[str], list[str]]] = {
    # faults that show when the collection, the tokens or a checkpoint is at hand
    "skip_from too large": (["stages.condenser.skip_from=3"], ["skip_from"]),
    "a head of another shape": (["stages.cocondenser.head_layers=1"], ["head of another shape; set head_layers"]),
    "min_length too large": (["stages.condenser.min_length=20"], ["min_length=20 does not fit length=32"]),
    "no document is long enough": (
        ["backbone.max_positions=512", "stages.condenser.length=512", "stages.condenser.min_length=250"],
        ["no document has 500 tokens"],
    ),
    "an unknown tokenizer": (
        ["backbone.tokenizer=nix/nix"],
        ["tokenizer 'nix/nix': no such folder, and not available"],
    ),
    "a folder that is no tokenizer": (["backbone.tokenizer=EMPTY"], ["no tokenizer in this folder can be read"]),
    "a folder that is no checkpoint": (["backbone.name=EMPTY"], ["backbone.name: cannot load"]),
    "a checkpoint that is not on the hub": (["backbone.name=nix/nix"], ["backbone.name: cannot load 'nix/nix'"]),
    "a vocabulary too small for the alphabet": (
        ["backbone.vocab_size=100", "stage.tokenizer.vocab_size=10"],
        ["stage.tokenizer.vocab_size"],
    ),
    "fp16 on a CPU": (["trainer.precision=fp16"], ["fp16 needs a GPU"]),
    "a GPU that is not there": (
        ["trainer.accelerator=gpu", "stages.round1.learning_rate=2.0e-3"],
        ["trainer.accelerator"],
    ),
    "an unknown stemmer": (["stages.bm25.stemmer=klingon"], ["klingon"]),
    "unknown stopwords": (["stages.bm25.stopwords=klingon"], ["klingon"]),
}


@pytest.mark.parametrize("name", LATE)
def test_a_fault_that_shows_late_is_one_line_too(name: str, finished: Done, on_beir: list[str], tmp_path: Path) -> None:
    overrides, wanted = LATE[name]
    root = finished.folder.parents[1]
    given = [override.replace("EMPTY", str(tmp_path)) for override in overrides]
    one_line(door("experiment=tiny", *on_beir, f"output_root={root}", *given), *wanted)
    assert not half_written(root)


def test_negatives_without_a_query_of_the_split(finished: Done, on_beir: list[str]) -> None:
    root = finished.folder.parents[1]
    mined = ["stages.bm25_negatives.split=test"]
    one_line(
        door("experiment=short", *on_beir, f"output_root={root}", *mined), "no query of the split 'train' is in it"
    )


def test_a_broken_triple_is_named_with_its_line(finished: Done, on_beir: list[str], tmp_path: Path) -> None:
    root = finished.folder.parents[1]
    for content, message in (
        ("q0\t0\t1\nq0\t1\n", ":2: expected 3"),
        ("q0\t0\tnix\n", ":1: passage 'nix'"),
        ("", "triples.tsv"),
    ):
        (tmp_path / "triples.tsv").write_text(content)
        stage = f"stages.triples={{stage: read_negatives, file: {tmp_path / 'triples.tsv'}}}"
        one_line(door("experiment=short", *on_beir, f"output_root={root}", stage), "triples.tsv", message)
    assert not list(root.glob("artifacts/triples/*/manifest.json"))


def test_a_closed_output_root(on_beir: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    one_line(door("experiment=tiny", *on_beir, f"output_root={tmp_path / 'file' / 'out'}"), str(tmp_path / "file"))
    one_line(door("experiment=tiny", *on_beir, f"output_root={tmp_path / 'file'}"), str(tmp_path / "file"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_root_without_permission(on_beir: list[str], tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    one_line(door("experiment=tiny", *on_beir, f"output_root={closed}"), str(closed), "no permission")


def test_a_damaged_artifact_is_named_with_the_way_out(on_beir: list[str], tmp_path: Path) -> None:
    arguments = [*CORPUS, *on_beir, f"output_root={tmp_path}"]
    door(*arguments).sound()
    next(tmp_path.glob("artifacts/corpus/*/passages.arrow")).write_bytes(b"short")
    one_line(door(*arguments), "damaged artifact (passages.arrow has 5 bytes", "force=[corpus]")
    door(*arguments, "force=[corpus]").sound()
    assert door(*arguments).sound().computed == []
