"""Stages ``query_contexts`` and ``train_expander``: a generator learns to write contexts of a query (Mao et al. 2021, §3)."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from condensery.baselines.gar.config import QueryContextsConfig, TrainExpanderConfig
from condensery.stages.base import Context
from condensery.stages.queries.finetune_generator import initial_generator, train_generator
from condensery.system.files import write_json
from condensery.text.answers import AnswerMatcher
from condensery.text.collection import Collection
from condensery.text.table import TableWriter, TextTable
from condensery.text.words import terms
from condensery.tokens.grouping import sentences
from condensery.training.modules.generator import GeneratorBatches

ABOUT = "expander.json"  # the targets and lengths of a model
TARGETS = {"answer": "an answer", "sentence": "a sentence", "title": "a relevant passage with a title"}


def query_contexts(config: QueryContextsConfig, context: Context) -> dict[str, Any]:
    """Write two files with a row per pair: inputs.arrow (what the generator reads), contexts.arrow (what it is to write).

    Raises:
        UserError: no query has any of the targets.
    """
    collection, counts, folder = Collection(context.input("corpus")), Counter[str](), context.folder
    with (
        TableWriter(folder / "inputs.arrow", ("id", "text")) as inputs,
        TableWriter(folder / "contexts.arrow", ("text",)) as contexts,
    ):
        for identifier, query, target, text in _contexts(config, collection):
            inputs.add((identifier, asked(target, query)), len(query))
            contexts.add((text,), len(text))
            counts[target] += 1
    who, wanted = f"no {config.split} query of the collection {collection.name} has", config.targets or TARGETS
    lacking = [what for target, what in TARGETS.items() if target in wanted and not counts[target]]
    if not counts.total():
        raise context.error("targets", f"{who} {' or '.join(lacking)}")
    warnings = [f"{who} {what}, so this target is not generated" for what in lacking]
    there = {target: counts[target] for target in TARGETS if counts[target]}
    return {"pairs": counts.total(), "targets": there, **({"warnings": warnings} if warnings else {})}


def asked(target: str, query: str) -> str:
    """Return the input of the generator."""
    return f"{target}: {query}"


def _contexts(config: QueryContextsConfig, collection: Collection) -> Iterator[tuple[str, str, str, str]]:
    """Yield a query's id and text, a target, and the target's text, which is one non-empty line."""
    titles, texts = (collection.passages.column(name) for name in ("title", "text"))
    ids, queries = (collection.queries.column(name) for name in ("id", "text"))
    patterns = collection.description.get("answers") == "regex"
    for row, passages in collection.qrels(config.split).positives().items():
        answers = collection.answers[row] if collection.answers is not None else []
        named = list(filter(None, dict.fromkeys(titles.take(passages))))
        found = {"answer": answers[0] if answers and not patterns else "", "title": ", ".join(named[: config.titles])}
        found["sentence"] = best_sentence(queries[row], texts.take(passages), AnswerMatcher(answers, patterns))
        for target in config.targets or TARGETS:
            if text := " ".join(found[target].split()):
                yield ids[row], queries[row], target, text


def best_sentence(query: str, texts: Sequence[str], has_answer: AnswerMatcher) -> str:
    """Return the sentence that is most similar to the query. If some sentences have an answer, all others are ignored.

    The similarity of two texts is the F1 of their distinct terms, 2 |q ∩ s| / (|q| + |s|). Of several equally similar
    sentences, the first is returned.

    Args:
        query: the query.
        texts: the query's relevant passages.
        has_answer: decides whether a sentence has an answer.
    """

    def likeness(sentence: str) -> tuple[bool, float]:
        own, wanted = set(terms(sentence)), set(terms(query))
        return has_answer(sentence), 2 * len(wanted & own) / max(1, len(wanted) + len(own))

    return max((text[begin:end] for text in texts for begin, end in sentences(text)), key=likeness, default="")


def train_expander(config: TrainExpanderConfig, context: Context) -> dict[str, Any]:
    """Train the generator to write the text of each pair from the query; save a Hugging Face folder."""
    contexts, generator = context.artifact("contexts"), initial_generator(config, context)
    lengths = config.values_of("max_input_tokens", "max_tokens")
    batches = GeneratorBatches(
        np.arange(contexts.manifest["metrics"]["pairs"]).repeat(2).reshape(-1, 2),
        TextTable(contexts.path / "inputs.arrow"),
        TextTable(contexts.path / "contexts.arrow"),
        generator.tokenizer,
        prefix="",
        titles=False,
        **lengths,
        **config.values_of("batch_size", "budget", "seed"),
    )
    values = train_generator(generator, batches, config, context)
    targets = list(contexts.manifest["metrics"]["targets"])
    write_json(context.folder / ABOUT, {"targets": targets, **lengths})
    return {"targets": targets, **values}
