"""BERT + NLI: the files, the objective, through the cache and in processes, and the recipes of the sentence baselines."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import textbook
import torch
from slow import slow_except
from small_runs import MODEL, metrics_of, run_command, some_text, write_beir, write_stsb
from torch import Tensor

from condensery import check_gradients
from condensery.baselines.nli.reading import LABELS, pairs_of
from condensery.baselines.nli.training import NliModule
from condensery.errors import UserError
from condensery.losses.gradient_cache import backpropagate
from condensery.models.biencoder import BiEncoder
from condensery.models.encoder import Encoder
from condensery.text.table import TextTable
from condensery.tokens.artifacts import Sentences
from condensery.tokens.batches import chunks, text_rows
from condensery.training.data.data_module import StepDataModule
from condensery.training.data.steps import items_of_step
from condensery.training.loop import fit
from condensery.training.modules.sentence_encoder import SentenceBatches

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
sys.path.insert(0, str(Path(__file__).parents[1] / "stages"))
import trainings
from single_stage import inputs, run_stage

ROWS = np.array([[0, 1], [2, 1], [3, 4], [5, 6], [7, 0], [8, 9], [4, 2]])
TEXT = some_text(documents=24, paragraphs=6)


def batches_of(folder: Path) -> SentenceBatches:
    store = trainings.store(folder / "sentences", [3 + (5 * n) % 7 for n in range(10)], seed=3)
    labels = np.array([0, 2, 1, 1, 0, 2, 2], np.float32)
    return SentenceBatches(store, textbook.vocabulary(), ROWS, labels, batch_size=5, length=9, budget=20, seed=5)


def module(dropout: float = 0.0) -> NliModule:
    model = BiEncoder(Encoder(textbook.language_model(dropout=dropout).float().base_model))
    return NliModule(model, **trainings.optimiser(learning_rate=5e-3))


def test_through_the_cache_loss_and_gradient_are_those_of_the_papers_objective(tmp_path: Path) -> None:
    batches, ours, theirs = batches_of(tmp_path), module().double(), module().double()
    batch = batches.batch(0)
    assert len(batch.chunks) > 1
    found = backpropagate(*[(made := ours.objective(batch))[0], batch.chunks, made[1]])
    rows = ROWS[chosen_first(batches)]
    losses = []
    for (first, second), label in zip(rows.tolist(), batch.scores.tolist(), strict=True):
        u, v = (_vector(theirs, batches, row) for row in (first, second))
        features = [*u, *v, *[abs(a - b) for a, b in zip(u, v, strict=True)]]
        logits = [
            sum(w * x for w, x in zip(row, features, strict=True)) + bias
            for row, bias in zip(theirs.classifier.weight, theirs.classifier.bias, strict=True)
        ]
        shares = torch.stack([logit.exp() for logit in logits])  # type: ignore[union-attr]
        losses.append(-(shares[int(label)] / shares.sum()).log())
    expected = torch.stack(losses).mean()
    expected.backward()
    torch.testing.assert_close(found["contrast"], expected.detach(), rtol=1e-9, atol=1e-12)
    for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        if one.grad is not None and other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-12)
    assert ours.classifier.weight.grad is not None


def _vector(made: NliModule, batches: SentenceBatches, row: int) -> Tensor:
    (chunk,) = chunks(*text_rows(batches.sentences, [row], batches.vocabulary, 9), 100, textbook.PAD)
    return made.model.vectors(chunk)[0]


def chosen_first(batches: SentenceBatches) -> np.ndarray:
    return items_of_step(0, 5, len(batches.rows), 5)[1]


def test_it_is_the_loss_of_sentence_transformers(tmp_path: Path) -> None:
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")

    class Given(torch.nn.Module):
        """A model whose sentences are the vectors that it is given."""

        device = torch.device("cpu")

        def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
            return {"sentence_embedding": features["vectors"]}

        def get_embedding_dimension(self) -> int:
            return 16

        get_sentence_embedding_dimension = get_embedding_dimension

    made, batch = module().eval(), batches_of(tmp_path).batch(0)
    theirs = losses.SoftmaxLoss(Given(), 16, num_labels=3)  # type: ignore[arg-type]
    theirs.classifier.load_state_dict(made.classifier.state_dict())
    vectors = torch.randn(10, 16, generator=torch.Generator().manual_seed(2))
    contrast = made.objective(batch)[1]
    assert contrast is not None
    pairs: Any = [{"vectors": vectors[:5]}, {"vectors": vectors[5:]}]
    torch.testing.assert_close(contrast(vectors), theirs(pairs, batch.scores.long()), rtol=1e-5, atol=1e-6)


def test_chunks_and_processes_give_the_gradient_of_the_whole_batch(tmp_path: Path) -> None:
    report = check_gradients(module(0.1), batches_of(tmp_path), processes=2, frozen=False)
    assert report, report


@pytest.mark.slow
def test_it_learns_the_labels_and_a_stopped_run_ends_bit_identical(tmp_path: Path) -> None:
    def run(name: str, steps: int = 12, **others: Any) -> tuple[NliModule, float]:
        made = module(dropout=0.0)
        settings = trainings.loop(steps=steps, validate_every=0)
        values = fit(made, StepDataModule(batches_of(tmp_path)), settings, tmp_path / name, name, **others)
        return made, values["train/contrast"]

    whole, _ = run("whole")
    with pytest.raises(trainings.InterruptionError):
        run("parts", loggers=[trainings.Stop(tmp_path, 8)])
    again, _ = run("parts")
    for one, other in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    assert run("long", 60)[1] < 0.6 * run("short", 1)[1]


PAIRS = [("A man sleeps.", "He rests.", 0), ('"So", he said', "No.", 2), ("A man sleeps.", "It\u2019s late.", 1)]


def write_nli(path: Path, fields: tuple[str, str, str] = ("premise", "hypothesis", "label")) -> Path:
    """Three pairs, and one that the annotators did not agree on."""
    rows = [(a, b, LABELS[label]) for a, b, label in PAIRS] + [("x y", "z", "-")]
    if path.name.removesuffix(".gz").endswith(".jsonl"):
        lines = [json.dumps(dict(zip(fields, row, strict=True))) for row in rows]
    else:
        lines = ["\t".join(fields), *("\t".join(row) for row in rows)]
    path.write_bytes(("\n".join(lines) + "\n").encode())
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.tsv", "a.txt"])
@pytest.mark.parametrize("fields", [("premise", "hypothesis", "label"), ("sentence1", "sentence2", "gold_label")])
def test_the_pairs_are_those_of_the_file_in_each_format(name: str, fields: Any, tmp_path: Path) -> None:
    assert list(pairs_of(write_nli(tmp_path / name, fields))) == [*PAIRS, ("x y", "z", None)]


def test_numbers_are_labels_and_other_splits_are_left_out(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [{"premise": "a", "hypothesis": "b", "label": label} for label in (0, 1, 2, -1)]
    records.append({"premise": "a", "hypothesis": "b", "label": 0, "split": "dev"})
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, records)).encode()))
    assert [label for *_, label in pairs_of(path)] == [0, 1, 2, None]
    columns = tmp_path / "all.tsv"  # AllNLI of sentence-transformers
    columns.write_text(
        "split\tdataset\tsentence1\tsentence2\tlabel\ntrain\tSNLI\ta\tb\tneutral\ndev\tSNLI\ta\tb\tneutral\n"
    )
    assert list(pairs_of(columns)) == [("a", "b", 1)]


def test_several_files_are_one_artifact_of_distinct_sentences(tmp_path: Path) -> None:
    made = inputs(tmp_path, TEXT)
    paths = [str(write_nli(tmp_path / name)) for name in ("a.jsonl", "b.tsv")]
    found = run_stage("read_nli", tmp_path / "made", made, paths=paths)
    pairs = Sentences(tmp_path / "made")
    assert (found["train"], found["without_label"], found["neutral"], found["sentences"]) == (6, 2, 2, 5)
    texts = list(TextTable(tmp_path / "made" / "sentences.arrow").column("text"))
    read = [(texts[a], texts[b], int(s)) for (a, b), s in zip(pairs.rows("train"), pairs.scores("train"), strict=True)]
    assert read == [*PAIRS, *PAIRS]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", '{"premise": "a", "hypothesis": "b"}', ':1: the field "gold_label" or "label" is missing'),
        ("a.jsonl", '{"premise": "a", "hypothesis": "b", "label": "maybe"}', ":1: the label must be one of entailment"),
        ("a.jsonl", '{"premise": "a", "hypothesis": "b", "label": true}', ":1: the label must be one of entailment"),
        ("a.jsonl", '{"premise": " ", "hypothesis": "b", "label": 1}', ":1: the premise is empty"),
        ("a.jsonl", '{"premise": 3, "hypothesis": "b", "label": 1}', ":1: the premise must be a string"),
        ("a.jsonl", "[1]", ":1: a JSON object is expected"),
        ("a.jsonl", '{"premise": "a", "hypothesis": "b", "label": "-"}', ": no pair has a label"),
        ("a.tsv", "premise\thypothesis\tlabel\n", ": no pair of sentences"),
        ("a.tsv", "premise\thypothesis\tlabel\na\tb\n", ':2: the field "gold_label" or "label" is missing'),
        ("a.tsv", "first\tsecond\tlabel\na\tb\tneutral\n", ':2: the field "premise" or "sentence1" is missing'),
    ],
)
def test_bad_files_are_one_line_that_names_the_place(name: str, content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    made = inputs(tmp_path, TEXT)
    with pytest.raises(UserError) as raised:
        run_stage("read_nli", tmp_path / "made", made, paths=[str(tmp_path / name)])
    assert f"{name}{said}" in str(raised.value)
    assert "\n" not in str(raised.value)


def given_files(folder: Path) -> list[str]:
    """The files of both recipes: pairs with scores, pairs with labels, word vectors."""
    stsb, nli = write_stsb(folder / "stsb", TEXT), folder / "nli.jsonl"
    sentences = [words for _, _, words, _ in TEXT.passages]
    fields = ("premise", "hypothesis", "label")
    rows = [(sentences[n], sentences[n + 1], LABELS[n % 3]) for n in range(40)]
    nli.write_text("".join(json.dumps(dict(zip(fields, row, strict=True))) + "\n" for row in rows))
    words = sorted({word for text in sentences for word in text.lower().replace(".", "").split()})
    draw = np.random.default_rng(1)
    lines = [f"{word} {' '.join(f'{x:.3f}' for x in draw.normal(size=8))}\n" for word in words]
    (folder / "glove.txt").write_text("".join(lines))
    given = [f"stage.read_sts.root={stsb}", f"stage.read_nli.paths=[{nli}]"]
    return [*given, f"stage.evaluate_word_vectors.path={folder / 'glove.txt'}", "data=squad", "logger=csv", *MODEL]


@pytest.mark.parametrize("recipe", slow_except(["bert_nli", "bert_nli_stsb"], "bert_nli"))
def test_the_recipes_run_to_their_tables(recipe: str, tmp_path: Path) -> None:
    root = write_beir(tmp_path / "beir", TEXT)
    kinds = ("finetune_nli", "finetune_sentences")
    few = [f"++stage.{kind}.{key}" for kind in kinds for key in ("steps=3", "epochs=null", "length=64")]
    given = [*given_files(tmp_path), f"data.root={root}", f"output_root={tmp_path / 'out'}", *few]
    small = ["stages.condenser_tuned.backbone.name=null"] if recipe == "bert_nli_stsb" else []
    done = run_command(f"experiment={recipe}", *given, *small).sound()
    rows = metrics_of(done.folder)
    assert list(rows) == {"bert_nli": SMALL, "bert_nli_stsb": FULL}[recipe]
    assert all(-1 <= metrics["Spearman"] <= 1 for metrics in rows.values())


SMALL = ["averaged word vectors", "warm start + NLI, not trained on STS-b", "warm start", "warm start + NLI"]
FULL = ["BERT", "Condenser", "GloVe", "BERT + NLI"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "stage.read_nli.paths=[nowhere.jsonl]",
            "nowhere.jsonl: no such file (nor nowhere.jsonl.gz); it should be the file of NLI pairs",
        ),
        ("stage.read_nli.paths=[]", "paths"),
        (
            "stage.evaluate_word_vectors.path=nowhere.txt",
            "nowhere.txt: no such file (nor nowhere.txt.gz); it should be the file of word",
        ),
        ("stages.warm_nli.nli=sentences", "nli"),
    ],
)
def test_what_cannot_be_is_one_line_before_any_work(change: str, said: str, tmp_path: Path) -> None:
    given = [*given_files(tmp_path), f"output_root={tmp_path / 'out'}", "data=pydocs"]
    done = run_command("experiment=bert_nli", *given, change, "dry_run=plan")
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert said in done.err
    assert not (tmp_path / "out").exists()
