"""Split the judged queries of a BEIR folder: a sixth of them, by the hash of their ids, becomes the test split.

    python experiments/msmarco_sample/split.py DIR QRELS OUT

DIR holds corpus.jsonl and queries.jsonl (or .gz) and qrels/QRELS.tsv; OUT gets the two, qrels/train.tsv and qrels/test.tsv.
"""

import hashlib
import shutil
import sys
from pathlib import Path


def split(source: Path, judged: str, target: Path) -> dict[str, int]:
    """The numbers of queries in train and test. Raises ``FileNotFoundError`` where a file of ``source`` is missing."""
    header, *lines = (source / "qrels" / f"{judged}.tsv").read_text(encoding="utf-8").splitlines()
    (target / "qrels").mkdir(parents=True, exist_ok=True)
    for stem in ("corpus.jsonl", "queries.jsonl"):
        found = next((path for path in (source / stem, source / f"{stem}.gz") if path.exists()), source / stem)
        shutil.copyfile(found, target / found.name)
    queries: dict[str, set[str]] = {"train": set(), "test": set()}
    kept: dict[str, list[str]] = {name: [header] for name in queries}
    for line in lines:
        query = line.partition("\t")[0]
        name = "train" if hashlib.blake2b(query.encode()).digest()[0] % 6 else "test"
        queries[name].add(query)
        kept[name].append(line)
    for name, rows in kept.items():
        (target / "qrels" / f"{name}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return {name: len(those) for name, those in queries.items()}


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    try:
        print(split(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))
    except OSError as error:
        sys.exit(f"error: {error.filename}: {error.strerror}")
