"""A whole recipe with every kind of stage, on a real collection: what it computes, writes, reuses and answers."""

import io
import shutil
from pathlib import Path

import pytest
import yaml
from small_runs import PROJECT, Done, artifact_files, half_written, metrics_of, run_command, write
from test_query_recipe import KINDS as OF_QUERIES  # kinds that the recipe there runs
from test_sentence_stages import KINDS as OF_SENTENCES

from condensery.system.files import read_json
from condensery.text.collection import Collection
from condensery.tokens.artifacts import Passages, Queries

ROWS = ["BM25", "coCondenser", "two towers"]
# kinds that tests/test_recipes.py, test_cross_encoder_stages.py, test_approximate_stage.py, test_fuse_stage.py,
# test_read_run.py and test_warm_start_stage.py run
ELSEWHERE = {"retriever", "train_cross_encoder", "rerank", "denoise", "pseudo_label", "attention_entropy"}
ELSEWHERE |= {"ann_index", "fuse", "read_run", "token_vectors", "warm_start", "score_pairs", "audit_negatives"}
ELSEWHERE |= {"expanded_bm25", "filter_queries", "train_term_weights", "weighted_bm25"}  # tests/baselines/
ELSEWHERE |= {"pretrain_contrastive", "distil_ranking", "keep_best", "validate", "cross_encoder"}
ELSEWHERE |= {"sparse_encoder", "token_encoder"}  # test_released_encoders.py
ELSEWHERE |= {"cluster_queries", "finetune_tas_b", "train_jointly", "joint_reranker"}  # tests/baselines/
ELSEWHERE |= {
    "pretrain_simlm",
    "pretrain_seed",
    "pretrain_costa",
    "pretrain_lexmae",
    "pretrain_master",
    "question_pairs",
}  # tests/baselines/
ELSEWHERE |= {"finetune_late_interaction", "late_interaction_index", "finetune_splade", "splade_index"}
ELSEWHERE |= {"finetune_ance", "read_nli", "finetune_nli", "evaluate_word_vectors"}
ELSEWHERE |= {"query_contexts", "train_expander", "expand_queries", "expanded_queries"}  # tests/baselines/


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The recipe ``tiny`` on the docstrings of the standard library, with triples besides; its corpus lies ready."""
    folder = tmp_path_factory.mktemp("recipe")
    root = f"output_root={folder / 'out'}"
    run_command("data=pydocs_stdlib", "stages.corpus={stage: corpus}", "logger=csv", root).sound()
    collection = Collection(next((folder / "out" / "artifacts" / "corpus").glob("*/collection.json")).parent)
    queries, passages = collection.queries.ids, collection.passages.ids
    positives = list(collection.qrels("train").positives().items())[:300]
    lines = (f"{queries[q]}\t{passages[rows[0]]}\t{passages[rows[0] - 1]}" for q, rows in positives)
    triples = f"stages.triples={{stage: read_negatives, file: {write(folder / 'triples.tsv', lines)}}}"
    return ["experiment=tiny", triples, "stages.round2.negatives=[bm25_negatives,mined,triples]", root]


@pytest.fixture(scope="module")
def done(recipe: list[str]) -> Done:
    return run_command(*recipe, curves=True).sound()


@pytest.fixture(scope="module")
def contexts(done: Done, recipe: list[str]) -> Done:
    """The recipe ``contexts`` on the same collection, beside the first."""
    return run_command("experiment=contexts", recipe[-1]).sound()


def test_every_kind_of_stage_is_run_and_the_corpus_of_another_recipe_reused(done: Done, contexts: Done) -> None:
    kinds = {path.stem for path in (PROJECT / "conf" / "stage").glob("*.yaml")}
    artifacts = done.folder.parents[1] / "artifacts"
    made = {path.parents[1].name for path in artifacts.glob("*/*/manifest.json")}
    assert made | OF_QUERIES | OF_SENTENCES | ELSEWHERE == kinds
    assert "corpus" not in done.computed
    assert not {"corpus", "tokenizer", "tokens", "condenser"} & set(contexts.computed)
    assert not half_written(done.folder.parents[1])
    assert not list(artifacts.glob("*/*.partial"))


def test_libraries_write_nothing_between_the_lines_of_progress(done: Done) -> None:
    assert done.err == ""


def test_the_run_folder_holds_table_results_config_and_curves(done: Done) -> None:
    run = done.folder
    assert {path.name for path in run.iterdir()} >= {
        "table.md",
        "results.json",
        "config.yaml",
        "curves.png",
        "graph.json",
    }
    for row in ROWS:
        assert f"| {row} " in (run / "table.md").read_text().replace("**", "")
        assert row in done.out
    results = read_json(run / "results.json")
    assert [row["row"] for row in results] == ROWS
    for row in results:
        assert set(row) == {"row", "collection", "split", "metrics", "seed", "artifact"}
        assert (row["collection"], row["split"], row["seed"]) == ("pydocs-stdlib", "test", 1)
        assert list(row["metrics"]) == ["MRR@10", "Recall@100", "NDCG@10"]
        assert (run.parents[1] / "artifacts" / row["artifact"] / "run.trec.gz").is_file()
    assert results[0]["metrics"]["MRR@10"] > 0.2  # BM25 finds docstrings by their first sentence
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert all(link.resolve().is_dir() for link in (run / "stages").iterdir())
    composed = yaml.safe_load((run / "config.yaml").read_text())
    assert composed["stages"]["round1"]["learning_rate"] == 1.0e-3
    assert composed["backbone"]["layers"] == 2


def test_every_training_stage_leaves_its_curve(done: Done) -> None:
    for name in ("mlm", "condenser", "cocondenser", "round1", "round2"):
        header, *lines = (done.folder / "stages" / name / "logs" / "metrics.csv").read_text().splitlines()
        assert {"train/loss", "train/tokens_per_s", "val/mrr@10", "step"} <= set(header.split(","))
        assert len(lines) >= 6


LOSSES = {
    "query_context": {"mlm_head", "mlm_late", "contrast"},
    "cotmae": {"mlm_late", "mlm_context"},
    "cotmae_queries": {"mlm_late", "mlm_context"},
    "retromae": {"mlm_late", "mlm_context"},
    "ict": {"contrast"},
}


@pytest.mark.parametrize("name", LOSSES)
def test_every_way_to_pretrain_on_contexts_leaves_its_losses_and_a_retriever(name: str, contexts: Done) -> None:
    folder = contexts.folder / "stages" / name
    header, *lines = (folder / "logs" / "metrics.csv").read_text().splitlines()
    logged = {column.removeprefix("train/") for column in header.split(",") if column.startswith("train/")}
    assert logged == LOSSES[name] | {"loss", "lr", "grad_norm", "tokens_per_s", "tokens"}
    assert "val/mrr@10" in header
    assert len(lines) >= 6
    metrics = read_json(folder / "manifest.json")["metrics"]
    assert metrics["items"] > 100
    on_queries = name in ("query_context", "cotmae_queries")
    without = read_json(contexts.folder / "stages" / "sentences" / "manifest.json")["metrics"]["passages_without_query"]
    assert not on_queries or metrics["left_out"] == without > 0


def test_what_was_pretrained_on_contexts_is_fine_tuned_and_their_pairs_are_audited(contexts: Done) -> None:
    assert contexts.err == ""
    assert set(metrics_of(contexts.folder)) == {"BM25", "coCondenser", "query-as-context", "CoT-MAE", "ICT"}
    stages = contexts.folder / "stages"
    assert set(read_json(stages / "audit" / "audit.json")["kinds"]) == {"passage-passage", "passage-query"}
    queries, passages = Queries((stages / "sentences").resolve()), Passages((stages / "passages").resolve())
    assert len(queries.first) == len(passages.store) + 1
    assert queries.places is not None
    assert (queries.places >= 0).all(), "a sentence that shall be hidden cannot be told"


def test_a_second_run_reuses_everything_and_answers(done: Done, recipe: list[str]) -> None:
    results = (done.folder / "results.json").read_bytes()
    again = run_command(*recipe, "ask=read a json file").sound()
    assert again.computed == []
    assert (done.folder / "results.json").read_bytes() == results
    shown = again.out.partition("found by BM25")[2]
    assert "read a json file" in shown
    assert all(f"{place}" in shown for place in range(1, 6))
    assert "json" in shown.replace("read a json file", "").lower()


def test_a_dense_retriever_answers_too(done: Done, recipe: list[str]) -> None:
    rows = ["~table.rows.BM25", "table.baseline=null"]
    answered = run_command(*recipe, *rows, "ask=read a json file").sound()
    best = max(ROWS[1:], key=lambda row: metrics_of(done.folder)[row]["MRR@10"])
    assert f"found by {best}" in answered.out
    assert answered.computed == []


def test_several_questions_are_answered_from_a_pipe(
    done: Done, recipe: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("read a json file\nsort a list\n"))
    answered = run_command(*recipe, "ask=-").sound()
    assert answered.computed == []
    assert answered.out.count("found by BM25") == 2
    assert "? sort a list" in answered.out


def test_force_recomputes_one_stage_and_gives_the_same(done: Done, recipe: list[str]) -> None:
    before = artifact_files(done.folder)
    forced = run_command(*recipe, "force=[round1]").sound()
    assert forced.computed == ["round1"]
    assert artifact_files(done.folder) == before


@pytest.mark.slow
def test_two_jobs_give_the_bits_of_one(finished: Done, on_beir: list[str], tmp_path: Path) -> None:
    two = run_command("experiment=tiny", *on_beir, "jobs=2", f"output_root={tmp_path}").sound()
    assert sorted(two.computed) == sorted(finished.computed)
    assert two.folder.name == finished.folder.name
    for name in ("results.json", "table.md"):
        assert (two.folder / name).read_bytes() == (finished.folder / name).read_bytes()
    assert artifact_files(two.folder) == artifact_files(finished.folder)


def test_where_the_data_lies_does_not_matter(finished: Done, beir: Path, on_beir: list[str], tmp_path: Path) -> None:
    shutil.copytree(beir, tmp_path / "moved")
    root = f"output_root={finished.folder.parents[1]}"
    moved = run_command("experiment=tiny", *on_beir, f"data.root={tmp_path / 'moved'}", root).sound()
    assert moved.computed == []


def test_what_changes_one_stage_recomputes_it_and_what_reads_it(finished: Done, on_beir: list[str]) -> None:
    root = f"output_root={finished.folder.parents[1]}"
    changed = run_command("experiment=tiny", *on_beir, root, "stages.round2.learning_rate=2.0e-3").sound()
    assert changed.computed == ["round2", "round2.index", "round2.evaluation"]
    before, after = metrics_of(finished.folder), metrics_of(changed.folder)
    assert {row for row in before if before[row] != after[row]} <= {"two towers"}
