"""SPLADE from the command line: the table, the index, what is kept, what people get wrong."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from killed_runs import goes_on
from small_runs import MODEL, Done, amount, artifact_files, costs, metrics_of, run_command
from test_bad_input import one_line

from condensery.baselines.splade.model import SparseEncoder, start_lexically
from condensery.baselines.splade_index import index as index_module
from condensery.errors import UserError
from condensery.models.checkpoints.backbone import load_masked_language_model
from condensery.retrieval.indexes.opening import open_index
from condensery.stages.base import Artifact
from condensery.text.collection import Collection
from condensery.tokens.batches import chunks, flatten
from condensery.tokens.tokenizer import load_tokenizer
from condensery.tokens.vocabulary import Vocabulary, with_special

SMALL = [
    *MODEL,
    "stage.finetune.steps=2",
    "stage.finetune.validate_every=0",
    "stage.finetune_splade.steps=4",
    "stage.finetune_splade.batch_size=8",
    "stage.finetune_splade.validate_every=2",
    "stage.finetune_splade.validation_passages=20",
    "stage.finetune_splade.checkpoint_every=2",
    "stage.splade_index.shard_size=50",
]


@pytest.fixture(scope="module")
def recipe(on_beir: list[str]) -> list[str]:
    return ["experiment=splade", *on_beir, *SMALL]


@pytest.fixture(scope="module")
def done(recipe: list[str], tmp_path_factory: pytest.TempPathFactory) -> Done:
    return run_command(*recipe, f"output_root={tmp_path_factory.mktemp('splade')}").sound()


def stage(done: Done, name: str) -> Artifact:
    return Artifact((done.folder / "stages" / name).resolve())


def test_the_table_and_the_manifest_say_what_it_reaches_and_costs(done: Done) -> None:
    assert list(metrics_of(done.folder)) == ["BM25", "bi-encoder", "SPLADE"]
    index = stage(done, "splade.index")
    metrics, counts = index.manifest["metrics"], np.load(index.path / "counts.npy")
    assert metrics["terms_per_passage"] == counts.sum() / 120
    assert metrics["bytes_per_passage"] == pytest.approx(8 * counts.sum() / 120 + counts.itemsize, abs=2)
    assert stage(done, "splade.evaluation").manifest["metrics"]["milliseconds_per_query"] > 0
    assert 0 < stage(done, "splade").manifest["metrics"]["val/mrr@10"] <= 1


def test_its_card_says_what_it_is_and_its_program_runs(done: Done) -> None:
    folder = stage(done, "splade").path
    card = (folder / "README.md").read_text()
    assert {"sparse-encoder", "sentence-transformers"} <= set(yaml.safe_load(card.split("---\n")[1])["tags"])
    assert "A SPLADE: " in card
    assert "- `passage_flops`: 0.003\n" in card
    assert "It was trained with queries of 32 tokens and passages of 48." in card
    assert "/tmp" not in card
    (program,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    exec(program.replace('"finetune_splade"', f'"{folder}"'), {})


def test_a_dry_run_expects_two_terms_a_token(recipe: list[str], done: Done, tmp_path: Path) -> None:
    planned = costs(run_command(*recipe, "dry_run=plan", f"output_root={tmp_path}").sound().out)["splade.index"][3]
    made = sum(stage(done, "splade.index").manifest["files"].values())
    assert made < amount(planned) < 4 * made, "after four steps it has about one"


def test_search_is_the_inner_product_of_all_pairs(done: Done) -> None:
    collection = Collection(stage(done, "corpus").path)
    index: Any = open_index(stage(done, "splade.index").path, collection, device="cpu")
    rows = np.arange(9)
    texts = list(collection.queries.column("text").take(rows))
    products = index.encoded(texts).toarray().astype(np.float64) @ index.passages.toarray().T  # (9, 120)
    assert (products > 0).any()
    scores, found = index.search(rows, 120)
    for row in range(9):
        kept = found[row][found[row] >= 0]
        assert sorted(kept) == np.flatnonzero(products[row] > 0).tolist()
        np.testing.assert_allclose(scores[row][: len(kept)], products[row][kept], rtol=1e-5)
    assert (np.diff(np.where(found >= 0, scores, -1), axis=1) <= 0).all()
    every = np.tile(np.arange(120), (9, 1))
    np.testing.assert_allclose(index.score(rows, every), products, rtol=1e-5, atol=1e-6)
    assert np.isnan(index.score(rows[:1], np.array([[3, -1]]))).tolist() == [[False, True]]
    np.testing.assert_array_equal(index.search_texts(texts, 10)[1], found[:, :10])


def test_it_begins_with_the_tokens_of_each_text(done: Done) -> None:
    folder, collection = stage(done, "warm").path, Collection(stage(done, "corpus").path)
    tokenizer = load_tokenizer(folder)
    vocabulary = Vocabulary.of(tokenizer)
    shares = []  # per start: the share of the ten largest weights that are the text's own tokens
    for lexical in (False, True):
        language_model = load_masked_language_model(folder, vocabulary)
        torch.nn.init.zeros_(language_model.get_output_embeddings().bias)
        if lexical:
            start_lexically(language_model)
        model, own = SparseEncoder(language_model).eval(), []
        for text in collection.passages.column("text").take(np.arange(20)):
            ids = with_special(tokenizer(text, add_special_tokens=False)["input_ids"], vocabulary, 48)
            (chunk,) = chunks(*flatten([ids]), 100, vocabulary.pad)
            with torch.no_grad():
                largest = model.vectors(chunk)[0].topk(10)
            own.append(np.isin(largest.indices, ids)[largest.values > 0].mean())
        shares.append(np.mean(own))
    assert shares[1] > 0.7 > 0.3 > shares[0]


def test_killed_in_training_it_ends_with_the_same_bits(done: Done, recipe: list[str], tmp_path: Path) -> None:
    goes_on(done, recipe, tmp_path, ["finetune_splade", "splade_index", "evaluate"])


def test_an_interrupted_index_keeps_its_shards(
    done: Done, recipe: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(done.folder.parents[1] / "artifacts", tmp_path / "artifacts", symlinks=True)
    for kind in ("splade_index", "evaluate"):
        shutil.rmtree(tmp_path / "artifacts" / kind)
    passed = index_module.TextReader.chunks
    asked: list[int] = []

    def stops(source: Any, rows: np.ndarray, budget: int) -> Any:
        asked.append(int(rows[0]))
        if len(asked) == 2:
            raise UserError("stopped")
        return passed(source, rows, budget)

    monkeypatch.setattr(index_module.TextReader, "chunks", stops)
    one_line(run_command(*recipe, f"output_root={tmp_path}"), "stopped")
    again = run_command(*recipe, f"output_root={tmp_path}").sound()
    assert asked == [0, 50, 50, 100], "the first shard was there"
    assert artifact_files(again.folder) == artifact_files(done.folder)


@pytest.mark.parametrize(
    ("override", "place", "words"),
    [
        ("stage.finetune_splade.query_flops=-1", "stage.finetune_splade.query_flops", ["0"]),
        ("stage.finetune_splade.ramp_steps=-1", "stage.finetune_splade.ramp_steps", ["0"]),
        ("stage.finetune_splade.passage_length=200", "passage_length", ["200"]),
        ("stages.index={stage: splade_index, model: dense}", "stages.index.model", ["encoder", "sparse_encoder"]),
    ],
)
def test_what_cannot_be_is_one_line(
    recipe: list[str], tmp_path: Path, override: str, place: str, words: list[str]
) -> None:
    one_line(run_command(*recipe, override, f"output_root={tmp_path}"), place, *words)
    assert not (tmp_path / "artifacts").exists()


def test_an_encoder_without_weights_above_zero_is_refused(done: Done, recipe: list[str]) -> None:
    root = f"output_root={done.folder.parents[1]}"
    dead = run_command(*recipe, "stages.splade.lexical_start=false", root)
    one_line(dead, "stages.splade.lexical_start", "all weights are 0", "true")
