"""The stages of sentence tasks one by one, and what is said of bad input."""

import json
from pathlib import Path

import numpy as np
import pytest
from single_stage import inputs, run_stage
from small_runs import MODEL, metrics_of, run_command, some_text, write_articles, write_stsb
from test_bad_input import Break, line, one_line, record, without

from condensery.errors import UserError
from condensery.text.table import TextTable
from condensery.tokens.artifacts import Sentences

TEXT = some_text(documents=24, paragraphs=6)
KINDS = {
    "read_sts",
    "read_triplets",
    "section_triplets",
    "finetune_sentences",
    "evaluate_sentences",
}  # each is run here


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tokenizer, articles, the files of STS-b, and both artifacts."""
    folder = tmp_path_factory.mktemp("made")
    found = {
        **inputs(folder, TEXT),
        "articles": write_articles(folder / "articles", TEXT) / "documents.jsonl",
        "stsb": write_stsb(folder / "stsb", TEXT),
        "pairs": folder / "pairs",
        "triplets": folder / "triplets",
    }
    run_stage("read_sts", found["pairs"], found, root=str(found["stsb"]))
    shares = {"dev_share": 0.2, "test_share": 0.2}
    run_stage("section_triplets", found["triplets"], found, path=str(found["articles"]), per_article=9, **shares)
    return found


def _texts(folder: Path) -> list[str]:
    texts: list[str] = list(TextTable(folder / "sentences.arrow").column("text"))
    return texts


def test_pairs_and_scores_are_those_of_the_files(made: dict[str, Path]) -> None:
    found, texts = Sentences(made["pairs"]), _texts(made["pairs"])
    assert found.about == {"name": "STS-b", "task": "similarity"}
    assert len(texts) == len(set(texts)) == len(found.store)
    for split in ("train", "dev", "test"):
        lines = (made["stsb"] / f"{split}.csv").read_text().splitlines()[1:]
        rows = found.rows(split)
        assert rows.shape == (24, 2)
        written = [f'"{texts[first]}",""{texts[second]}""' for first, second in rows]
        assert [line.rpartition(",")[0].replace('""" ', '""').replace('"""', '""') for line in lines] == [
            one.replace('""" ', '""').replace('"""', '""') for one in written
        ]
        assert found.scores(split).tolist() == pytest.approx([n / 24 for n in range(24)], abs=1e-3)


def test_published_triplets_are_read_as_they_are(made: dict[str, Path], tmp_path: Path) -> None:
    for split, name in (("train", "train"), ("dev", "validation"), ("test", "test")):
        (tmp_path / f"{name}.csv").write_text(f'Sentence1,Sentence2,Sentence3\na {split},"b, too",c\n')
    run_stage("read_triplets", tmp_path / "made", made, root=str(tmp_path))
    found, texts = Sentences(tmp_path / "made"), _texts(tmp_path / "made")
    assert found.about == {"name": "sections", "task": "triplets"}
    triplets = {split: [texts[row] for row in found.rows(split)[0]] for split in ("train", "dev", "test")}
    assert triplets == {split: [f"a {split}", "b, too", "c"] for split in triplets}


def test_an_article_is_in_one_split_alone(made: dict[str, Path]) -> None:
    found, texts = Sentences(made["triplets"]), _texts(made["triplets"])
    assert found.about == {"name": "sections", "task": "triplets"}
    sections: dict[str, tuple[str, str]] = {}
    for one in map(json.loads, made["articles"].read_text().splitlines()):
        for heading, passage in zip(one["headings"], one["passages"], strict=True):
            sections.update({sentence.rstrip("."): (one["_id"], heading) for sentence in passage.split(". ")})
    articles = {}
    for split in ("train", "dev", "test"):
        rows = found.rows(split)
        assert rows.shape[1] == 3
        of = [[sections[texts[row].rstrip(".")] for row in triplet] for triplet in rows]
        assert all(anchor == positive for anchor, positive, _ in of)
        assert all(anchor[0] == negative[0] and anchor != negative for anchor, _, negative in of)
        articles[split] = {anchor[0] for anchor, _, _ in of}
    assert len(set.union(*articles.values())) == sum(map(len, articles.values())) == 24
    assert len(articles["train"]) > 10


def test_more_examples_than_there_are_is_an_error_in_one_line(made: dict[str, Path], tmp_path: Path) -> None:
    given = {"init": "backbone", "backbone": BACKBONE, "length": 32, "examples": 25}
    with pytest.raises(UserError, match=r"examples=25: there are only 24 training examples of STS-b; null means all"):
        run_stage("finetune_sentences", tmp_path, {**made, "sentences": made["pairs"]}, **given)


BACKBONE = {
    "name": None, "revision": None, "tokenizer": None, "vocab_size": 300, "family": "bert", "layers": 1, "hidden": 16,
    "heads": 1, "intermediate": 32, "max_positions": 64, "dropout": None, "initializer_range": 0.1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("task", "metric"), [("pairs", "Spearman"), pytest.param("triplets", "Accuracy", marks=pytest.mark.slow)]
)
def test_a_tuned_encoder_fits_its_training_set(task: str, metric: str, made: dict[str, Path], tmp_path: Path) -> None:
    from transformers import AutoModel

    read = {**made, "sentences": made[task]}
    steps = {"steps": 60, "epochs": None, "learning_rate": 1e-2, "length": 32, "checkpoint_every": 0}
    trained = {"init": "backbone", "backbone": BACKBONE, **steps, "examples": 20}
    assert run_stage("finetune_sentences", tmp_path / "tuned", read, **trained)["examples"] == 20
    start = {**trained, "learning_rate": 1e-12}
    run_stage("finetune_sentences", tmp_path / "start", read, **start)
    values = [
        run_stage("evaluate_sentences", tmp_path / name / "measured", {**read, "encoder": tmp_path / name}, encoder="x",
                  split="train")[metric]
        for name in ("start", "tuned")
    ]  # fmt: skip
    assert values[1] > values[0] + 0.1
    assert AutoModel.from_pretrained(tmp_path / "tuned").config.hidden_size == 16
    assert json.loads((tmp_path / "tuned" / "condensery.json").read_text())["query_length"] == 32
    found = np.load(tmp_path / "tuned" / "measured" / "evaluation.npz")
    if metric == "Accuracy":
        assert float(found["Accuracy"].mean()) == values[1]


BROKEN: dict[str, tuple[str, Break, str]] = {
    "a file of STS-b is missing": ("stsb", without("dev.csv"), "dev.csv: no such file"),
    "two columns": ("stsb", line("dev.csv", 4, "a,b"), "dev.csv:4: 2 columns"),
    "the original STS-b": ("stsb", line("test.csv", 0, "g\tf\ty\t1\t5.0\ta\tb\n"), "original sts-*.csv is tab-separated"),
    "a score above 5": ("stsb", line("train.csv", 2, "a,b,6"), "train.csv:2: the score must be a number from 0 to 5"),
    "no headings": (
        "wiki",
        line("documents.jsonl", 3, record(_id="x", passages=["a"])),
        'documents.jsonl:3: the field "headings"',
    ),
    "too few headings": (
        "wiki",
        line("documents.jsonl", 3, record(_id="x", passages=["a", "b"], headings=[""])),
        'documents.jsonl:3: "headings" must hold a string for each of the 2 passages',
    ),
    "no article with two sections": (
        "wiki",
        line("documents.jsonl", 0, record(_id="x", title="t", passages=["a b c d e f."], headings=["a"])),
        "stages.sentences: the split train has no example",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_named_in_one_line(name: str, tmp_path: Path) -> None:
    kind, change, wanted = BROKEN[name]
    root = write_articles(tmp_path / "data", TEXT)
    if kind == "stsb":
        write_stsb(tmp_path / "data", TEXT)
    stage = {
        "stsb": f"stages.sentences={{stage: read_sts, root: {root}}}",
        "wiki": f"stages.sentences={{stage: section_triplets, path: {root}/documents.jsonl}}",
    }[kind]
    change(root)
    given = ["data=documents", f"data.root={write_articles(tmp_path / 'corpus', TEXT)}", "logger=csv", *MODEL]
    stages = ["stages.corpus={stage: corpus}", "stages.tokenizer={stage: tokenizer}", stage]
    one_line(run_command(*given, *stages, f"output_root={tmp_path / 'out'}"), wanted)


@pytest.mark.slow
def test_the_other_split_is_measured_with_the_same_encoders(made: dict[str, Path], tmp_path: Path) -> None:
    kinds = ("mlm", "condenser", "cocondenser")
    few = [f"stage.pretrain_{kind}.{key}" for kind in kinds for key in ("steps=2", "token_budget=null")]
    given = ["data=documents", f"data.root={made['articles'].parent}", f"stage.read_sts.root={made['stsb']}", *few]
    arguments = ["experiment=ablation/stsb", *given, f"output_root={tmp_path}", "logger=csv", *MODEL]
    test = run_command(*arguments).sound()
    assert list(metrics_of(test.folder)) == ["random init", "warm start", "MLM", "Condenser", "coCondenser"]
    assert all(list(values) == ["Spearman"] for values in metrics_of(test.folder).values())
    dev = run_command(*arguments, "table.split=dev").sound()
    rows = ("random", "warm", "mlm", "condenser", "cocondenser")
    assert sorted(dev.computed) == sorted(f"{name}_measured" for name in rows)
    assert "STS-b, dev" in (dev.folder / "table.md").read_text()
    assert "STS-b, test" in (test.folder / "table.md").read_text()
