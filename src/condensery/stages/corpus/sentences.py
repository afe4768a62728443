"""Writes the artifact with the examples of a sentence task: pairs with a score, or triplets."""

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np

from condensery.errors import UserError
from condensery.stages.base import Context
from condensery.system.files import write_json
from condensery.text.table import TableWriter, TextTable
from condensery.tokens.artifacts import unknown_words
from condensery.tokens.store import tokenise
from condensery.tokens.tokenizer import load_tokenizer
from condensery.tokens.vocabulary import Vocabulary

Task = Literal["similarity", "triplets"]
Example = tuple[str, tuple[str, ...], float]  # split, its sentences, its score (0 for triplets)


def write_sentences(examples: Iterable[Example], context: Context, name: str, task: Task) -> dict[str, Any]:
    """Write the artifact.

    Args:
        examples: in any order of splits.
        context: of the stage.
        name: name of the task's collection.
        task: the kind of examples.

    Returns:
        the number of sentences, the number of examples of each split, and warnings.

    Raises:
        UserError: a split has no example.
    """
    folder, tokenizer = context.folder, context.input("tokenizer")
    known: dict[str, int] = {}
    rows: dict[str, list[list[int]]] = {"train": [], "dev": [], "test": []}
    scores: dict[str, list[float]] = {split: [] for split in rows}
    with TableWriter(folder / "sentences.arrow", ("text",)) as table:
        for split, texts, score in examples:
            for text in texts:
                if text not in known:
                    known[text] = table.count
                    table.add((text,), len(text))
            rows[split].append([known[text] for text in texts])
            scores[split].append(score)
    for split, split_rows in rows.items():
        if not split_rows:
            raise UserError(f"stages.{context.stage_name}: the split {split} has no example")
        np.save(folder / f"rows-{split}.npy", np.array(split_rows, np.int64))
        np.save(folder / f"scores-{split}.npy", np.array(scores[split], np.float32))
    vocabulary = Vocabulary.of(load_tokenizer(tokenizer))
    vocabulary.save(folder)
    column = TextTable(folder / "sentences.arrow").column("text")
    store = tokenise(column, tokenizer, folder / "texts", sentences=False, label=f"{context.stage_name}: tokens")
    write_json(folder / "sentences.json", {"name": name, "task": task})
    counts = {"sentences": len(known), **{split: len(split_rows) for split, split_rows in rows.items()}}
    return {**counts, **unknown_words({"sentences": store}, vocabulary.unk)}
