"""``backbone.name=[A,B]``: several retrievers in one run of ``adapt``; the better one goes on, and words end it."""

import re
from pathlib import Path
from shutil import copytree

import pytest
from error_lines import names
from released import released
from small_runs import Done, metrics_of, run_command, some_text, write_beir, write_text_files

from condensery.pipeline.several_checkpoints import short_names
from condensery.system.files import read_json
from condensery.tokens.tokenizer import train_wordpiece

TEXT = some_text(documents=30, seed=5)
QUICK = [
    "trainer=cpu",
    "trainer.precision=fp32",
    "logger=csv",
    "stages.distilled.steps=4",
    "stages.distilled.batch_size=16",
]
OWN = ["as it is: first/saved", "as it is: second/saved"]


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two small retrievers with tokenizers of their own, in folders of one name."""
    folder = tmp_path_factory.mktemp("starts")
    words = [words for _, _, words, _ in TEXT.passages]
    made = []
    for name, size, pooling in (("first", 300, "mean"), ("second", 400, "cls")):
        tokenizer = folder / name / "tokenizer"
        train_wordpiece(words, size, tokenizer)
        made.append(released(folder / name, tokenizer, pooling=pooling, length=38))
    return made


@pytest.fixture(scope="module")
def chosen(starts: list[Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, list[str]]:
    """A run of both on judged text, and its command without their names."""
    folder = tmp_path_factory.mktemp("adapt")
    data = write_beir(folder / "beir", TEXT)
    command = ["experiment=adapt", "data=beir", f"data.root={data}", f"output_root={folder / 'out'}", *QUICK]
    return run_command(*command, f"backbone.name=[{starts[0]}/,{starts[1]}]").sound(), command


def test_each_has_its_row_and_the_better_one_on_dev_goes_on(chosen: tuple[Done, list[str]]) -> None:
    done, _ = chosen
    assert list(metrics_of(done.folder)) == ["BM25", *OWN, "adapted", "BM25 + as it is", "BM25 + adapted"]
    assert done.computed.count("corpus") == done.computed.count("bm25") == 1
    assert {"tokens.1", "tokens.2", "validated.1", "validated.2"} <= set(done.computed)
    found = {link.name: link for link in (done.folder / "stages").iterdir()}
    other = next(name for name in found if name.startswith("validated."))[-1]
    goes_on = ("second", "first")[int(other) - 1]
    values = {name: read_json(found[name] / "validation.json") for name in ("validated", f"validated.{other}")}
    assert values["validated"]["MRR@10"] >= values[f"validated.{other}"]["MRR@10"]
    assert values["validated"]["by"] == "dev queries and queries of passages that are held out"
    assert f"{goes_on}/saved is used.\n" in done.out


def test_its_artifacts_are_those_of_a_run_of_it_alone(chosen: tuple[Done, list[str]], starts: list[Path]) -> None:
    done, command = chosen
    goes_on = starts["second/saved goes on" in done.out]
    alone = run_command(*command, f"backbone.name={goes_on}").sound()
    assert alone.computed == []
    rows, both = metrics_of(alone.folder), metrics_of(done.folder)
    assert rows["as it is"] == both[f"as it is: {goes_on.parent.name}/saved"]
    assert all(rows[name] == both[name] for name in rows if name != "as it is")
    assert "validated" not in {link.name for link in (alone.folder / "stages").iterdir()}


def test_the_run_ends_in_words_and_the_row_that_they_name_answers(
    chosen: tuple[Done, list[str]], starts: list[Path]
) -> None:
    done, command = chosen
    results = read_json(done.folder / "results.json")
    ((use, text),) = [(row["row"], row["recommended"]) for row in results if "recommended" in row]
    said = " ".join(done.out.split())
    assert re.search(rf"Use {re.escape(use)}(: [^;]*;|:) NDCG@10 \d", text), text
    assert " ".join(text.split()) in said
    assert "is used. adapted " in said, "the choice stands before what training gave"
    assert (
        " cannot choose a row: this row is the one that is recommended without judgements."
        in (done.folder / "index.html").read_text()
    )
    asked = run_command(*command, f"backbone.name=[{starts[0]},{starts[1]}]", f"ask={TEXT.questions[0][1]}").sound()
    assert asked.computed == []
    assert "is complete" in asked.out
    assert f"found by {use}\n" in asked.out


@pytest.mark.slow
def test_a_stage_is_forced_for_every_checkpoint_and_once(chosen: tuple[Done, list[str]], starts: list[Path]) -> None:
    done, command = chosen
    both = f"backbone.name=[{starts[0]},{starts[1]}]"
    for wanted, computed in (
        ("as_it_is,bm25", ["bm25", "as_it_is.1", "as_it_is.2"]),
        ("as_it_is.2", ["as_it_is.1", "as_it_is.2"]),  # as the line about a damaged artifact says it
        ("distilled", ["distilled"]),
    ):
        again = run_command(*command, both, f"force=[{wanted}]").sound()
        assert sorted(again.computed) == sorted(computed), wanted
        assert metrics_of(again.folder) == metrics_of(done.folder)
    wrong = run_command(*command, both, "force=[as_it_is.3]")
    names(wrong.err, "force", "no stage is named 'as_it_is.3'")


@pytest.mark.slow
def test_a_sweep_over_both_names_one_row_of_its_joined_table(
    chosen: tuple[Done, list[str]], starts: list[Path]
) -> None:
    _, command = chosen
    swept = run_command("-m", *command, f"backbone.name={starts[0]},{starts[1]}").sound()
    results = read_json(Path(swept.folder) / "results.json")
    assert len([row for row in results if "recommended" in row]) == 1
    assert swept.out.count("Use ") == 1, "the words are left to the sweep"


def test_the_run_says_first_how_long_it_will_take(chosen: tuple[Done, list[str]]) -> None:
    first = chosen[0].out.splitlines()[0]
    assert " stages are to be made, in about " in first
    assert chosen[0].out.count("are to be made") == 1


@pytest.mark.slow
def test_without_judgements_the_text_chooses_and_the_end_says_so(starts: list[Path], tmp_path: Path) -> None:
    text = write_text_files(tmp_path / "text", TEXT)
    given = [f"data.root={text}", f"backbone.name=[{starts[0]},{starts[1]}]", f"output_root={tmp_path / 'out'}", *QUICK]
    done = run_command("experiment=adapt", *given, "estimate=false", "ask=what").sound()
    said = " ".join(done.out.split())
    assert "queries of passages that are held out: first/saved " in said
    assert "so no row is measured. Weights are chosen by a proxy" in said
    (use,) = re.findall(r"Use (BM25|BM25 \+ as it is|BM25 \+ adapted): ", said)
    assert f"found by {use}\n" in done.out
    assert "so no row is measured" in (done.folder / "index.html").read_text()


def test_a_dry_run_shows_the_first_as_long_as_none_is_chosen(starts: list[Path], tmp_path: Path) -> None:
    data = write_beir(tmp_path / "beir", TEXT)
    given = ["experiment=adapt", "data=beir", f"data.root={data}", f"output_root={tmp_path / 'out'}", "dry_run=plan"]
    done = run_command(*given, f"backbone.name=[{starts[0]},{starts[1]}]").sound()
    assert "first/saved or second/saved is chosen during the run; the plan assumes the first" in done.out
    assert "as_it_is.evaluation.2" in done.out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("[{first},{first}/]", ["backbone.name", "the same checkpoint", "name each once"]),
        ("[{first},{first}/nowhere]", ["first/saved/nowhere", "no such folder"]),
        ("[]", ["backbone.name", "must be a list of folders and hub names"]),
        ("[{first},3]", ["backbone.name", "must be a list of folders and hub names"]),
    ],
    ids=["twice", "nowhere", "none", "a number"],
)
def test_a_list_that_is_wrong_is_one_line(wrong: str, said: list[str], starts: list[Path], tmp_path: Path) -> None:
    data = write_beir(tmp_path / "beir", TEXT)
    given = ["experiment=adapt", "data=beir", f"data.root={data}", f"output_root={tmp_path / 'out'}"]
    done = run_command(*given, f"backbone.name={wrong.format(first=starts[0])}")
    assert done.code == 1
    names(done.err, *said)
    assert not (tmp_path / "out").exists()


def test_one_that_cannot_be_loaded_is_one_line_and_no_run_is_left(starts: list[Path], tmp_path: Path) -> None:
    data, broken = write_beir(tmp_path / "beir", TEXT), copytree(starts[1], tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"nothing")
    given = ["experiment=adapt", "data=beir", f"data.root={data}", f"output_root={tmp_path / 'out'}", "estimate=false"]
    done = run_command(*given, *QUICK, f"backbone.name=[{starts[0]},{broken}]")
    assert done.code == 1
    names(done.err, str(broken))
    assert not (tmp_path / "out" / "runs").exists()


def test_a_recipe_of_one_checkpoint_says_how_several_are_run(starts: list[Path], tmp_path: Path) -> None:
    given = ["experiment=cocondenser_local", f"data.root={write_text_files(tmp_path / 'text', TEXT)}"]
    done = run_command(*given, f"output_root={tmp_path / 'out'}", "backbone.name=[a,b]")
    assert done.code == 1
    names(done.err, "backbone.name", "this recipe takes one checkpoint", "backbone.name=a,b -m")


def test_a_list_of_one_is_that_one(starts: list[Path], tmp_path: Path) -> None:
    data = write_beir(tmp_path / "beir", TEXT)
    given = ["experiment=adapt", "data=beir", f"data.root={data}", f"output_root={tmp_path / 'out'}", "dry_run=plan"]
    done = run_command(*given, f"backbone.name=[{starts[0]}]").sound()
    assert "as_it_is.2" not in done.out
    assert "validated" not in done.out


def test_names_are_as_short_as_tells_them_apart() -> None:
    assert short_names(["org/one", "/a/two/"]) == ["one", "two"]
    assert short_names(["org/one", "/a/one"]) == ["org/one", "a/one"]
    assert short_names(["/a/b/one", "/c/b/one", "two"]) == ["a/b/one", "c/b/one", "two"]
    assert short_names([".", "one"]) == [".", "one"]
