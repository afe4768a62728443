"""The fuzzed inputs: for each kind, a small valid input, and the function that reads it as a run does."""

import csv
import hashlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unicodedata import normalize

import yaml

PROJECT = Path(__file__).resolve().parents[2]

VALUES = json.loads(Path(__file__).with_name("fuzz_values.json").read_text(encoding="utf-8"))
PASSAGES: list[list[str]] = VALUES["passages"]  # id, title, text, document
QUESTIONS, ODD_ONES = VALUES["questions"], VALUES["more_questions"]  # id, text, relevant passage; for train and test
SCRIPTS: list[list[str]] = VALUES["scripts"]  # id, text, and words of the text that form its query


class DisagreementError(Exception):
    """Two ways of reading one input have different results."""


class PoorLineError(Exception):
    """Bad input is not reported in one line."""


@dataclass(frozen=True)
class Subject:
    """A kind of input.

    Attributes:
        name: name of the kind in findings.
        write: function that writes the valid input into a folder.
        read: function that reads the folder, and may write into another one; returns JSON, or raises ``UserError``.
        files: patterns of the files that are fuzzed.
        neutral: mutations that must not change the result.
        told: mutations that must be reported -> patterns of the files in which they must be reported.
        all_told: whether every change must be reported, as in an artifact.
        named: whether the error line must name the folder of the input.
        twice: whether the input is read twice. Both results must be equal.
    """

    name: str
    write: Callable[[Path], None]
    read: Callable[[Path, Path], Any]
    files: tuple[str, ...] = ("**/*",)
    neutral: tuple[str, ...] = ()
    told: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    all_told: bool = False
    named: bool = True
    twice: bool = True


