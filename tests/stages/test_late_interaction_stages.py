"""ColBERT, COIL and ME-BERT from the command line: the table, the index, what is kept, what people get wrong."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from killed_runs import goes_on
from small_runs import MODEL, Done, amount, artifact_files, costs, metrics_of, run_command
from test_bad_input import one_line

from condensery.baselines.late_interaction_index import index as index_module
from condensery.errors import UserError
from condensery.retrieval.indexes.opening import open_index
from condensery.stages.base import Artifact
from condensery.text.collection import Collection

SMALL = [
    *MODEL,
    "stage.finetune.steps=4",
    "stage.finetune.validate_every=0",
    "stage.finetune_late_interaction.steps=4",
    "stage.finetune_late_interaction.batch_size=8",
    "stage.finetune_late_interaction.validate_every=2",
    "stage.finetune_late_interaction.validation_passages=20",
    "stage.finetune_late_interaction.checkpoint_every=2",
    "stage.late_interaction_index.shard_size=50",
    "stages.coil.whole=64",
]


@pytest.fixture(scope="module")
def recipe(on_beir: list[str]) -> list[str]:
    return ["experiment=late_interaction", *on_beir, *SMALL]


@pytest.fixture(scope="module")
def done(recipe: list[str], tmp_path_factory: pytest.TempPathFactory) -> Done:
    return run_command(*recipe, f"output_root={tmp_path_factory.mktemp('late')}").sound()


def stage(done: Done, name: str) -> Artifact:
    return Artifact((done.folder / "stages" / name).resolve())


def test_every_row_is_in_the_table(done: Done) -> None:
    rows = ["BM25", "bi-encoder", "ColBERT", "ColBERT over BM25", "COIL", "ME-BERT"]
    assert list(metrics_of(done.folder)) == rows


@pytest.mark.parametrize("name", ["colbert.index", "coil.index", "me_bert.index"])
def test_the_index_is_about_as_large_as_a_dry_run_expects(
    name: str, done: Done, recipe: list[str], tmp_path: Path
) -> None:
    planned = run_command(*recipe, "dry_run=plan", f"output_root={tmp_path}").sound()
    made = sum(stage(done, name).manifest["files"].values())
    assert amount(costs(planned.out)[name][3]) == pytest.approx(made, rel=0.5)


@pytest.mark.parametrize("name", ["colbert", "coil", "me_bert"])
def test_manifests_have_validation_and_costs(done: Done, name: str) -> None:
    assert 0 < stage(done, name).manifest["metrics"]["val/mrr@10"] <= 1
    index = stage(done, f"{name}.index")
    metrics = index.manifest["metrics"]
    arrays = [np.load(index.path / f"{one}.npy") for one in ("vectors", "keys", "counts")]
    assert metrics["bytes_per_passage"] == sum(array.nbytes for array in arrays) / 120
    assert stage(done, f"{name}.evaluation").manifest["metrics"]["milliseconds_per_query"] > 0
    assert metrics["vectors"] == arrays[2].sum() == len(arrays[0]) == len(arrays[1])
    assert arrays[0].dtype == np.float16
    if name == "me_bert":
        assert arrays[2].tolist() == [8] * 120


@pytest.mark.parametrize("name", ["colbert", "coil", "me_bert"])
def test_exact_search_ranks_all_passages_by_their_scores(
    done: Done, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection, folder = Collection(stage(done, "corpus").path), stage(done, f"{name}.index").path
    index = open_index(folder, collection, device="cpu")
    queries = np.arange(7)
    scores, rows = index.search(queries, 120)
    assert all(sorted(row) == list(range(120)) for row in rows.tolist())
    np.testing.assert_allclose(index.score(queries, rows), scores, rtol=1e-4, atol=1e-4)
    assert (np.diff(scores, axis=1) <= 0).all()
    monkeypatch.setattr(index_module, "BLOCK", 100)  # about three passages
    monkeypatch.setattr(index_module, "GROUP", 3)
    parts = index.search(queries, 10)
    np.testing.assert_allclose(parts[0], scores[:, :10], rtol=1e-4, atol=1e-4)
    assert np.isnan(index.score(queries[:1], np.array([[3, -1]]))).tolist() == [[False, True]]
    by_text: Any = index
    asked = by_text.search_texts(list(collection.queries.column("text").take(queries)), 10)
    np.testing.assert_allclose(asked[0], scores[:, :10], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["colbert", "coil", "me_bert"])
def test_blocks_are_made_once_within_the_memory_and_the_scores_keep_their_bits(
    done: Done, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "BLOCK", 300)
    collection, folder = Collection(stage(done, "corpus").path), stage(done, f"{name}.index").path
    made: list[int] = []  # bytes of each block that is made

    class Counted(index_module.Block):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self.size)

    monkeypatch.setattr(index_module, "Block", Counted)
    queries = np.arange(6)

    def searched(memory: int) -> tuple[list[bytes], list[int], list[int]]:
        """What single queries and then all of them find, and the bytes of the blocks that were made and that stay."""
        made.clear()
        index: Any = open_index(folder, collection, memory=memory, device="cpu")
        found = [array.tobytes() for rows in [*queries[:, None], queries] for array in index.search(rows, 120)]
        return found, list(made), [block.size for block in index.kept.values()]

    anew, blocks, none = searched(0)
    assert not none
    blocks, again = blocks[: len(blocks) // 7], blocks
    assert len(blocks) > 1
    assert again == blocks * 7, "without memory each search makes all blocks"
    assert searched(sum(blocks)) == (anew, blocks, blocks)
    assert searched(blocks[0] + min(blocks) - 1) == (anew, blocks + blocks[1:] * 6, blocks[:1])


@pytest.mark.parametrize("name", ["colbert", "coil", "me_bert"])
def test_a_card_says_what_it_is_and_its_program_runs(name: str, done: Done) -> None:
    folder = stage(done, name).path
    card = (folder / "README.md").read_text()
    front = yaml.safe_load(card.split("---\n")[1])
    assert front["library_name"] == ("sentence-transformers" if name == "colbert" else "condensery")
    assert {"condensery", "late-interaction"} <= set(front["tags"])
    assert "dense-retrieval" not in front["tags"]
    what, size = {"colbert": ("A ColBERT", 64), "coil": ("A COIL", 32), "me_bert": ("An ME-BERT", 256)}[name]
    assert f"{what}: a " in card
    assert f"{size} dimensions" in card
    assert "Fine-tuned on judged queries" in card
    assert "- `beir`" in card
    assert "- `steps`: 4\n" in card
    assert "/tmp" not in card
    (program,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert '"finetune_late_interaction"' in program
    exec(program.replace('"finetune_late_interaction"', f'"{folder}"'), {})


def test_over_candidates_only_their_order_is_that_of_colbert(done: Done) -> None:
    collection = Collection(stage(done, "corpus").path)
    exact, over, bm25 = (
        open_index(stage(done, name).path, collection, device="cpu")
        for name in ("colbert.index", "colbert_over_bm25", "bm25")
    )
    queries = collection.questions("test")
    found, candidates = over.search(queries, 20), bm25.search(queries, 100)[1]
    for row, allowed in zip(found[1], candidates, strict=True):
        assert set(row[row >= 0]) <= set(allowed)
    there = found[1] >= 0
    wanted = exact.score(queries, found[1])
    np.testing.assert_allclose(found[0][there], wanted[there], rtol=1e-4, atol=1e-4)


def test_a_question_is_answered_by_the_tokens(done: Done, recipe: list[str]) -> None:
    root = f"output_root={done.folder.parents[1]}"
    rows = "table.rows={BM25: null, bi-encoder: null, COIL: null, ME-BERT: null, ColBERT over BM25: null}"
    only = [rows, "table.baseline=ColBERT", root, "ask=what about it"]
    assert "found by ColBERT" in run_command(*recipe, *only).sound().out


@pytest.mark.slow
def test_killed_in_training_it_ends_with_the_same_bits(done: Done, recipe: list[str], tmp_path: Path) -> None:
    goes_on(done, recipe, tmp_path, ["finetune_late_interaction", "late_interaction_index", "evaluate"])


def test_an_interrupted_index_keeps_its_shards(
    done: Done, recipe: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(done.folder.parents[1] / "artifacts", tmp_path / "artifacts", symlinks=True)
    for kind in ("late_interaction_index", "evaluate"):
        shutil.rmtree(tmp_path / "artifacts" / kind)
    checked, passed = 0, index_module.check_finite

    def stops(*arguments: Any) -> None:
        nonlocal checked
        checked += 1
        if checked == 2:
            raise UserError("stopped")
        passed(*arguments)

    monkeypatch.setattr(index_module, "check_finite", stops)
    one_line(run_command(*recipe, f"output_root={tmp_path}"), "stopped")
    assert len([*tmp_path.glob("artifacts/*/*.partial/counts.parts/0*")]) == 1
    again = run_command(*recipe, f"output_root={tmp_path}").sound()
    assert checked == 2 + 4 * 3 - 1  # four indexes of three shards; the first shard was there
    assert artifact_files(again.folder) == artifact_files(done.folder)


@pytest.mark.parametrize(
    ("override", "place", "words"),
    [
        ("stages.coil.whole=50", "stages.coil", ["whole", "50", "multiple of dimensions"]),
        ("stages.colbert.whole=64", "stages.colbert", ["whole", "64", "coil"]),
        ("stages.colbert.method=colber", "stages.colbert.method", ["colbert"]),
        ("stages.colbert.query_length=200", "query_length", ["200"]),
        ("stages.colbert_over_bm25.model=dense", "stages.colbert_over_bm25.model", ["encoder", "token_encoder"]),
        ("stages.colbert_over_bm25.retriever=nobody", "stages.colbert_over_bm25.retriever", ["nobody"]),
    ],
)
def test_what_cannot_be_is_one_line(
    recipe: list[str], tmp_path: Path, override: str, place: str, words: list[str]
) -> None:
    one_line(run_command(*recipe, override, f"output_root={tmp_path}"), place, *words)
    assert not (tmp_path / "artifacts").exists()
