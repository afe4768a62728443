"""What a stage will lack of the data is said as soon as these are read, in one line, before anything is trained."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from error_lines import names
from single_stage import inputs
from small_runs import MODEL, Done, run_command, some_text, splits_of, write, write_beir, write_dpr, write_stsb

from condensery.stages import data_checks
from condensery.stages.base import Artifact, references
from condensery.stages.checks import NO_DEV, no_dev_queries
from condensery.stages.registry import registry
from condensery.stages.training_config import OptimisedStageConfig
from condensery.text.input_file import InputFile

TEXT = some_text(documents=24, seed=5)
DPR = [
    "stage.finetune.query_length=32",
    "stage.finetune.passage_length=64",
    "stages.condenser_round1.backbone.name=null",
]
ADAPT = ["+stages.queries={stage: extract_queries}", "+stages.passages={stage: passages}"]


def beir(root: Path) -> Path:
    return write_beir(root, TEXT)


def few_training_queries(root: Path) -> Path:
    """So few that none of them can be held out as dev queries."""
    write_beir(root, TEXT)
    (root / "qrels" / "dev.tsv").unlink()
    qrels = root / "qrels" / "train.tsv"
    qrels.write_text("".join(qrels.read_text().splitlines(keepends=True)[:6]))
    return root


def one_passage_for_all(root: Path) -> Path:
    """Every query of train and dev is judged for the same passage."""
    write_beir(root, TEXT)
    for split in ("train", "dev"):
        lines = (f"{name}\t0\t1" for name, _, _ in splits_of(TEXT)[split])
        write(root / "qrels" / f"{split}.tsv", ["query-id\tcorpus-id\tscore", *lines])
    return root


def changed_questions(root: Path, **changes: Any) -> Path:
    """DPR's files, in which each training question has the fields ``changes``."""
    write_dpr(root, TEXT)
    for split in ("train", "dev"):
        file = root / f"biencoder-nq-{split}.json"
        file.write_text(json.dumps([{**one, **changes} for one in json.loads(file.read_text())]))
    return root


def without_answers(root: Path) -> Path:
    return changed_questions(root, answers=[])


def without_negatives(root: Path) -> Path:
    return changed_questions(root, hard_negative_ctxs=[])


def sheet_of_others(root: Path) -> Path:
    """A sheet of another collection, beside the files."""
    write(root.parent / "sheet.csv", ["query id,passage id,relevant", "nobody,nothing,yes"])
    return write_beir(root, TEXT)


