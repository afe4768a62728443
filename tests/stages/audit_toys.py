"""Stands for the stages that cut documents into passages and predict their queries."""

import json
import random
from typing import Annotated, Any

from condensery.stages.base import Context, Input, StageConfig
from condensery.stages.registry import stage
from condensery.text.table import TableWriter, TextTable


class Passages(StageConfig):
    sizes: list[int]


@stage("toy_passages", version=1, makes="passages")
def passages(config: Passages, context: Context) -> dict[str, Any]:
    """Documents of so many passages, each document about words of its own."""
    draw = random.Random(0)
    with TableWriter(context.folder / "passages.arrow", ("id", "document", "title", "text")) as writer:
        for document, size in enumerate(config.sizes):
            topic = [f"word{document}x{i}" for i in range(12)] + ["common", "words", "everywhere"]
            for passage in range(size):
                text = " ".join(draw.choices(topic, k=10))
                writer.add((f"{document}#{passage}", f"d{document}", f"title {document}", text), len(text))
    return {}


class Queries(StageConfig):
    passages: Annotated[str, Input("passages")]


@stage("toy_queries", version=1, makes="queries")
def queries(config: Queries, context: Context) -> dict[str, Any]:
    """Two queries for two of three passages: two words of it, and one word and one that is nowhere."""
    table = TextTable(context.input("passages") / "passages.arrow")
    with open(context.folder / "queries.jsonl", "w") as stream:
        for row, (name, text) in enumerate(zip(table.ids, table.column("text"), strict=True)):
            words = text.split()
            made = [" ".join(words[:2]), f"{words[-1]} nowhere"] if row % 3 else []
            stream.write(json.dumps({"id": name, "queries": made}) + "\n")
    return {}
