"""The setup of all tests: one thread, no network, no W&B, and the collections in ../shared if this folder exists."""

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CONDENSERY_PROGRESS", "off")
os.environ.setdefault("WANDB_MODE", "disabled")
os.environ.pop("CONDENSERY_HOME", None)  # the variable would change the folder of the outputs
os.environ["IR_DATASETS_HOME"] = tempfile.mkdtemp(prefix="ir_datasets-")  # the library reads it when it is imported

PROJECT = Path(__file__).resolve().parent.parent
LONG = ("test_recipes.py", "stages", "test_docs.py", "training", "library", "pipeline", "baselines")  # parts of paths

if sys.dont_write_bytecode:  # otherwise each process compiles the libraries: half of the time of importing Lightning
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(PROJECT / ".pytest_cache" / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False  # into a separate folder, not beside the sources

hypothesis.settings.register_profile(
    "any machine", deadline=None
)  # a busy machine takes longer than 200 ms for an example
hypothesis.settings.load_profile("any machine")

gc.disable()  # while the libraries are imported: imports leave no garbage, and collecting it takes a quarter of the time


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run files with whole recipes and trainings first. A long file at the end would keep all but one process waiting."""
    items.sort(key=lambda item: min((at for at, name in enumerate(LONG) if name in item.path.parts), default=len(LONG)))


def pytest_collection_finish() -> None:
    """Collect garbage again, but never the objects of the libraries, and less often than after every 700 new objects."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # composing a config then takes four fifths of the time
    gc.enable()


def pytest_unconfigure() -> None:
    """Remove the folder of ir_datasets. It is created before the folder of the session, so pytest does not remove it."""
    shutil.rmtree(os.environ["IR_DATASETS_HOME"], ignore_errors=True)


@pytest.fixture(scope="session")
def project() -> Path:
    """The root of the checkout."""
    return PROJECT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference numbers and real collections beside the project. Without this folder, the test is skipped."""
    folder = Path(os.environ.get("CONDENSERY_SHARED", PROJECT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip("the folder ../shared is not here")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Put caches and temporary files into folders of this session, which pytest removes."""
    base = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("CONDENSERY_CACHE", str(base / "cache"))
        shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
        monkeypatch.setenv("TEST_COMPOSITIONS", str(shared / "compositions"))
        (shared / "compositions").mkdir(exist_ok=True)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("tmp", numbered=False)))
        yield
