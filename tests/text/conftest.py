"""Small inputs of every format, written where a test can break them."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

from condensery.text.config import DataConfig

Make = Callable[..., Any]
Write = Callable[[dict[str, str | bytes]], Path]


class Raw(bytes):
    """Bytes that ``write`` writes as they are, whatever the file is called."""


@pytest.fixture
def config(project: Path) -> Make:
    """``config("beir", root=...)``: the shipped ``conf/data/beir.yaml`` with some keys replaced."""

    def make(choice: str, **changes: Any) -> Any:
        values: dict[str, Any] = {}
        content = yaml.safe_load((project / "conf" / "data" / f"{choice}.yaml").read_text())
        for base in content.pop("defaults", []):
            if base != "_self_":
                values |= yaml.safe_load((project / "conf" / "data" / f"{base}.yaml").read_text())
        changes = {key: str(value) if isinstance(value, Path) else value for key, value in changes.items()}
        return TypeAdapter(DataConfig).validate_python(values | content | changes)

    return make


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """``write({"corpus.jsonl": "..."})``: a folder with these files (gzip where the name ends so)."""

    def make(files: dict[str, str | bytes]) -> Path:
        root = tmp_path / "input"
        for name, content in files.items():
            raw = content.encode() if isinstance(content, str) else content
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            packed = name.endswith(".gz") and not isinstance(raw, Raw)
            (root / name).write_bytes(gzip.compress(raw, mtime=0) if packed else raw)
        return root

    return make


def lines(*objects: dict[str, Any]) -> str:
    """JSON lines."""
    return "".join(json.dumps(one) + "\n" for one in objects)


@pytest.fixture
def beir_files() -> dict[str, str | bytes]:
    """A sound BEIR folder: three passages, two queries, train and test."""
    return {
        "corpus.jsonl": lines(
            {"_id": "a", "title": "Cats", "text": "Cats sleep most of the day."},
            {"_id": "b", "title": "", "text": "Dogs bark."},
            {"_id": "c", "title": "Fish", "text": "Fish swim in the sea."},
        ),
        "queries.jsonl": lines({"_id": "q1", "text": "what do cats do"}, {"_id": "q2", "text": "who barks"}),
        "qrels/train.tsv": "query-id\tcorpus-id\tscore\nq1\ta\t1\n",
        "qrels/test.tsv": "query-id\tcorpus-id\tscore\nq2\tb\t2\nq2\tc\t0\n",
    }


@pytest.fixture
def marco_files() -> dict[str, str | bytes]:
    """A sound set of native MS MARCO files."""
    return {
        "collection.tsv": '0\tThe "Manhattan" project.\n1\tRain falls.\n2\tSnow is white.\n',
        "queries.train.tsv": "10\twhat falls\n11\tnever judged\n",
        "qrels.train.tsv": "10\t0\t1\t1\n",
        "queries.dev.small.tsv": "20\twhat is white\n",
        "qrels.dev.small.tsv": "20 0 2 1\n",
    }
