"""Helpers for tests of whole recipes: run a command in this process, and write small inputs in every format."""

import gzip
import io
import json
import os
import random
import re
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
import pytest
from compositions import composed_once
from hydra._internal.hydra import Hydra
from hydra.core.hydra_config import HydraConfig
from outside_evaluators import agree

from condensery import cli
from condensery.pipeline import sweep
from condensery.pipeline.dry_run import machine_speed
from condensery.system.files import read_json

PROJECT = Path(__file__).resolve().parent.parent
CONF = Path(__file__).parent / "stages" / "conf"

MODEL = [  # two layers of 32, from scratch, in fp32 on one thread
    "backbone=tiny",
    "backbone.vocab_size=600",
    "backbone.layers=2",
    "backbone.hidden=32",
    "backbone.intermediate=64",
    "backbone.max_positions=128",
    "trainer=cpu",
    "trainer.precision=fp32",
    "trainer.threads=1",
    "jobs=1",
]


@dataclass(frozen=True)
class Done:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def computed(self) -> list[str]:
        """The stages that were computed, in order."""
        return re.findall(r"^\[(\S+)\] starts$", self.out, re.MULTILINE)

    @property
    def folder(self) -> Path:
        """The folder of the run, which is the last path in the output."""
        return Path([line for line in self.out.splitlines() if line.startswith("/")][-1])

    def sound(self) -> "Done":
        """Check that the command succeeded, and return this object."""
        assert self.code == 0, self.out + self.err
        return self


def run_command(*arguments: str | Path, curves: bool = False) -> Done:
    """Run ``python run.py ...`` in this process, with the recipes of the tests in addition to the project's recipes.

    If several ``arguments`` set the same key, the last one is used. The command itself would refuse a repeated key.

    ``curves``: whether training curves are drawn, which takes a third of the time of a small run.
    """
    program = hydra.main(version_base="1.3", config_path=str(PROJECT / "conf"), config_name="config")(cli.main)
    out, err = io.StringIO(), io.StringIO()
    with _as_it_was(), _quick(curves), redirect_stdout(out), redirect_stderr(err):
        sys.argv = ["run.py", "--config-dir", str(CONF), *_each_key_once(map(str, arguments))]
        os.environ.pop("HYDRA_FULL_ERROR", None)
        sweep.failed.clear()
        code = cli.run_program(program, PROJECT)
    done = Done(code, out.getvalue(), err.getvalue())
    _agree_with_outside_evaluators(done)
    return done


def check_refused(folder: Path, said: str, *arguments: str) -> None:
    """Check that a recipe fails with one error line that contains ``said``, and writes nothing below ``folder``."""
    done = run_command(*arguments, "dry_run=plan", f"output_root={folder}")
    assert done.code == 1
    assert done.err.count("\n") == 1, done.err
    assert said in done.err
    assert not list(folder.iterdir())


def _agree_with_outside_evaluators(done: Done) -> None:
    """Check that other libraries compute the same metrics from the run files of every evaluation in a run."""
    for label in done.computed if done.code == 0 else []:
        folder = done.folder / "stages" / label
        if (folder / "run.trec.gz").exists():
            agree(folder)


def _each_key_once(arguments: Iterable[str]) -> list[str]:
    """Keep only the last argument for each key, so that a test can override shared arguments."""
    found: dict[str, str] = {}
    for argument in arguments:
        key, is_given, _ = argument.partition("=")
        found[f"{key.lstrip('+')}=" if is_given else argument] = argument  # `data mteb/scifact data=huggingface`
    return list(found.values())


@contextmanager
def _quick(curves: bool) -> Iterator[None]:
    """Make commands faster: a command is a sweep only with ``-m``, and dry runs measure little.

    Otherwise, Hydra would compose the config once more to read ``hydra.mode``. A recipe that sets ``hydra.mode`` fails
    here. tests/pipeline starts commands as a user does.
    """
    with pytest.MonkeyPatch.context() as monkeypatch, composed_once():
        monkeypatch.setattr(Hydra, "get_mode", lambda *_, **__: None)
        monkeypatch.setattr(machine_speed, "SAMPLE", {"cpu": 1e7, "cuda": 1e7})  # FLOPs that a dry run measures
        monkeypatch.setattr(machine_speed, "ENOUGH", 0.0)
        if not curves:
            monkeypatch.setattr("condensery.pipeline.reports.report.draw_curves", lambda logs, stem: None)
        yield


