"""What tests of stages and of whole recipes have in common: a small BEIR folder, finished runs over it, passages."""

from pathlib import Path

import pytest
from single_stage import inputs, run_stage
from small_runs import Done, run_command, some_text, write_beir


@pytest.fixture(scope="session")
def beir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 made-up articles of three paragraphs, 60 questions; not to be changed."""
    return write_beir(tmp_path_factory.mktemp("beir"), some_text())


@pytest.fixture(scope="session")
def on_beir(beir: Path) -> list[str]:
    """The overrides that let a recipe read it."""
    return ["data=beir", f"data.root={beir}", "data.splits.dev=dev"]


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, on_beir: list[str]) -> Done:
    """The recipe ``tiny``, run without interruption, one stage after the other."""
    return run_command("experiment=tiny", *on_beir, f"output_root={tmp_path_factory.mktemp('finished')}").sound()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of a corpus, its tokenizer and its passages, by the fields of the stages that read them."""
    folder = tmp_path_factory.mktemp("made")
    found = inputs(folder)
    run_stage("passages", folder / "passages", found, length=48, workers=1)
    return {**found, "passages": folder / "passages"}
