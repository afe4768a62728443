"""experiments/benchmarks/sentence_transformers_rows.py: each method makes a checkpoint that ours reads, within its budget."""

import itertools
import json
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from error_lines import names
from released import PROMPTS, released
from safetensors.torch import load_file
from small_runs import metrics_of, run_command, some_text, write_beir

from condensery.errors import UserError
from condensery.evaluation.evaluate import evaluate
from condensery.retrieval.searchers.retriever import Retriever
from condensery.text import read_collection
from condensery.text.to_collection import _source
from condensery.tokens.tokenizer import train_wordpiece
from condensery.training.data.triples import TripleDataModule
from condensery.training.learning_rate import linear_schedule
from condensery.training.modules.biencoder import BiEncoderModule

TEXT = some_text(documents=30, seed=5)
BUDGET = 1.0  # CPU-seconds
METHODS = {"mnrl": (16, 2e-5, None), "mnrl_hard": (16, 2e-5, None), "tsdae": (8, 3e-5, 75), "simcse": (128, 5e-5, 32)}
SCRIPT = Path("experiments") / "benchmarks" / "sentence_transformers_rows.py"


@pytest.fixture(scope="module")
def program(project: Path) -> Iterator[ModuleType]:
    """The script; skipped where the trainer lacks a library."""
    pytest.importorskip("accelerate")
    pytest.importorskip("sentence_transformers", minversion="6")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.syspath_prepend(project / SCRIPT.parent)
        spec = util.spec_from_file_location(SCRIPT.stem, project / SCRIPT)
        assert spec
        assert spec.loader
        spec.loader.exec_module(module := util.module_from_spec(spec))
        yield module


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small retriever as sentence-transformers saves one, with prompts and mean pooling."""
    folder = tmp_path_factory.mktemp("start")
    words = [words for _, _, words, _ in TEXT.passages]
    train_wordpiece([*words, *PROMPTS.values()], 400, folder / "tokenizer")
    return released(folder, folder / "tokenizer", behind=[("Normalize", {})], similarity="cosine", length=30)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BEIR folder without dev queries, of which a train query has two positives."""
    root = write_beir(tmp_path_factory.mktemp("data") / "beir", TEXT)
    (root / "qrels" / "dev.tsv").unlink()
    with open(root / "qrels" / "train.tsv", "a") as stream:
        stream.write("q0\t5\t1\n")
    return root


def words_of(program: ModuleType, **said: str | Path) -> dict[str, str]:
    """All arguments of the script."""
    return {**program.DEFAULTS, "budget": str(BUDGET), **{key: str(value) for key, value in said.items()}}


