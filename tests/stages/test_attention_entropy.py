"""The stage that measures CLS attention: which encoders, which texts, and what it refuses."""

import numpy as np
import pytest
import torch
from small_runs import Done, run_command
from test_bad_input import one_line

from condensery.models.attention import cls_entropy
from condensery.models.checkpoints.retrievers import load_encoder
from condensery.system.files import read_json
from condensery.tokens.artifacts import Tokens
from condensery.tokens.batches import chunks, span_rows

ENTROPY = "{stage: attention_entropy, encoders: [backbone, condenser, round1], number: 20, length: 24, min_length: 4}"
FIGURE = (
    "{kind: attention_entropy, stage: entropy, models: {random: [backbone, round1], Condenser: [condenser, round1]}}"
)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory, on_beir: list[str]) -> list[str]:
    """A recipe with all that the stage reads."""
    return ["experiment=short", *on_beir, f"output_root={tmp_path_factory.mktemp('out')}"]


@pytest.fixture(scope="module")
def measured(recipe: list[str]) -> Done:
    """A run with the stage and its figure."""
    return run_command(*recipe, f"stages.entropy={ENTROPY}", f"figures.entropy={FIGURE}").sound()


def test_every_encoder_is_measured_on_the_same_random_texts(measured: Done) -> None:
    run = measured.folder
    found, graph = read_json(run / "stages" / "entropy" / "entropy.json"), read_json(run / "graph.json")
    names = [f"{graph[name]['kind']}/{graph[name]['id']}" for name in ("condenser", "round1")]
    assert list(found["encoders"]) == ["backbone", *names]
    assert (found["unit"], found["texts"]) == ("nats", 20)
    tokens = Tokens(run / "stages" / "tokens")
    every = np.stack([tokens.documents.starts[:-1], np.minimum(tokens.documents.lengths, 22)], axis=1)
    (rows,) = chunks(*span_rows(tokens.documents, every, tokens.vocabulary), 10**6, tokens.vocabulary.pad)
    for name, values in found["encoders"].items():
        assert len(values["mean"]) == len(values["deviation"]) == 2
        assert all(0 < mean < found["even"] for mean in values["mean"])
        if name != "backbone":
            encoder = load_encoder(run.parents[1] / "artifacts" / name).eval()
            with torch.inference_mode():
                whole = cls_entropy(encoder, rows).numpy()  # of all texts, not of twenty
            np.testing.assert_allclose(values["mean"], whole.mean(axis=1), atol=4 * whole.std() / 20**0.5 + 1e-3)


def test_a_run_draws_the_entropy_and_prints_its_table(measured: Done) -> None:
    assert (measured.folder / "figures" / "entropy.svg").is_file()
    assert "| Condenser, before fine-tuning |" in measured.out
    assert "Mean over heads and 20 texts." in measured.out
    assert measured.err == ""


@pytest.mark.slow
def test_another_seed_draws_other_texts_and_whole_documents_are_fewer(recipe: list[str]) -> None:
    found = []
    for changes in ("number: 20, seed: 1", "number: 20, seed: 2", "number: 1000", "number: 1000, texts: documents"):
        stage = ENTROPY.replace("backbone, condenser, ", "").replace("number: 20", changes)
        done = run_command(*recipe, f"stages.entropy={stage}").sound()
        found.append(read_json(done.folder / "stages" / "entropy" / "entropy.json"))
    assert [one["texts"] for one in found] == [20, 20, 120, 40]
    assert len({str(one["encoders"]) for one in found}) == 4


@pytest.mark.parametrize(
    ("stage", "said"),
    {
        "no text is so long": (
            ENTROPY.replace("min_length: 4", "min_length: 1000").replace("length: 24", "length: 1000"),
            "error: stages.entropy.min_length: no text has 1000 tokens; lower it",
        ),
        "the shortest is longer than the longest": (
            ENTROPY.replace("min_length: 4", "min_length: 32"),
            "error: stages.entropy: min_length=32 is longer than length=24",
        ),
        "no encoder": (ENTROPY.replace("backbone, condenser, round1", ""), "error: stages.entropy.encoders: must have"),
        "not an encoder": (ENTROPY.replace("round1", "bm25"), "error: stages.entropy.encoders: the stage 'bm25' makes"),
    }.values(),
)
def test_what_cannot_be_measured_is_said_in_one_line(stage: str, said: str, recipe: list[str]) -> None:
    one_line(run_command(*recipe, f"stages.entropy={stage}"), said)


def test_an_encoder_with_another_tokenizer_is_refused(recipe: list[str], measured: Done) -> None:
    other = ["stages.words={stage: tokenizer, vocab_size: 500}", "stages.other={stage: tokens, tokenizer: words}"]
    stage = "{stage: attention_entropy, encoders: [condenser], tokens: other, min_length: 4, length: 24}"
    said = one_line(
        run_command(*recipe, *other, f"stages.entropy={stage}"), "condenser reads another tokenizer than the texts"
    )
    assert said.startswith("error: stages.entropy.encoders: ")
