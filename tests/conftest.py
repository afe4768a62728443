"""What all tests share: one thread, no network, no W&B, and the collections beside the project where they are."""

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CONDENSERY_PROGRESS", "off")
os.environ.setdefault("WANDB_MODE", "disabled")
os.environ.pop("CONDENSERY_HOME", None)  # it would move the outputs
os.environ["IR_DATASETS_HOME"] = tempfile.mkdtemp(prefix="ir_datasets-")  # it asks once, when it is imported

PROJECT = Path(__file__).resolve().parent.parent
LONG = ("test_recipes.py", "stages", "test_docs.py", "training", "library", "pipeline", "baselines")  # parts of paths

if sys.dont_write_bytecode:  # each process would compile the libraries anew: half of the time of importing Lightning
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(PROJECT / ".pytest_cache" / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False  # in a folder of its own, and beside the sources as little as before

gc.disable()  # until the libraries are imported: they leave no garbage, and looking for it takes a quarter of that time


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put whole recipes and trainings first: a process that has no file left waits for those that have a long one."""
    items.sort(key=lambda item: min((at for at, name in enumerate(LONG) if name in item.path.parts), default=len(LONG)))


def pytest_collection_finish() -> None:
    """Look for garbage again, but no more among what the libraries have made, and not with every 700th object."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # a command composes its config in four fifths of the time
    gc.enable()


def pytest_unconfigure() -> None:
    """Remove the folder of ir_datasets, which is made before there is one of this session."""
    shutil.rmtree(os.environ["IR_DATASETS_HOME"], ignore_errors=True)


@pytest.fixture(scope="session")
def project() -> Path:
    """The root of the checkout."""
    return PROJECT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference numbers and real collections beside the project; the test is skipped where it is absent."""
    folder = Path(os.environ.get("CONDENSERY_SHARED", PROJECT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip("the folder ../shared is not here")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what is cached, and temporary files, in folders of this session, which pytest removes."""
    base = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("CONDENSERY_CACHE", str(base / "cache"))
        shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
        monkeypatch.setenv("TEST_COMPOSITIONS", str(shared / "compositions"))
        (shared / "compositions").mkdir(exist_ok=True)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("tmp", numbered=False)))
        yield
