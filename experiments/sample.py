"""Write a sample of a collection in the BEIR layout, for studies with many table rows on small machines.

    python experiments/sample.py DATA OUT [passages=3000] [test=500] [dev=200]

DATA is a folder in any layout that is read, or stages/corpus in the folder of a run. The sample in OUT has ``test`` and
``dev`` queries, and all passages that are relevant to them. Other passages are drawn at random up to ``passages``; each call
draws the same ones. A training query is in the sample if all its relevant passages are in it.
"""

import json
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))

from sentence_transformers_rows import collection_in
from sizes import given

from condensery.errors import UserError
from condensery.randomness import generator
from condensery.text.collection import Collection


def sampled(collection: Collection, target: Path, passages: int, test: int, dev: int) -> dict[str, int]:
    """Write the sample into ``target``. Return the numbers of its passages, and of the queries of each split."""
    splits = [name for name in ("test", "dev", "train") if name in collection.splits]
    asked: dict[str, dict[int, NDArray[np.int32]]] = {name: collection.qrels(name).positives() for name in splits}
    chosen: dict[str, list[int]] = {}
    for name, most in (("test", test), ("dev", dev)):
        judged = np.fromiter(asked.get(name, ()), np.int64)
        chosen[name] = generator("sample", name).permutation(judged)[:most].tolist()
    relevant = [asked[name][query] for name, queries in chosen.items() for query in queries]
    needed = np.unique(np.concatenate(relevant)).astype(np.int64)
    drawn = generator("sample", "passages").permutation(len(collection.passages))
    others = drawn[~np.isin(drawn, needed)][: max(0, passages - len(needed))]
    kept = np.sort(np.concatenate([needed, others]))
    chosen["train"] = [query for query, rows in asked.get("train", {}).items() if np.isin(rows, kept).all()]
    (target / "qrels").mkdir(parents=True)
    columns = {name: collection.passages.column(name).take(kept) for name in ("id", "title", "text")}
    _write(
        target / "corpus.jsonl",
        [dict(zip(("_id", "title", "text"), row, strict=True)) for row in zip(*columns.values(), strict=True)],
    )
    queries = sorted({query for own in chosen.values() for query in own})
    ids, texts = (collection.queries.column(name).take(queries) for name in ("id", "text"))
    _write(target / "queries.jsonl", [{"_id": name, "text": text} for name, text in zip(ids, texts, strict=True)])
    names, passage_ids = dict(zip(queries, ids, strict=True)), dict(zip(kept.tolist(), columns["id"], strict=True))
    for name, own in chosen.items():
        lines = [f"{names[query]}\t{passage_ids[row]}\t1" for query in own for row in asked[name][query].tolist()]
        if lines:
            text = "\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n"
            (target / "qrels" / f"{name}.tsv").write_text(text, encoding="utf-8")
    return {"passages": len(kept), **{name: len(own) for name, own in chosen.items()}}


def _write(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    source, target = sys.argv.pop(1), Path(sys.argv.pop(1))
    sizes = given(__doc__, passages="3000", test="500", dev="200")
    try:
        if target.exists():
            raise UserError(f"{target}: it is there already; delete it, or give another folder")
        print(sampled(collection_in(source), target, **{name: int(size) for name, size in sizes.items()}))
    except (UserError, ValueError) as error:
        sys.exit(f"error: {error}")