HELD_OUT = ["data.splits.dev=null", "data.dev_queries=500"]  # a tenth of the training queries at most
SQUAD, NQ = "cocondenser_squad", "cocondenser_nq"
CASES: dict[str, tuple[str, Callable[[Path], Path], list[str], str, list[str]]] = {
    "too few queries": (
        SQUAD, beir, ["stages.round2.train_queries=9000"], "corpus",
        ["stages.round2.train_queries", "9,000", "24 judged queries", "null"],
    ),
    "a split of dev queries alone": (
        SQUAD, few_training_queries, [*HELD_OUT, "+stages.x={stage: finetune, init: warm, split: dev}"], "corpus",
        ["stages.x.split", "dev", "only for: train, test"],
    ),
    "nothing left beside dev": (
        SQUAD, one_passage_for_all, ["stages.round2.leave_out_dev_passages=true"], "corpus",
        ["stages.round2.leave_out_dev_passages", "shares a relevant passage"],
    ),
    "too few passages": (
        SQUAD, beir, ["+stages.x={stage: train_cross_encoder, init: warm, negatives_per_query: 72, length: 100}"], "corpus",
        ["stages.x.negatives_per_query", "72 passages", "up to 1 "],
    ),
    "a sheet of other queries": (
        SQUAD, sheet_of_others, ["stages.mined.relabel=ROOT/../sheet.csv"], "corpus",
        ["stages.mined.relabel", "sheet.csv:2", "'nobody' is unknown"],
    ),
    "no answers to mine by": (
        NQ, without_answers, DPR, "corpus", ["stages.condenser_mined.without_answers", "train", "false"],
    ),
    "no answers to measure by": (
        NQ, without_answers, [*DPR, "stage.mine.without_answers=false", "table.split=dev"], "corpus",
        ["table.metrics", "Hit@5 needs answers", "split dev"],
    ),
    "no answers to choose weights by": (
        NQ, without_answers,
        [*DPR, "stage.mine.without_answers=false", "+stages.x={stage: fuse, retrievers: [bm25, round1], metric: Hit@5}"],
        "corpus", ["stages.x.metric", "Hit@5 needs answers", "split dev"],
    ),
    "no negatives of its own": (
        NQ, without_negatives, DPR, "corpus", ["stages.bm25_negatives.file", "have no negatives for train"],
    ),
    "negatives of other queries": (
        SQUAD, beir, ["+stages.n={stage: mine, retriever: bm25, split: dev}", "stages.round2.negatives=[mined,n]"], "n",
        ["stages.round2.negatives", "n has no negatives for the train queries"],
    ),
    "queries of other passages": (
        SQUAD, beir,
        [*ADAPT, "+stages.x={stage: finetune, init: warm, passages: warm, text_queries: queries}"], "queries",
        ["stages.x.text_queries", "72 are searched", "grouping=collection"],
    ),
    "texts too short for two spans": (
        SQUAD, beir, ["stages.cocondenser.min_length=47", "stages.cocondenser.pairs_within=passage"], "tokens",
        ["stages.cocondenser.min_length", "no passage has 94 tokens"],
    ),
    "texts too short for a sentence and another": (
        SQUAD, beir, ["+stages.x={stage: pretrain_ict, init: warm, length: 12, min_length: 2}"], "tokens",
        ["stages.x.length", "no two successive sentences"],
    ),
    "texts too short for the attention": (
        SQUAD, beir, ["+stages.x={stage: attention_entropy, encoders: [round2], length: 128, min_length: 127}"], "tokens",
        ["stages.x.min_length", "no text has 127 tokens"],
    ),
    "too few examples": (
        "ablation/stsb", beir, ["data=squad", "stage.read_sts.root=ROOT/../sts", "++stage.finetune_sentences.examples=25"],
        "sentences", ["stages.random_tuned.examples", "25", "24 training examples", "null"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_data_that_a_stage_will_find_wanting_end_the_run_before_it_trains(case: str, tmp_path: Path) -> None:
    recipe, made, given, last, said = CASES[case]
    root = made(tmp_path / "data")
    write_stsb(tmp_path / "sts", TEXT)
    given = [one.replace("ROOT", str(root)) for one in given]
    done = run_command(
        f"experiment={recipe}", f"data.root={root}", f"output_root={tmp_path}", "logger=csv", *MODEL, *given
    )
    assert done.code == 1
    assert done.err.count("\n") == 1
    names(done.err, *said)
    assert done.computed[-1] == last, done.out
    assert not trained(done)
    assert not list(tmp_path.glob("artifacts/pretrain*"))


def test_too_few_queries_for_dev_queries_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    root = few_training_queries(tmp_path / "data")
    best = "+stages.x={stage: keep_best, start: warm, trained: [round2], by: dev}"
    given = [f"data.root={root}", f"output_root={tmp_path}", "logger=csv", *MODEL, *HELD_OUT, best]
    done = run_command(f"experiment={SQUAD}", *given)
    names(
        done.err, "stages.x.by", "no dev queries", "qrels/dev.tsv", "data.splits.dev", "at least ten in qrels/train.tsv"
    )
    assert not done.computed
    assert "to be made" not in done.out


@pytest.mark.parametrize(("judgements", "others", "refused"), [(10, 8, True), (50_000, 20, False)])
def test_a_large_file_is_not_refused_by_the_queries_at_its_beginning(
    judgements: int, others: int, refused: bool, tmp_path: Path
) -> None:
    first = [f"q0\tpassage-{number:010}\t1" for number in range(judgements)]
    more = [f"q{number}\t0\t1" for number in range(1, others + 1)]
    write(tmp_path / "train.tsv", ["query-id\tcorpus-id\tscore", *first, *more])
    file = InputFile("qrels of train", tmp_path / "train.tsv")
    data = SimpleNamespace(judged_splits=lambda: ("train",), input_files=lambda: [file], dev_queries=500)
    corpus: Any = [SimpleNamespace(data=data)]
    assert no_dev_queries(corpus) is refused


def test_a_collection_without_dev_queries_is_told_where_its_files_do_not_show_it(tmp_path: Path) -> None:
    config, corpus = SimpleNamespace(by="dev"), Artifact(inputs(tmp_path)["corpus"])
    assert data_checks.dev_queries(config, corpus) == ("by", NO_DEV)
    assert data_checks.dev_queries(SimpleNamespace(by="queries"), corpus) is None


def trained(done: Done) -> list[str]:
    """The stages whose training began."""
    return re.findall(r"^\[(\S+)\] trains on ", done.out, re.MULTILINE)


def test_every_check_is_known_and_of_an_input() -> None:
    for stage in registry().values():
        checks = stage.config.data_checks
        assert checks.keys() <= references(stage.config).keys(), stage.kind
        assert all(callable(getattr(data_checks, name)) for named in checks.values() for name in named)


def test_stages_that_need_no_training_come_first(tmp_path: Path) -> None:
    root = write_beir(tmp_path / "data", TEXT)
    short = [f"stage.{kind}.{key}" for kind in ("pretrain_mlm", "pretrain_condenser", "pretrain_cocondenser", "finetune")
             for key in ("steps=1", "epochs=null", "token_budget=null", "validate_every=0")]  # fmt: skip
    given = [f"data.root={root}", f"output_root={tmp_path}", "logger=csv", *MODEL, *short]
    done = run_command(f"experiment={SQUAD}", "+stages.own={stage: mine, retriever: bm25}", *given).sound()
    kinds = {name: json.loads((done.folder / "graph.json").read_text())[name]["kind"] for name in done.computed}
    trains = [name for name in done.computed if issubclass(registry()[kinds[name]].config, OptimisedStageConfig)]
    before = done.computed[: done.computed.index(trains[0])]
    assert {"corpus", "tokenizer", "tokens", "bm25", "own", "warm"} <= set(before)
    assert any(name.startswith("bm25.eval") for name in before)
    assert trains == trained(done)
