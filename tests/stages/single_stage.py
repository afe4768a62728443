"""Stages run by themselves, on a few passages."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from small_runs import Text, some_text
from stage_defaults import defaults_of

from condensery.stages.base import Artifact, Context, Runtime, Wandb, references
from condensery.stages.registry import registry
from condensery.text.collection import Collection
from condensery.text.records import Passage, Query
from condensery.text.writer import CollectionWriter
from condensery.tokens.tokenizer import train_wordpiece

TEXT = some_text(documents=8)
VECTORS = ("revision", "pooling", "normalise", "truncate_dim", "query_prefix", "passage_prefix")
GENERAL = {"seed": 1, "sentence_language": "en", "precision": "fp32", "callbacks": {}, **dict.fromkeys(VECTORS)}


def inputs(folder: Path, text: Text = TEXT) -> dict[str, Path]:
    """A collection and a tokenizer, as the stages before would have written them."""
    with CollectionWriter(folder / "corpus", "small") as writer:
        for query, _, passage in text.questions:
            writer.add_judgement("train", query, passage, 1)
        for name, title, words, document in text.passages:
            writer.add_passage(Passage(name, title, words, document))
        for query, words, _ in text.questions:
            writer.add_query(Query(query, words))
    train_wordpiece(Collection(folder / "corpus").passages.column("text"), 300, folder / "tokenizer")
    return {"corpus": folder / "corpus", "tokenizer": folder / "tokenizer"}


def run_stage(
    kind: str, folder: Path, made: Mapping[str, Path], /, data_workers: int = 0, **changes: Any
) -> dict[str, Any]:
    """Run one stage into ``folder`` with its defaults, ``made`` giving the folders that it reads; its metrics."""
    stage = registry()[kind]
    given = {
        key: GENERAL.get(key, value) if str(value).startswith("${") else value
        for key, value in defaults_of(kind).items()
    }
    config = stage.config.model_validate({**given, **changes})
    read: dict[str, tuple[Artifact, ...]] = dict.fromkeys(references(stage.config), ())
    read |= {name: (Artifact(path),) for name, path in made.items()}
    runtime = Runtime("cpu", 1, 1, data_workers, Wandb(project="x", entity=None, enabled=False), "x", folder.parent)
    folder.mkdir(parents=True, exist_ok=True)
    return dict(stage.function(config, Context(kind, folder, runtime, read)) or {})