@contextmanager
def _as_it_was() -> Iterator[None]:
    """Restore the state of this process at the end: arguments, environment, signal handlers and Hydra's config."""
    arguments, environment = sys.argv, dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        HydraConfig.instance().cfg = None
        sys.argv = arguments
        for variable in set(os.environ) - set(environment):
            del os.environ[variable]
        os.environ.update(environment)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def artifact_files(run: Path) -> dict[str, bytes]:
    """Return the content of all files of a run's artifacts, except manifests and training logs, which contain times."""
    return {
        f"{stage.name}/{stage.resolve().name}/{path.relative_to(stage)}": path.read_bytes()
        for stage in sorted((run / "stages").iterdir())
        for path in sorted(stage.rglob("*"))
        if path.is_file() and path.name not in ("manifest.json", "metrics.csv")
    }


def half_written(root: Path) -> list[Path]:
    """Return the artifact folders with their final name that have no manifest, or that contain temporary files."""
    folders = [path for path in root.glob("artifacts/*/*") if path.is_dir() and path.suffix != ".partial"]
    return [path for path in folders if not (path / "manifest.json").is_file() or [*path.rglob("*.tmp")]]


def metrics_of(run: Path) -> dict[str, dict[str, float]]:
    """Return the content of a run's ``results.json`` as row -> metrics."""
    return {row["row"]: row["metrics"] for row in read_json(run / "results.json")}


@dataclass(frozen=True)
class Text:
    """A small collection: passages (id, title, text, document) and questions (id, text, id of the passage)."""

    passages: list[tuple[str, str, str, str]]
    questions: list[tuple[str, str, str]]


def some_text(documents: int = 40, paragraphs: int = 3, seed: int = 0) -> Text:
    """Return made-up articles, each with its own topic words, and a question about every other paragraph."""
    draw = random.Random(seed)
    passages, questions = [], []
    for document in range(documents):
        topic = [_word(draw) for _ in range(12)]
        for paragraph in range(paragraphs):
            sentences = [_sentence(draw, topic) for _ in range(5)]
            number = document * paragraphs + paragraph
            passages.append((f"{number}", f"{topic[0]} {topic[1]}", " ".join(sentences), f"d{document}"))
            if number % 2 == 0:
                words = draw.sample(sentences[0].rstrip(".").lower().split(), 4)
                questions.append((f"q{number}", f"what about {' '.join(words)}", f"{number}"))
    return Text(passages, questions)


def _word(draw: random.Random) -> str:
    return "".join(draw.choice("bdfgklmnprst") + draw.choice("aeiou") for _ in range(draw.randint(2, 3)))


def _sentence(draw: random.Random, topic: list[str]) -> str:
    common = ["the", "of", "and", "is", "known", "near", "with", "some", "was", "often"]
    words = [draw.choice(topic if draw.random() < 0.6 else common) for _ in range(draw.randint(8, 14))]
    return " ".join(words).capitalize() + "."


def splits_of(text: Text) -> dict[str, list[tuple[str, str, str]]]:
    """Return the questions of each split: train, dev and test."""
    third = len(text.questions) // 6
    parts = text.questions[: 4 * third], text.questions[4 * third : 5 * third], text.questions[5 * third :]
    return dict(zip(("train", "dev", "test"), parts, strict=True))