# Writing.


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def objects(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    write(path, "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records))


def columns(path: Path, rows: Iterable[Iterable[str]], separator: str = "\t") -> None:
    write(path, "".join(separator.join(row) + "\n" for row in rows))


def write_questions(root: Path, passage: Callable[[str], str] = str) -> None:
    objects(root / "queries.jsonl", ({"_id": name, "text": text} for name, text, _ in (*QUESTIONS, *ODD_ONES)))
    for split, asked in (("train", QUESTIONS), ("test", ODD_ONES)):
        rows = [(name, passage(relevant), "1") for name, _, relevant in asked]
        columns(root / "qrels" / f"{split}.tsv", [("query-id", "corpus-id", "score"), *rows])


def write_beir(root: Path) -> None:
    objects(
        root / "corpus.jsonl", (dict(zip(("_id", "title", "text", "doc_id"), one, strict=True)) for one in PASSAGES)
    )
    write_questions(root)


def write_scripts(root: Path) -> None:
    """Write texts in many scripts. One text occurs twice, and one query is itself a passage."""
    twice, asked = [(f"{SCRIPTS[0][0]}2", SCRIPTS[0][1])], [("own", "who reads this very passage")]
    objects(
        root / "corpus.jsonl",
        (
            {"_id": name, "title": "", "text": text}
            for name, text in (*((one[0], one[1]) for one in SCRIPTS), *twice, *asked)
        ),
    )
    questions = [(f"q{name}", words, name) for name, _, words in SCRIPTS] + [("own", asked[0][1], "zh")]
    objects(root / "queries.jsonl", ({"_id": name, "text": words} for name, words, _ in questions))
    for split in ("train", "test"):
        own = [one for at, one in enumerate(questions) if at % 2 == (split == "test") or one[0] == "qcafé"][
            : 9 if split == "test" else 99
        ]
        columns(
            root / "qrels" / f"{split}.tsv", [("query-id", "corpus-id", "score"), *((q, p, "1") for q, _, p in own)]
        )


def write_documents(root: Path) -> None:
    write_articles(root)
    place = {name: f"{document}#{at}" for document, own in _documents().items() for at, (name, *_) in enumerate(own)}
    write_questions(root, place.__getitem__)


def _documents() -> dict[str, list[list[str]]]:
    found: dict[str, list[list[str]]] = {}
    for passage in PASSAGES:
        found.setdefault(passage[3], []).append(passage)
    return found


def write_articles(root: Path) -> None:
    """Documents with the headings of their passages."""
    objects(
        root / "documents.jsonl",
        (
            {"_id": name, "title": own[0][1], "passages": [one[2] for one in own], "headings": [one[1] for one in own]}
            for name, own in _documents().items()
        ),
    )


def write_text(root: Path) -> None:
    for name, own in _documents().items():
        write(root / f"{name}.txt", "\n\n".join(one[2] for one in own) + "\n")
    write(root / "below" / "notes.md", "# A heading\n\nA text below it that is long enough.\n")
    place = {
        name: f"{document}.txt#{at}" for document, own in _documents().items() for at, (name, *_) in enumerate(own)
    }
    write_questions(root, place.__getitem__)


def write_marco(root: Path) -> None:
    columns(root / "collection.tsv", ((name, text) for name, _, text, _ in PASSAGES))
    columns(root / "titles.tsv", ((name, title or "-") for name, title, _, _ in PASSAGES))
    lines = ((f"D{name}", f"https://x.org/{name}", title, text) for name, title, text, _ in PASSAGES)
    columns(root / "msmarco-docs.tsv", lines)
    for stem, asked in (("train", QUESTIONS), ("dev.small", ODD_ONES)):
        columns(root / f"queries.{stem}.tsv", ((name, text) for name, text, _ in asked))
        columns(root / f"qrels.{stem}.tsv", ((name, "0", passage, "1") for name, _, passage in asked))


def write_marco_documents(root: Path) -> None:
    write_marco(root)
    for stem, asked in (("doctrain", QUESTIONS), ("docdev", ODD_ONES)):
        columns(root / f"msmarco-{stem}-queries.tsv", ((name, text) for name, text, _ in asked))
        columns(
            root / f"msmarco-{stem}-qrels.tsv", ((name, "0", f"D{passage}", "1") for name, _, passage in asked), " "
        )
    for left in (
        "collection.tsv",
        "titles.tsv",
        *(f"{what}.{stem}.tsv" for what in ("queries", "qrels") for stem in ("train", "dev.small")),
    ):
        (root / left).unlink()


def write_dpr(root: Path, key: str, names: Mapping[str, str]) -> None:
    stream = io.StringIO()
    rows = ((name, text, title) for name, title, text, _ in PASSAGES)
    csv.writer(stream, delimiter="\t", lineterminator="\n").writerows([("id", "text", "title"), *rows])
    write(root / "psgs_w100.tsv", stream.getvalue())
    entries = [
        {
            "question": text,
            "answers": [text.split()[-1], "another"],
            "positive_ctxs": [{"title": "x", "text": "y", "score": 1.0, key: passage}],
            "negative_ctxs": [],
            "hard_negative_ctxs": [{"title": "x", key: "3"}, {key: "5"}],
        }
        for _, text, passage in QUESTIONS
    ]
    write(root / names["train"], json.dumps(entries, indent=2))
    columns(root / names["test"], ((text, repr(["river", "the sea"])) for _, text, _ in ODD_ONES))


def write_tevatron(root: Path) -> None:
    known = {name: {"docid": name, "title": title, "text": text} for name, title, text, _ in PASSAGES}
    objects(root / "corpus.jsonl", known.values())
    for split, asked in (("train", QUESTIONS), ("test", ODD_ONES)):
        objects(
            root / f"{split}.jsonl",
            (
                {
                    "query_id": name,
                    "query": text,
                    "positive_passages": [known[passage]],
                    "negative_passages": [known["3"]],
                }
                for name, text, passage in asked
            ),
        )


def write_sts(root: Path) -> None:
    for split in ("train", "dev", "test"):
        lines = (
            f'"{one[2].replace(chr(34), chr(34) * 2)}",{two[1]} x,{at}.25'
            for at, (one, two) in enumerate(pairwise(PASSAGES))
        )
        write(root / f"{split}.csv", "sentence1,sentence2,score\n" + "".join(f"{line}\n" for line in lines))


def write_collection(root: Path) -> Any:
    """Write and return the collection to which rankings and queries refer. It is not fuzzed itself."""
    write_beir(root / "beir")
    return collection("beir", root / "beir", root / "collection", {})


def write_rankings(root: Path) -> None:
    write_collection(root)
    ranked = [(name, str((at * 2 + rank) % 6), rank) for at, (name, *_) in enumerate(QUESTIONS) for rank in range(1, 4)]
    columns(
        root / "run.trec",
        ((query, "Q0", passage, str(rank), f"{9.5 - rank}", "x") for query, passage, rank in ranked),
        " ",
    )
    objects(
        root / "negatives.jsonl",
        ({"query_id": name, "negative_ids": ["3", "5"], "scores": [2.0, 1.0]} for name, *_ in QUESTIONS),
    )
    columns(root / "triples.tsv", ((query, "0", passage) for query, passage, _ in ranked))
    objects(
        root / "queries.jsonl", ({"id": name, "queries": [f"what of {title}", "x"]} for name, title, *_ in PASSAGES)
    )
    columns(root / "queries.tsv", ((name, f"what of {title}") for name, title, *_ in PASSAGES))


def write_sheet(root: Path) -> None:
    from condensery.evaluation.pair_audit.sheets import write_sheets

    (path,) = write_sheets(_items(), root, annotators=1, groups=1)
    heading, *rows = csv.reader(path.read_text(encoding="utf-8-sig").splitlines())
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(
        [heading, *([*row[:3], ("high", "low")[at % 2]] for at, row in enumerate(rows))]
    )
    write(path, stream.getvalue())


def _items() -> Any:
    from condensery.evaluation.pair_audit.pairs import NO_ROW, Pair
    from condensery.evaluation.pair_audit.pairs import PASSAGES as OF_PASSAGES
    from condensery.evaluation.pair_audit.pairs import QUERIES as OF_QUERIES
    from condensery.evaluation.pair_audit.sheets import items_of

    passages = [
        Pair(OF_PASSAGES, at, at + 1, name, "", text, PASSAGES[at + 1][2])
        for at, (name, _, text, _) in enumerate(PASSAGES[:3])
    ]
    queries = [
        Pair(OF_QUERIES, at, NO_ROW, name, "", text, f"=what of {title}")
        for at, (name, title, text, _) in enumerate(PASSAGES[:3])
    ]
    return items_of([passages, queries], 1, seed=1)


# Reading.


@cache
def _data_config(choice: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    content = yaml.safe_load((PROJECT / "conf" / "data" / f"{choice}.yaml").read_text(encoding="utf-8"))
    for base in content.pop("defaults", []):
        values |= {} if base == "_self_" else _data_config(base)
    return values | content


def collection(choice: str, root: Path, made: Path, changes: Mapping[str, Any]) -> Any:
    """The collection that ``data=CHOICE data.root=ROOT`` describes, read as the stage ``corpus`` does."""
    from pydantic import TypeAdapter

    from condensery.text import read_collection
    from condensery.text.config import DataConfig

    config: Any = TypeAdapter(DataConfig).validate_python({**_data_config(choice), **changes, "root": str(root)})
    config.fingerprint()
    return read_collection(config, made)


def read_data(choice: str, changes: Mapping[str, Any], folder: Path, scratch: Path) -> Any:
    found = collection(choice, folder, scratch / "made", changes)
    tables = {"passages": ("id", "title", "text", "document"), "queries": ("id", "text")}
    content: dict[str, Any] = {
        table: {column: list(getattr(found, table).column(column)[:]) for column in names}
        for table, names in tables.items()
    }
    for split in found.splits:
        qrels = found.qrels(split)
        content[split] = [qrels.query_rows.tolist(), qrels.passage_rows.tolist(), qrels.grades.tolist()]
    content["answers"] = None if found.answers is None else [list(one) for one in found.answers[:]]
    content["negatives"] = None if found.given_negatives is None else found.given_negatives.tolist()
    content["documents"] = None if found.documents is None else list(found.documents.column("passages")[:])
    return {**content, "description": found.description}


def read_search(folder: Path, scratch: Path) -> Any:
    """Return what BM25 finds in texts of many scripts, as names in order.

    Raises ``DisagreementError`` if trec_eval computes other numbers for the run, or if a negative has the text of the query
    or of a positive.
    """
    from condensery.evaluation.metrics import evaluate
    from condensery.retrieval.mining import mine
    from condensery.retrieval.negatives import open_negatives
    from condensery.retrieval.runs import Run, write_run
    from condensery.retrieval.searchers.base import SearcherIndex
    from condensery.retrieval.searchers.bm25 import BM25

    found = collection("beir", folder, scratch / "made", {})
    index, queries = SearcherIndex.of(BM25(), found), found.questions("test")
    scores, rows = index.search(queries, min(len(index), 10))
    run = Run(queries, rows, scores)
    ours = evaluate(run, found, "test", ["NDCG@10", "MRR@10", "Recall@10"])
    write_run(scratch / "run.trec", run, found)
    _compare(ours, scratch / "run.trec", found)
    mine(index, found, "train", 5, scratch / "mined")
    negatives = open_negatives(scratch / "mined", found)
    _check_negatives(negatives, found)
    ids = found.passages.column("id")
    return [
        ours.metrics,
        [[ids[int(row)] for row in ranked if row >= 0] for ranked in rows],
    ]


def _compare(ours: Any, path: Path, found: Any) -> None:
    """Compare our metrics with those that trec_eval computes from the run file."""
    import pytrec_eval

    qrels = found.qrels("test")
    queries, passages = found.queries.column("id"), found.passages.column("id")
    judged: dict[str, dict[str, int]] = {}
    for query, passage, grade in zip(qrels.query_rows, qrels.passage_rows, qrels.grades.tolist(), strict=True):
        judged.setdefault(queries[int(query)], {})[passages[int(passage)]] = int(grade)
    ranked: dict[str, dict[str, float]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        query, _, passage, _, score, _ = line.split(" ")
        ranked.setdefault(query, {})[passage] = float(score)
    told = pytrec_eval.RelevanceEvaluator(judged, {"ndcg_cut.10", "recip_rank", "recall.10"}).evaluate(ranked)
    for name, key in (("NDCG@10", "ndcg_cut_10"), ("MRR@10", "recip_rank"), ("Recall@10", "recall_10")):
        mean = sum(told.get(query, {}).get(key, 0.0) for query in judged) / len(judged)
        if abs(mean - ours.metrics[name]) > 1e-6:
            raise DisagreementError(f"{name} is {ours.metrics[name]}, and {mean} by trec_eval")


def _check_negatives(negatives: Any, found: Any) -> None:
    texts, names = found.passages.column("text"), found.passages.column("id")
    words, ids = found.queries.column("text"), found.queries.column("id")
    positives = found.qrels("train").positives()
    for query, rows in zip(negatives.query_rows.tolist(), negatives.passage_rows.tolist(), strict=True):
        right = {_plain(texts[int(row)]) for row in positives[query]}
        for row in rows:
            own = row >= 0 and names[row] == ids[query] and _plain(texts[row]) == _plain(words[query])
            if row >= 0 and (own or _plain(texts[row]) in right):
                raise DisagreementError(f"{names[row]} is a negative of the query {ids[query]}, which it is or answers")


def _plain(text: str) -> str:
    return " ".join(normalize("NFC", text).split())


def read_words(folder: Path, scratch: Path) -> Any:
    """Return the ids of each text under a WordPiece that was trained on texts of many scripts."""
    from condensery.tokens.tokenizer import load_tokenizer, train_wordpiece

    found = collection("beir", folder, scratch / "made", {})
    train_wordpiece([text for _, text, _ in SCRIPTS], 400, scratch / "words", warn=False)
    tokenizer = load_tokenizer(scratch / "words")
    return tokenizer(list(found.passages.column("text")[:]))["input_ids"]


def read_sts(folder: Path, scratch: Path) -> Any:
    from condensery.text.formats import sts

    return {split: list(sts.read_sts(file.open_path())) for split, file in sts.sts_files(folder).items()}


def read_articles(folder: Path, scratch: Path) -> Any:
    from condensery.text.sections import read_articles

    return [[name, sections] for name, sections in read_articles(_here(folder / "documents.jsonl"))]


def _here(path: Path) -> Path:
    """Return the file, plain or compressed with gzip."""
    packed = path.with_name(f"{path.name}.gz")
    return packed if os.path.lexists(packed) else path


def read_rankings(name: str, folder: Path, scratch: Path) -> Any:
    from condensery.retrieval.negatives import read_negatives
    from condensery.retrieval.published_negatives import from_triples
    from condensery.retrieval.runs import read_run
    from condensery.text.collection import Collection
    from condensery.text.queries import by_passage, format_of, read_query_files

    known, path = Collection(folder / "collection"), _here(folder / name)
    if name == "run.trec":
        run = read_run(path, known)
        return [run.query_rows.tolist(), run.passage_rows.tolist(), run.scores.tolist()]
    if name.startswith("queries"):
        pairs = list(read_query_files([path], format_of([path]), known.passages))
        list(by_passage(pairs, len(known.passages), scratch / "sorted.arrow"))
        return pairs
    found = read_negatives(path, known) if name == "negatives.jsonl" else from_triples(path, known, 5)[0]
    return [found.query_rows.tolist(), found.passage_rows.tolist()]


def read_sheet(folder: Path, scratch: Path) -> Any:
    from condensery.evaluation.pair_audit.sheets import read_sheets
    from condensery.text.sheets import filled_sheets

    return read_sheets(filled_sheets(folder), _items(), 1, 1).tolist()


# Checkpoints.


def _words(folder: Path) -> Any:
    from condensery.tokens.tokenizer import load_tokenizer, train_wordpiece
    from condensery.tokens.vocabulary import Vocabulary

    train_wordpiece([text for _, _, text, _ in PASSAGES] * 2, 120, folder)
    return Vocabulary.of(load_tokenizer(folder))


def _backbone(vocabulary: Any, family: Any = "bert") -> Any:
    from condensery.models.checkpoints.backbone import masked_language_model
    from condensery.models.checkpoints.config import BackboneConfig

    sizes: dict[str, Any] = {"layers": 2, "hidden": 16, "heads": 2, "intermediate": 32, "max_positions": 24}
    other: dict[str, Any] = {
        "name": None,
        "revision": None,
        "tokenizer": None,
        "vocab_size": 120,
        "dropout": 0.0,
        "initializer_range": 0.1,
    }
    return masked_language_model(BackboneConfig(family=family, **sizes, **other), vocabulary, 1)


def write_checkpoint(kind: str, root: Path) -> None:
    from condensery.models import cross_encoder, generator
    from condensery.models.biencoder import BiEncoder
    from condensery.models.checkpoints import pretraining, retrievers
    from condensery.models.condenser import Condenser, condenser_shape
    from condensery.models.encoder import Encoder
    from condensery.models.masked_autoencoder import MaskedAutoEncoder, decoder_shape

    words, model = root / "words", root / "model"
    vocabulary = _words(words)
    if kind == "tokenizer":
        return
    if kind == "condenser":
        backbone = _backbone(vocabulary)
        pretraining.save_pretraining_model(
            Condenser(backbone, condenser_shape(backbone, 1, None, True)), model, words, 16
        )
    elif kind == "autoencoder":
        backbone = _backbone(vocabulary, "roberta")
        pretraining.save_pretraining_model(MaskedAutoEncoder(backbone, decoder_shape("masked", 1)), model, words, 16)
    elif kind == "retriever":
        towers = [Encoder(_backbone(vocabulary).base_model) for _ in range(2)]
        retrievers.save_retriever(retrievers.SavedRetriever(BiEncoder(*towers), 8, 16), model, words)
    elif kind == "cross_encoder":
        reranker = cross_encoder.Reranker(cross_encoder.new_cross_encoder(_backbone(vocabulary), 1), 8, 16, 1)
        cross_encoder.save_cross_encoder(reranker, model, words)
    else:
        made = generator.small_generator(words, layers=1, hidden=16, heads=2, intermediate=32, dropout=0.0, seed=1)
        generator.save_generator(made, model)


def _digest(model: Any) -> str:
    found = hashlib.blake2b(digest_size=16)
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode() + value.float().numpy().tobytes())
    return found.hexdigest()


IDS = [2, 7, 9, 11, 3]  # token ids that a loaded checkpoint encodes


def read_checkpoint(kind: str, folder: Path, scratch: Path) -> Any:
    import numpy as np
    import torch

    from condensery.models import cross_encoder, generator
    from condensery.models.checkpoints import pretraining, retrievers
    from condensery.models.masked_autoencoder import decoder_shape
    from condensery.models.query_tower import load_query_tower
    from condensery.tokens.batches import chunks
    from condensery.tokens.tokenizer import load_tokenizer
    from condensery.tokens.vocabulary import Vocabulary

    torch.manual_seed(0)
    model = folder / "model"
    if kind == "tokenizer":
        tokenizer = load_tokenizer(folder / "words")
        return tokenizer([text for _, _, text, _ in PASSAGES])["input_ids"]
    if kind == "generator":
        made = generator.load_generator(model, "stage.generate_queries.model")
        return [_digest(made.model), made.tokenizer(PASSAGES[0][2])["input_ids"]]
    row = np.asarray(IDS)
    (chunk,) = chunks(row, [0, len(row)], budget=len(row), pad_id=0)
    if kind == "retriever":
        loaded = retrievers.load_retriever(model)
        with torch.no_grad():
            wanted = loaded.model.query.eval().cls(chunk)[0].float().numpy()
        encode, length = load_query_tower(model)
        if length != loaded.query_length or not np.allclose(encode(row), wanted, atol=1e-3, rtol=1e-3, equal_nan=True):
            raise DisagreementError("load_query_tower and load_retriever give other vectors")
        return [_digest(loaded.model), loaded.query_length, loaded.passage_length]
    if kind == "cross_encoder":
        reranker = cross_encoder.load_reranker(model)
        return [_digest(reranker.model), reranker.query_length, reranker.length, reranker.separators]
    vocabulary = Vocabulary.of(load_tokenizer(folder / "words"))
    found: Any
    if kind == "condenser":
        found = pretraining.load_condenser(model, vocabulary, 1, None, True, None)
    else:
        found = pretraining.load_masked_autoencoder(model, vocabulary, decoder_shape("masked", 1), "random", None)
    encoder = retrievers.load_encoder(model)
    with torch.no_grad():
        encoder.eval().cls(chunk)
    return [_digest(found), _digest(encoder)]


# Artifacts, recipes, tables.


def write_artifacts(root: Path) -> None:
    """A collection, and a tokenizer that was made from it, in a store."""
    from dataclasses import replace

    from pydantic import TypeAdapter

    from condensery.pipeline.artifact_store import Store
    from condensery.pipeline.graph import Node
    from condensery.stages.base import Runtime, Wandb
    from condensery.stages.registry import registry
    from condensery.text.config import DataConfig

    write_beir(root / "beir")
    data: Any = TypeAdapter(DataConfig).validate_python({**_data_config("beir"), "root": str(root / "beir")})
    wandb = Wandb(project="x", entity=None, enabled=False)
    runtime = Runtime(accelerator="cpu", devices=1, threads=1, workers=0, wandb=wandb, group="x", output_root=root)
    stages = registry()
    corpus = Node("corpus", "corpus", stages["corpus"].config.model_validate({"data": data}), {}, {}, "")
    corpus = replace(corpus, id=corpus.present_id(stages["corpus"].version))
    inputs: Any = {"corpus": (corpus.reference,)}
    config = stages["bm25"].config.model_validate({**_stage_defaults("bm25"), "corpus": "corpus"})
    bm25 = Node("bm25", "bm25", config, {"corpus": ("corpus",)}, inputs, "")
    for node in (corpus, replace(bm25, id=bm25.present_id(stages["bm25"].version))):
        Store(root).ensure(node, runtime)
    for lock in root.rglob("*.lock"):
        lock.unlink()


def _stage_defaults(kind: str) -> dict[str, Any]:
    found = yaml.safe_load((PROJECT / "conf" / "stage" / f"{kind}.yaml").read_text(encoding="utf-8"))
    return {key: 1 if isinstance(value, str) and value.startswith("${") else value for key, value in found.items()}


def read_artifacts(folder: Path, scratch: Path) -> Any:
    from condensery.pipeline.artifact_store import Store
    from condensery.stages.base import Artifact

    (bm25,) = (path for path in (folder / "artifacts" / "bm25").iterdir() if path.is_dir())
    Store(folder).check([Artifact(bm25)])
    return "as they were written"


RECIPE = """# @package _global_
# A recipe for the fuzzer.
defaults:
  - override /data: beir
  - override /backbone: tiny
  - override /trainer: cpu
  - override /logger: csv
  - _self_

name: fuzzed
seed: 3
stages:
  corpus: {stage: corpus}
  tokenizer: {stage: tokenizer}
  tokens: {stage: tokens}
  bm25: {stage: bm25}
  bm25_negatives: {stage: mine, retriever: bm25, depth: 20}
  mlm: {stage: pretrain_mlm, steps: 6, epochs: null, length: 32}
  round1:
    stage: finetune
    init: mlm
    negatives: [bm25_negatives]
    learning_rate: 1.0e-3
  joined: {stage: fuse, retrievers: [bm25, round1]}
stage:
  finetune: {query_length: 16, passage_length: 32, batch_size: 8}
backbone: {vocab_size: 600, layers: 2}
data: {splits: {train: train, dev: null, test: test}}
table:
  rows:
    BM25: bm25
    joined & more: joined
  baseline: BM25
  metrics: [MRR@10, NDCG@10]
"""
TABLE = """# A table for the fuzzer.
defaults: [measured, _self_]
title: My table
columns:
  MRR@10: {published: msmarco dev/MRR@10, metric: MRR@10}
  NDCG@10: {metric: NDCG@10, best: highest}
published:
  dense:
    Condenser: [C/6/Condenser, CO/1/Condenser]
    mine: {source: my thesis, values: {MRR@10: 33.3}}
studies: [fuzzed]
"""


def write_recipe(root: Path) -> None:
    write_beir(root / "data")
    write(root / "conf" / "experiment" / "fuzzed.yaml", RECIPE)


def write_table(root: Path) -> None:
    write(root / "conf" / "table" / "fuzzed.yaml", TABLE)
    rows = [
        {
            "row": name,
            "collection": "beir",
            "split": "test",
            "metrics": {"MRR@10": 0.3 + at / 7, "NDCG@10": 0.25},
            "seed": 1,
            "artifact": "",
        }
        for at, name in enumerate(["BM25", "dense | more"])
    ]
    write(root / "out" / "sweeps" / "fuzzed" / "results.json", json.dumps(rows, indent=1))


def command(*arguments: str) -> str:
    """Run ``python run.py ...`` in this process; return its output. Raises ``UserError`` with the line of a fault."""
    from condensery import cli
    from condensery.errors import UserError

    out, err = io.StringIO(), io.StringIO()
    before = sys.argv, dict(os.environ)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            sys.argv = ["run.py", *arguments]
            os.environ.pop("HYDRA_FULL_ERROR", None)
            code = cli.run_program(_program(), PROJECT)
    finally:
        sys.argv = before[0]
        os.environ.clear()
        os.environ.update(before[1])
    if code == 0:
        return out.getvalue()
    if code != 1 or not err.getvalue().startswith("error: ") or err.getvalue().count("\n") != 1:
        raise PoorLineError(f"exit code {code}\n{err.getvalue()}")
    raise UserError(err.getvalue().strip())


@cache
def _program() -> Any:
    import hydra

    from condensery import cli

    return hydra.main(version_base="1.3", config_path=str(PROJECT / "conf"), config_name="config")(cli.main)


def read_recipe(folder: Path, scratch: Path) -> Any:
    given = ["experiment=fuzzed", "dry_run=plan", f"output_root={scratch / 'out'}", f"data.root={folder / 'data'}"]
    said = command("--config-dir", str(folder / "conf"), *given)
    return sorted(line for line in said.splitlines() if "│" in line)


def read_table(folder: Path, scratch: Path) -> Any:
    said = command("--config-dir", str(folder / "conf"), "table=fuzzed", f"output_root={folder / 'out'}")
    made = sorted(path for path in (folder / "out" / "tables").rglob("*") if path.is_file())
    return [said, *([path.name, path.read_text(encoding="utf-8")] for path in made)]


# All.

LINES = ("windows_lines", "byte_order_mark", "gzipped", "gzipped_in_parts", "blank_lines", "no_last_line_end")
JSON = ("key_order", "json_style", "one_key_more")
OF_TEXT = {"no_utf8": ("**/*",), "no_file": ("**/*",), "broken_gzip": ("**/*",), "torn_object": ("**/*.jsonl",)}
BOTH: dict[str, Any] = {"splits": {"train": "train", "dev": None, "test": "test"}}
NQ = {"train": "biencoder-nq-train.json", "test": "nq-test.qa.csv"}
TRIVIA = {"train": "biencoder-trivia-train.json", "test": "trivia-test.qa.csv"}


def data(name: str, choice: str, make: Callable[[Path], None], unique: tuple[str, ...] = (), **changes: Any) -> Subject:
    """A format of collections."""
    told = {**OF_TEXT, **({"doubled_line": unique} if unique else {})}
    neutral = (*LINES, *JSON)
    return Subject(name, make, partial(read_data, choice, changes), neutral=neutral, told=told)


def ranking(name: str, **told: tuple[str, ...]) -> Subject:
    """A file of rankings, negatives or queries."""
    checks = {"no_utf8": (name,), "no_file": (name,), "broken_gzip": (name,), **told}
    neutral = (*LINES, *JSON)
    return Subject(name, write_rankings, partial(read_rankings, name), (name,), neutral, checks)


def checkpoint(kind: str) -> Subject:
    """A checkpoint of one kind."""
    told = {"tensors_changed": ("model/**/*.safetensors",), "another_size": ("model/**/config.json",)}
    files = ("words/*",) if kind == "tokenizer" else ("model/**/*.json", "model/**/*.safetensors")
    neutral = ("key_order", "json_style", "windows_lines", "blank_lines")
    make, read = partial(write_checkpoint, kind), partial(read_checkpoint, kind)
    kept = {} if kind == "tokenizer" else told
    return Subject(kind, make, read, files, neutral, kept, named=False, twice=False)


def _listed() -> list[Subject]:
    marco = {"titles": "titles.tsv", "documents": "msmarco-docs.tsv"}
    nq, trivia = ({"splits": {"dev": None, **names}} for names in (NQ, TRIVIA))
    corpus = {"corpus": "corpus.jsonl", "splits": {"train": "train.jsonl", "dev": None, "test": "test.jsonl"}}
    by_id = ("corpus.jsonl", "queries.jsonl")
    text = data("text", "text", write_text, ("queries.jsonl",), **BOTH)
    # compression renames a file of text, and thereby its passages
    kept = tuple(name for name in text.neutral if not name.startswith("gzipped"))
    told = {name: files if name != "no_file" else ("qrels/*", "queries.jsonl") for name, files in text.told.items()}
    told["broken_gzip"] = told["no_file"]
    return [
        data("beir", "beir", write_beir, by_id),
        data("squad", "squad", write_beir, by_id, **BOTH),
        data("documents", "documents", write_documents, ("documents.jsonl", "queries.jsonl"), **BOTH),
        Subject("text", text.write, text.read, neutral=kept, told=told),
        data("msmarco", "msmarco", write_marco, ("collection.tsv", "queries.*"), **marco),
        data("msmarco_documents", "msmarco_documents", write_marco_documents, ("msmarco-docs.tsv", "*-queries.tsv")),
        data("nq", "nq", partial(write_dpr, key="passage_id", names=NQ), ("psgs_w100.tsv",), **nq),
        data("triviaqa", "triviaqa", partial(write_dpr, key="psg_id", names=TRIVIA), ("psgs_w100.tsv",), **trivia),
        data("tevatron", "tevatron", write_tevatron, ("*.jsonl",), **corpus),
        Subject(
            *("search", write_scripts, read_search),
            neutral=(*LINES, *JSON, "another_form", "invisible", "capitals"),
            told={**OF_TEXT, "judged_in_another_form": ("qrels/*",), "doubled_line": by_id},
        ),
        Subject("words", write_scripts, read_words, neutral=("another_form",)),
        Subject("sts", write_sts, read_sts, neutral=LINES, told=OF_TEXT),
        Subject(
            *("articles", write_articles, read_articles),
            neutral=(*LINES, *JSON),
            told={**OF_TEXT, "doubled_line": ("documents.jsonl",)},
        ),
        ranking("run.trec", doubled_line=("run.trec",)),
        ranking("negatives.jsonl", doubled_line=("negatives.jsonl",), torn_object=("negatives.jsonl",)),
        ranking("triples.tsv"),
        ranking("queries.jsonl", torn_object=("queries.jsonl",)),
        ranking("queries.tsv"),
        Subject(
            *("sheet", write_sheet, read_sheet),
            neutral=("windows_lines", "byte_order_mark", "blank_lines", "no_last_line_end"),
            told={"no_utf8": ("*.csv",), "no_file": ("*.csv",)},
        ),
        *(checkpoint(kind) for kind in ("condenser", "autoencoder", "retriever", "cross_encoder", "generator")),
        checkpoint("tokenizer"),
        Subject("artifacts", write_artifacts, read_artifacts, ("artifacts/**/*",), all_told=True),
        Subject(
            *("recipe", write_recipe, read_recipe),
            files=("conf/**/*.yaml",),
            neutral=("comments", "blank_lines", "windows_lines", "no_last_line_end"),
            told={"no_utf8": ("conf/**/*.yaml",), "no_file": ("conf/**/*.yaml",)},
            named=False,
            twice=False,
        ),
        Subject(
            *("table", write_table, read_table),
            files=("conf/**/*.yaml", "out/**/*.json"),
            neutral=("comments", "windows_lines", "blank_lines", "json_style", "key_order"),
            told={"no_utf8": ("conf/**/*.yaml",), "no_file": ("conf/**/*.yaml",)},
            named=False,
            twice=False,
        ),
    ]


SUBJECTS = {subject.name: subject for subject in _listed()}
