"""A run of passages that score alike, from the command line: its file gives other evaluators the numbers of the table."""

import json
from pathlib import Path

import pytest
from outside_evaluators import agree, read_lines
from small_runs import run_command, write

from condensery.system.files import read_json

STAGES = [
    "+stages.corpus={stage: corpus}",
    "+stages.bm25={stage: bm25}",
    "+table.rows.BM25=bm25",
    "table.baseline=null",
]
TWICE = "stages.fused={stage: fuse, retrievers: [bm25, bm25], weights: [1, 1]}"
SAMPLED = "stages.sampled={stage: evaluate, index: bm25, split: test, candidates: bm25, candidates_number: 30}"


@pytest.fixture
def alike(tmp_path: Path) -> Path:
    """24 passages of the same words under ids whose order is not that of the file; two queries, grades from -1 to 3."""
    root = tmp_path / "alike"
    ids = [f"p{number * 7 % 24}" for number in range(24)]
    write(root / "corpus.jsonl", [json.dumps({"_id": name, "text": "the same few words"}) for name in ids])
    write(root / "queries.jsonl", [json.dumps({"_id": f"q{n}", "text": "same words"}) for n in range(2)])
    judged = [("q0", "p14", 3), ("q0", "p3", 1), ("q0", "p0", -1), ("q1", "p21", 1), ("q1", "p5", 2)]
    write(root / "qrels" / "test.tsv", ["query-id\tcorpus-id\tscore", *("\t".join(map(str, one)) for one in judged)])
    return root


def test_others_read_the_tables_numbers_off_ties(alike: Path, tmp_path: Path) -> None:
    asked = ["data=beir", f"data.root={alike}", "data.splits.train=null", f"output_root={tmp_path / 'out'}", *STAGES]
    metrics = "table.metrics=[MRR@10,NDCG@10,Recall@5,MAP,P@3,Success@1]"
    done = run_command(*asked, metrics, TWICE, SAMPLED, "+table.rows.fused=fused").sound()
    labels = [label for label in done.computed if (done.folder / "stages" / label / "run.trec.gz").exists()]
    assert {"bm25.evaluation", "fused.evaluation"} <= set(labels)
    for label in labels:
        folder = done.folder / "stages" / label
        agree(folder)
        for scores in read_lines(folder / "run.trec.gz").values():
            assert len(scores) == len(set(scores.values())) >= 22
            assert max(scores.values()) - min(scores.values()) < 1e-5 * max(scores.values()), "as near as can be"
        assert 0 < read_json(folder / "metrics.json")["metrics"]["MRR@10"] < 1