def write(path: Path, lines: Iterable[str]) -> Path:
    """Write lines to a file, as gzip if its name ends in .gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)
    return path


def write_questions(root: Path, text: Text, splits: Iterable[str] = ("train", "dev", "test")) -> None:
    """Write ``queries.jsonl`` and ``qrels/`` as in a BEIR folder."""
    write(root / "queries.jsonl", (json.dumps({"_id": name, "text": words}) for name, words, _ in text.questions))
    for split in splits:
        lines = (f"{name}\t{passage}\t1" for name, _, passage in splits_of(text)[split])
        write(root / "qrels" / f"{split}.tsv", ["query-id\tcorpus-id\tscore", *lines])


def write_beir(root: Path, text: Text) -> Path:
    """Write a BEIR folder whose corpus names the document of each passage."""
    fields = ("_id", "title", "text", "doc_id")
    write(root / "corpus.jsonl", (json.dumps(dict(zip(fields, one, strict=True))) for one in text.passages))
    write_questions(root, text)
    return root


def write_documents(root: Path, text: Text, name: str = "documents.jsonl") -> Path:
    """Write whole documents, one per line."""
    documents: dict[str, dict[str, Any]] = {}
    for _, title, words, document in text.passages:
        documents.setdefault(document, {"_id": document, "title": title, "passages": []})["passages"].append(words)
    write(root / name, map(json.dumps, documents.values()))
    return root


def write_articles(root: Path, text: Text, name: str = "documents.jsonl") -> Path:
    """Write whole documents with the section heading of each passage. The first passage is before all headings."""
    write_documents(root, text, name)
    records = [json.loads(line) for line in (root / name).read_text().splitlines()]
    for one in records:
        one["headings"] = ["", *(f"part {number // 2}" for number in range(len(one["passages"]) - 1))]
    write(root / name, map(json.dumps, records))
    return root


def write_stsb(root: Path, text: Text, pairs: int = 24) -> Path:
    """Write pairs of sentences with a score in the format of STS-b. The sentences have commas and quotes."""
    draw = random.Random(3)
    sentences = [sentence for _, _, words, _ in text.passages for sentence in words.split(". ")]
    for split in ("train", "dev", "test"):
        lines = ["sentence1,sentence2,score"]
        for number in range(pairs):
            first, second = draw.sample(sentences, 2)
            lines.append(f'"{first}, he said",""" {second}""",{number * 5 / pairs:.3f}')
        write(root / f"{split}.csv", lines)
    return root


def write_text_files(root: Path, text: Text) -> Path:
    """Write one file per document, with blank lines between paragraphs. Every third file is in a subfolder."""
    documents: dict[str, list[str]] = {}
    for _, _, words, document in text.passages:
        documents.setdefault(document, []).append(words)
    for number, (document, paragraphs) in enumerate(documents.items()):
        folder, ending = (root / "below", "md") if number % 3 == 0 else (root, "txt")
        write(folder / f"{document}.{ending}", ["\n\n".join(paragraphs)])
    return root


def write_marco(root: Path, text: Text, gz: bool = False, trec: bool = False) -> Path:
    """Write the passage collection of MS MARCO in its native files, with documents and triples.

    ``trec``: whether to write graded judgements in the form of TREC DL 2019 and 2020 too.
    """
    end = ".gz" if gz else ""
    train, test = splits_of(text)["train"], splits_of(text)["test"]
    write(root / f"collection.tsv{end}", (f"{name}\t{words}" for name, _, words, _ in text.passages))
    for stem, questions in (("train", train), ("dev.small", test)):
        queries = dict.fromkeys((name, words) for name, words, _ in questions)  # a query may have several positives
        write(root / f"queries.{stem}.tsv{end}", (f"{name}\t{words}" for name, words in queries))
        write(root / f"qrels.{stem}.tsv{end}", (f"{name}\t0\t{passage}\t1" for name, _, passage in questions))
    documents: dict[str, tuple[str, list[str]]] = {}
    for _, title, words, document in text.passages:
        documents.setdefault(document, (title, []))[1].append(words)
    lines = (f"{name}\thttps://x.org/{name}\t{title}\t{' '.join(words)}" for name, (title, words) in documents.items())
    write(root / f"msmarco-docs.tsv{end}", lines)
    names = [name for name, *_ in text.passages]
    triples = (
        f"{name}\t{passage}\t{names[(at * 7 + step) % len(names)]}"
        for at, (name, _, passage) in enumerate(train)
        for step in range(1, 6)
    )
    write(root / f"qidpidtriples.train.full.2.tsv{end}", triples)
    for year in (2019, 2020) if trec else ():
        asked = splits_of(text)["dev"]
        write(root / f"msmarco-test{year}-queries.tsv{end}", (f"{name}\t{words}" for name, words, _ in asked))
        write(root / f"{year}qrels-pass.txt{end}", (f"{name} Q0 {passage} 2" for name, _, passage in asked))
    return root


def write_marco_documents(root: Path, text: Text) -> Path:
    """Write the document collection of MS MARCO in its native files, with graded judgements as in TREC DL 2019."""
    write_marco(root, text)
    of = {name: document for name, _, _, document in text.passages}
    asked = splits_of(text)
    for stem, questions in (("doctrain", asked["train"]), ("docdev", asked["test"])):
        write(root / f"msmarco-{stem}-queries.tsv", (f"{name}\t{words}" for name, words, _ in questions))
        write(root / f"msmarco-{stem}-qrels.tsv", (f"{name} 0 {of[passage]} 1" for name, _, passage in questions))
    write(root / "msmarco-test2019-queries.tsv", (f"{name}\t{words}" for name, words, _ in asked["dev"]))
    graded = ((name, at % 3 + 1, of[passage]) for at, (name, _, passage) in enumerate(asked["dev"]))
    write(root / "2019qrels-docs.txt", (f"{name} Q0 {document} {grade}" for name, grade, document in graded))
    return root


def write_dpr(root: Path, text: Text, dataset: str = "nq", gz: bool = False) -> Path:
    """Write DPR's files: passages, judged questions of train and dev, and questions of test with only answers.

    The answer to a question is the first two words of its passage. TriviaQA's files have another key for passage ids.
    """
    end = ".gz" if gz else ""
    rows = (f'{name}\t"{words.replace(chr(34), chr(34) * 2)}"\t{title}' for name, title, words, _ in text.passages)
    write(root / f"psgs_w100.tsv{end}", ["id\ttext\ttitle", *rows])
    key = "passage_id" if dataset == "nq" else "psg_id"
    known = {name: (title, words) for name, title, words, _ in text.passages}
    names = list(known)

    def context(name: str) -> dict[str, Any]:
        title, words = known[name]
        return {"title": title, "text": words, "score": 1.0, key: name}

    for split, questions in splits_of(text).items():
        answers = {name: [" ".join(known[passage][1].split()[:2]).upper()] for name, _, passage in questions}
        if split == "test":
            lines = (f"{words}\t{answers[name]!r}" for name, words, _ in questions)
            write(root / f"{dataset}-test.qa.csv{end}", lines)
            continue
        entries = [
            {
                "dataset": f"{dataset}_{split}",
                "question": words,
                "answers": answers[name],
                "positive_ctxs": [context(passage)],
                "negative_ctxs": [],
                "hard_negative_ctxs": [context(names[(at * 7 + step) % len(names)]) for step in range(1, 6)],
            }
            for at, (name, words, passage) in enumerate(questions)
        ]
        write(root / f"biencoder-{dataset}-{split}.json{end}", json.dumps(entries, indent=4).splitlines())
    return root


def write_hub(root: Path, text: Text) -> Path:
    """Write data sets in the layouts of the Hugging Face hub, in subfolders: retrieval, triples and documents."""
    fields = ("_id", "title", "text")
    write(
        root / "retrieval" / "corpus.jsonl", (json.dumps(dict(zip(fields, one, strict=False))) for one in text.passages)
    )
    write(root / "retrieval" / "queries.jsonl", (json.dumps({"_id": a, "text": b}) for a, b, _ in text.questions))
    known = {name: words for name, _, words, _ in text.passages}
    for split, questions in splits_of(text).items():
        judged = ({"query-id": name, "corpus-id": passage, "score": 1} for name, _, passage in questions)
        write(root / "retrieval" / "qrels" / f"{split}.jsonl", map(json.dumps, judged))
        rows = ({"query": words, "positive": known[passage], "negative": known["1"]} for _, words, passage in questions)
        write(root / "triples" / f"{split}.jsonl", map(json.dumps, rows))
    rows_of_text = ({"title": title, "text": f"{words}\n\n{words}"} for _, title, words, _ in text.passages)
    write(root / "documents" / "train.jsonl", map(json.dumps, rows_of_text))
    return root


def write_tevatron(root: Path, text: Text) -> Path:
    """Write Tevatron's training files for train and test. Each file contains every passage."""
    known = {name: {"docid": name, "title": title, "text": words} for name, title, words, _ in text.passages}
    names = list(known)
    for split in ("train", "test"):
        questions = splits_of(text)[split]
        share = -(-len(names) // len(questions))
        records = (
            {
                "query_id": name,
                "query": words,
                "positive_passages": [known[passage]],
                "negative_passages": [known[one] for one in names[at * share : (at + 1) * share] if one != passage],
            }
            for at, (name, words, passage) in enumerate(questions)
        )
        write(root / f"{split}.jsonl", map(json.dumps, records))
    return root


UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}


def costs(out: str) -> dict[str, list[str]]:
    """Return the cells of the second table of a dry run, by stage."""
    lines = out.partition("stages to be made")[2].splitlines()
    cells = [[cell.strip() for cell in line.strip("│┃").split("│")] for line in lines if "│" in line]
    return {name: rest for name, *rest in cells}


def amount(cell: str) -> float:
    """Return the number in a cell, multiplied by its unit prefix."""
    size, _, prefix = cell.removesuffix("+").partition(" ")
    return float(size) * UNITS[prefix.removesuffix("B")]