@pytest.mark.parametrize("method", METHODS)
def test_each_method_makes_a_checkpoint_that_ours_reads_as_the_library_does(
    method: str, program: ModuleType, start: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = pytest.importorskip("sentence_transformers")
    out = tmp_path / "made" / method
    reads = itertools.count(
        1
    )  # a busy machine may use the whole budget for the first step, so each reading adds a fixed part
    monkeypatch.setattr(program.Budget, "used", property(lambda budget: next(reads) * BUDGET / 20))
    said = program.make(program.options(words_of(program, checkpoint=start, data=data, out=out, method=method)))
    assert json.loads((out.parent / f"{method}.json").read_text()) == said
    assert {path.name for path in out.parent.iterdir()} == {method, f"{method}.json"}
    assert (said["batch"], said["rate"], said["length"]) == METHODS[method]
    assert said["steps"] >= 2
    assert BUDGET <= said["cpu_seconds"] < BUDGET + 1
    assert (said["mining_cpu_seconds"] > 0) == ("triplets" in said) == (method == "mnrl_hard")
    assert said["peak_mb"] > 50
    model = library.SentenceTransformer(str(out), device="cpu")
    assert model.max_seq_length == 30
    texts = [words for _, words, _ in TEXT.questions[:5]]
    ours, theirs = Retriever(out, precision="fp32").encode_queries(texts), model.encode_query(texts)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert np.abs(ours - Retriever(start, precision="fp32").encode_queries(texts)).max() > 1e-4


def test_a_query_is_a_pair_with_each_positive_and_dev_queries_are_held_out(
    program: ModuleType, data: Path, tmp_path: Path
) -> None:
    collection = program.collection_in(str(data))
    asked = collection.queries.column("text")
    held_out = set(asked.take(collection.questions("dev")))
    columns = program.columns_of(collection, {"method": "mnrl"})
    pairs = list(zip(*columns.values(), strict=True))
    assert held_out
    assert not held_out & set(columns["anchor"])
    assert len(pairs) == len(collection.qrels("train"))
    texts = {name: f"{title} {words}" for name, title, words, _ in TEXT.passages}
    assert [positive for query, positive in pairs if query == TEXT.questions[0][1]] == [texts["0"], texts["5"]]
    read_collection(_source(data, None), tmp_path / "corpus")  # as the stage does
    assert program.columns_of(program.collection_in(str(tmp_path / "corpus")), {"method": "mnrl"}) == columns


def test_on_the_same_batches_ours_reaches_the_weights_of_the_librarys_trainer(
    program: ModuleType, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datasets import Dataset

    root = write_beir(tmp_path / "data", replace(TEXT, passages=[(one[0], "", *one[2:]) for one in TEXT.passages]))
    with open(root / "qrels" / "train.tsv", "a") as stream:
        stream.write("q0\t5\t1\n")
    calm = Path(shutil.copytree(start, tmp_path / "calm"))
    about = json.loads((calm / "config.json").read_text())
    without_dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    (calm / "config.json").write_text(json.dumps(about | without_dropout))
    columns = program.columns_of(program.collection_in(str(root)), {"method": "mnrl"})
    rows, read, seen = Dataset.from_dict(columns), Dataset.__getitems__, list[list[int]]()
    monkeypatch.setattr(Dataset, "__getitems__", lambda own, keys: seen.append(list(keys)) or read(own, keys))
    steps, rate, theirs = 15, 1e-3, program.loaded(calm)
    budget = SimpleNamespace(seconds=steps, used=0)

    def share_of_rate(step: int) -> float:
        budget.used = step
        return linear_schedule(step, steps, 0.1)

    budget.share_of_rate = share_of_rate
    wanted = {"method": "mnrl", "batch": 8, "rate": rate, "length": None, "seed": 4, "precision": "fp32"}
    prompts = {"anchor": PROMPTS["query"], "positive": PROMPTS["document"]}
    program.train(theirs, rows, prompts, wanted, budget, str(tmp_path / "scratch"))

    lengths = {"query_length": 30, "passage_length": 30, "query_prefix": PROMPTS["query"]}
    read_as = {**lengths, "passage_prefix": PROMPTS["document"], "batch_size": 8, "each_positive": True}
    data = TripleDataModule(root, calm, order=lambda step: (0, np.array(seen[step])), **read_as)
    trained = {"learning_rate": rate, "weight_decay": 0.0, "temperature": 1 / 20, "mask_known_positives": False}
    module = BiEncoderModule(calm, **trained)
    pl.Trainer(max_steps=steps, accelerator="cpu", logger=False, enable_checkpointing=False).fit(module, data)
    assert len(data.batches.training.rows) == len(rows)
    module.save_pretrained(tmp_path / "ours", calm)
    theirs.save_pretrained(str(tmp_path / "theirs"), create_model_card=False)
    ends = [load_file(folder / "model.safetensors") for folder in (calm, tmp_path / "theirs", tmp_path / "ours")]
    kept = [name for name in sorted(ends[2]) if not name.endswith("key.bias")]  # its gradient is zero but for rounding
    first, last, reached = (torch.cat([end[name].flatten() for name in kept]) for end in ends)
    assert (last - first).abs().max() > rate
    assert (reached - last).norm() < 1e-4 * (last - first).norm()


def test_text_alone_is_in_sentences_or_passages(program: ModuleType, data: Path) -> None:
    collection = program.collection_in(str(data))
    whole = program.columns_of(collection, {"method": "simcse", "unit": "passage"})
    cut = program.columns_of(collection, {"method": "tsdae", "unit": "sentence"})
    assert len(whole["text"]) == len(TEXT.passages)
    assert whole["text"] == whole["again"]
    assert " ".join(cut["text"]) == " ".join(whole["text"])
    assert len(cut["text"]) == 5 * len(TEXT.passages)


def test_three_fifths_of_the_words_are_deleted_and_one_is_left(program: ModuleType) -> None:
    damage = program.damaging(1)
    long = " ".join(str(number) for number in range(5_000))
    first, second = (damage({"text": [long, "alone"]}) for _ in range(2))
    assert list(first) == ["damaged", "text"], "what the encoder reads comes first"
    assert first["text"] == [long, "alone"]
    kept = first["damaged"][0].split()
    assert kept == sorted(kept, key=int)
    assert 0.37 < len(kept) / 5_000 < 0.43
    assert first["damaged"][0] != second["damaged"][0]
    assert first["damaged"][1] == "alone"


def test_negatives_come_from_positives_or_all_passages_and_a_margin_leaves_some_out(
    program: ModuleType, start: Path, data: Path
) -> None:
    from datasets import Dataset

    collection, model = program.collection_in(str(data)), program.loaded(start)
    columns = program.columns_of(collection, {"method": "mnrl"})
    everything = program.passages_of(collection)

    def negatives(corpus: list[str] | None, margin: float | None) -> list[str]:
        wanted = {"precision": "fp32", "relative_margin": margin}
        return list(program.mined(Dataset.from_dict(columns), model, corpus, wanted, program.Budget(60))["negative"])

    plain = negatives(None, None)
    assert len(plain) == 3 * len(columns["anchor"])
    assert set(plain) <= set(columns["positive"])
    assert not set(negatives(everything, None)) <= set(columns["positive"])
    assert len(negatives(None, 0.05)) < len(plain)
    with pytest.raises(UserError, match="no negative"):
        negatives(None, 5.0)
    with pytest.raises(UserError, match=r"budget=0.001: mining alone took"):
        program.mined(
            Dataset.from_dict(columns),
            model,
            None,
            {"precision": "fp32", "relative_margin": None},
            program.Budget(1e-3),
        )


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_layers_compute_in_the_precision_and_read_the_length(
    precision: str, dtype: torch.dtype, program: ModuleType, start: Path, tmp_path: Path
) -> None:
    from datasets import Dataset

    model, seen = program.loaded(start), set[tuple[torch.dtype, int]]()
    layer = next(part for part in model.modules() if isinstance(part, torch.nn.Linear))
    layer.register_forward_hook(lambda layer, inputs, output: seen.add((output.dtype, output.shape[1])))
    wanted = {"method": "mnrl", "batch": 2, "rate": 1e-5, "length": 8, "seed": 1, "precision": precision}
    texts = [words for _, _, words, _ in TEXT.passages[:4]]
    rows = Dataset.from_dict({"anchor": texts[:2], "positive": texts[2:]})
    program.train(model, rows, {}, wanted, program.Budget(0.05), str(tmp_path))
    assert seen == {(dtype, 8)}
    assert model.max_seq_length == 30
    assert {weights.dtype for weights in model.parameters()} == {torch.float32}


def test_the_rate_rises_over_a_tenth_of_what_mining_left_and_falls_to_nothing(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = program.Budget(50)
    budget.mining = 10.0
    for used, share in ((10, 0), (12, 0.5), (14, 1), (32, 0.5), (50, 0), (51, 0)):
        monkeypatch.setattr(program.time, "process_time", lambda used=used: budget.start + used)
        assert budget.share_of_rate(0) == pytest.approx(share, abs=1e-9)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("budget", "", ["not given"]),
        ("budget", "0", ["> 0"]),
        ("batch", "1", ["whole number", ">= 2"]),
        ("rate", "fast", ["number", "fast"]),
        ("method", "mnlr", ["did you mean 'mnrl'"]),
        ("candidates", "all", ["passages"]),
    ],
)
def test_a_wrong_argument_is_one_line(
    key: str, value: str, words: list[str], program: ModuleType, tmp_path: Path
) -> None:
    said = {"checkpoint": "m", "data": "d", "out": tmp_path / "out", key: value}
    with pytest.raises(UserError) as error:
        program.options(words_of(program, **said))
    names(str(error.value), key, *words)


def test_what_is_missing_or_in_the_way_is_one_line(
    program: ModuleType, start: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(**said: str | Path) -> str:
        with pytest.raises(SystemExit) as end:
            program.main(words_of(program, **{"checkpoint": start, "data": data, "out": tmp_path / "out", **said}))
        assert not (tmp_path / "out").exists()
        line = str(end.value.code)
        assert line.startswith("error: ")
        return line

    (tmp_path / "there.json").write_text("{}")
    names(fault(out=tmp_path / "there"), str(tmp_path / "there.json"), "delete it")
    names(fault(checkpoint=tmp_path / "none"), str(tmp_path / "none"), "no such folder")
    names(fault(data=tmp_path / "none"), str(tmp_path / "none"), "folder")
    unjudged = write_beir(tmp_path / "unjudged", TEXT)
    (unjudged / "qrels" / "train.tsv").unlink()
    names(fault(data=unjudged), "train", "no split")
    monkeypatch.setattr(program, "NEEDED", ("datasets", "accelerate_of_nobody"))
    names(fault(), "accelerate_of_nobody", "pip install 'sentence-transformers[train]>=6'")


@pytest.mark.slow
def test_its_commands_make_a_row_of_a_table(
    program: ModuleType,
    project: Path,
    start: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names_of = {"MODEL": start, "DIR": data, "FOLDER": tmp_path / "st", "SECONDS": BUDGET}
    shown = program.__doc__.replace("\\\n", " ")
    for name, value in names_of.items():
        shown = re.sub(rf"\b{name}\b", str(value), shown)
    making, using = (shlex.split(line) for line in shown.splitlines() if line.startswith("    python"))
    monkeypatch.setattr(sys, "argv", [word.strip("[]") for word in making[1:] if not word.endswith("=]")])
    monkeypatch.syspath_prepend(project / SCRIPT.parent)
    runpy.run_path(str(project / SCRIPT), run_name="__main__")
    assert json.loads(capsys.readouterr().out)["method"] == "mnrl"
    quick = ["trainer=cpu", "trainer.precision=fp32", "logger=csv", "stages.distilled.steps=2"]
    done = run_command(*using[2:], *quick, f"output_root={tmp_path / 'out'}").sound()
    alone = evaluate(Retriever(tmp_path / "st", precision="fp32"), data, ["NDCG@10"])
    assert metrics_of(done.folder)["sentence-transformers"]["NDCG@10"] == pytest.approx(alone["NDCG@10"], abs=1e-6)
