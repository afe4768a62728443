"""Split the judged queries of a folder of judgements: a sixth of them becomes the test split.

    python experiments/split.py DIR QRELS OUT            by the hash of the query's id
    python experiments/split.py DIR QRELS OUT corpus     by the hash of the judged text's id: no test text is judged in train

DIR holds corpus.jsonl or documents.jsonl, queries.jsonl (plain or .gz) and qrels/QRELS.tsv. OUT gets both files of text, and
qrels/train.tsv and qrels/test.tsv.
"""

import hashlib
import shutil
import sys
from pathlib import Path

TEXTS = ("corpus.jsonl", "corpus.jsonl.gz", "documents.jsonl", "documents.jsonl.gz")
QUERIES = ("queries.jsonl", "queries.jsonl.gz")
COLUMNS = {"query": 0, "corpus": 1}


def split(source: Path, judged: str, target: Path, by: str = "query") -> dict[str, int]:
    """Write the split; return its numbers of queries. Raises ``FileNotFoundError`` if a file of ``source`` is missing."""
    header, *lines = (source / "qrels" / f"{judged}.tsv").read_text(encoding="utf-8").splitlines()
    (target / "qrels").mkdir(parents=True, exist_ok=True)
    for names in (TEXTS, QUERIES):
        found = next((source / name for name in names if (source / name).exists()), source / names[0])
        shutil.copyfile(found, target / found.name)
    queries: dict[str, set[str]] = {"train": set(), "test": set()}
    kept: dict[str, list[str]] = {name: [header] for name in queries}
    for line in lines:
        cells = line.split("\t")
        name = "train" if hashlib.blake2b(cells[COLUMNS[by]].encode()).digest()[0] % 6 else "test"
        queries[name].add(cells[0])
        kept[name].append(line)
    for name, rows in kept.items():
        (target / "qrels" / f"{name}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return {name: len(those) for name, those in queries.items()}


if __name__ == "__main__":
    by = sys.argv[4] if len(sys.argv) == 5 else "query"
    if len(sys.argv) not in (4, 5) or by not in COLUMNS:
        sys.exit(__doc__)
    try:
        print(split(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), by))
    except OSError as error:
        sys.exit(f"error: {error.filename}: {error.strerror}")
