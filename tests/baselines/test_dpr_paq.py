"""DPR-PAQ: PAQ's files and generated queries become judged queries; bad lines are told; the recipe runs to its table."""

import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from paq_files import write_paq
from small_runs import MODEL, metrics_of, run_command, some_text, write_beir

from condensery import UserError
from condensery.system.files import read_json
from condensery.text.collection import Collection
from condensery.tokens.artifacts import Passages, Queries

sys.path.insert(0, str(Path(__file__).parents[1] / "stages"))
from single_stage import run_stage


def pairs(root: Path, folder: Path, **changes: Any) -> Collection:
    run_stage("question_pairs", folder, {}, root=str(root), **{"dev_queries": 0, **changes})
    return Collection(folder)


def judged(collection: Collection, split: str = "train") -> dict[str, list[str]]:
    """Text of each query -> the ids of its passages."""
    queries, passages = collection.queries.column("text")[:], collection.passages.ids
    positives = collection.qrels(split).positives()
    return {queries[query]: sorted(passages[row] for row in rows) for query, rows in positives.items()}


def test_questions_of_paq_are_judged_queries_of_the_passages_of_their_answers(tmp_path: Path) -> None:
    lines = write_paq(tmp_path / "paq")
    found = pairs(tmp_path / "paq", tmp_path / "all")
    expected = {line["question"]: sorted({answer["passage_id"] for answer in line["answers"]}) for line in lines}
    assert judged(found) == expected
    assert max(map(len, expected.values())) == 2
    assert found.name == "paq"
    assert found.passages.ids[:2] == ["1", "2"]
    assert len(judged(pairs(tmp_path / "paq", tmp_path / "few", number=7))) == 7
    ne = {line["question"] for line in lines if "NE" in line["subsets"]}
    assert set(judged(pairs(tmp_path / "paq", tmp_path / "ne", subset="NE"))) == ne
    aside = pairs(tmp_path / "paq", tmp_path / "dev", dev_queries=2)
    assert len(judged(aside, "dev")) == 2
    assert len(judged(aside)) == len(expected) - 2
    for name in ("psgs_w100.tsv", "PAQ.metadata.jsonl"):  # compressed, as they are released
        path = tmp_path / "paq" / name
        path.with_name(f"{name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert judged(pairs(tmp_path / "paq", tmp_path / "gz")) == expected


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"answers": [{"text": "x"}]}, r'each entry of "answers" needs a "passage_id"; take PAQ.metadata.jsonl'),
        ({"answers": ["a name"]}, r'each entry of "answers" needs a "passage_id"; take PAQ.metadata.jsonl'),
        ({"answers": []}, r'each entry of "answers" needs a "passage_id"'),
        ({"answers": None}, r'the field "answers" is missing'),
        ({"question": 7}, r'the field "question" must be'),
        ({"question": " "}, r"the text of the query is empty"),
        ({"answers": [{"passage_id": "99999"}]}, r"99999"),
    ],
)
def test_a_line_that_is_not_paqs_is_one_line_with_its_place(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    lines = write_paq(tmp_path / "paq")
    lines[2] |= change
    (tmp_path / "paq" / "PAQ.metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(UserError, match=rf"PAQ.metadata.jsonl:3\b.*{said}") as error:
        pairs(tmp_path / "paq", tmp_path / "out")
    assert "\n" not in str(error.value)


def test_a_subset_that_nothing_is_of_and_missing_files_are_told(tmp_path: Path) -> None:
    write_paq(tmp_path / "paq")
    with pytest.raises(UserError, match=r"no question is of the subset 'L2'; PAQ has L1, L4 and NE"):
        pairs(tmp_path / "paq", tmp_path / "out", subset="L2")
    (tmp_path / "paq" / "PAQ.metadata.jsonl").unlink()
    given = ["stages.pairs.queries=null", f"++stages.pairs.root={tmp_path / 'paq'}", f"output_root={tmp_path / 'x'}"]
    done = run_command("experiment=dpr_paq", *given)
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert "PAQ.metadata.jsonl" in done.err
    assert "https://github.com/facebookresearch/PAQ" in done.err
    assert not (tmp_path / "x").exists(), "before any work"
    both = run_command("experiment=dpr_paq", "++stages.pairs.root=.", "dry_run=plan")
    assert both.code == 1
    assert "give either root" in both.err


TRAINED = [
    f"++stage.{kind}.{key}" for kind in ("finetune", "finetune_generator") for key in ("steps=2", "batch_size=6")
]


@pytest.mark.slow
def test_the_recipe_runs_to_its_table_on_generated_queries_and_on_paqs(tmp_path: Path) -> None:
    root = write_beir(tmp_path / "beir", some_text(documents=24, seed=5))
    given = ["data=squad", f"data.root={root}", f"output_root={tmp_path / 'out'}", "logger=csv", *MODEL, *TRAINED]
    given += ["stage.generate_queries.max_tokens=8", "++stages.pairs.dev_queries=5"]
    done = run_command("experiment=dpr_paq", *given).sound()
    rows = ["BM25", "warm start", "generated questions alone", "DPR-PAQ"]
    assert list(metrics_of(done.folder)) == rows
    stages = done.folder / "stages"
    made, queries = Collection((stages / "pairs").resolve()), Queries((stages / "queries").resolve())
    table = Passages((stages / "passages").resolve()).table
    expected = {table.column("id")[:][row]: set(queries.texts(row)) for row in range(len(table))}
    found: dict[str, set[str]] = {}
    for split in ("train", "dev"):
        for query, passages in judged(made, split).items():
            found.setdefault(passages[0], set()).add(query)
    texts = {re.sub(r"\s+", " ", text) for own in expected.values() for text in own}
    assert {text for own in found.values() for text in own} <= texts
    assert sum(map(len, found.values())) > 100
    about = read_json(stages / "dpr_paq" / "manifest.json")
    assert about["metrics"]["steps"] == 2
    assert run_command("experiment=dpr_paq", *given).sound().computed == []
    write_paq(tmp_path / "paq")
    given += ["stages.pairs.queries=null", f"++stages.pairs.root={tmp_path / 'paq'}"]
    other = run_command("experiment=dpr_paq", *given).sound()
    assert list(metrics_of(other.folder)) == rows
    assert "pairs" in other.computed
    (tmp_path / "paq").rename(tmp_path / "moved")
    moved = [*given[:-1], f"++stages.pairs.root={tmp_path / 'moved'}"]
    assert run_command("experiment=dpr_paq", *moved).sound().computed == []
