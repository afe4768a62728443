"""Stage ``question_pairs``: generated questions, such as PAQ's, become the judged queries of a collection."""

from typing import Any

from condensery.baselines.dpr_paq.config import QuestionPairsConfig
from condensery.errors import UserError
from condensery.stages.base import Context
from condensery.text.collection import Collection
from condensery.text.formats.dpr import add_passages, read_passages
from condensery.text.lines import at_least_one, field, read_objects
from condensery.text.records import Passage, Query
from condensery.text.writer import CollectionWriter
from condensery.tokens.artifacts import Passages, Queries


def question_pairs(config: QuestionPairsConfig, context: Context) -> dict[str, Any]:
    """Write the collection; return the counts for the manifest.

    Raises:
        UserError: a line of a file does not have PAQ's format, a passage is unknown, or no question is left.
    """
    files = {file.role: file.open_path() for file in config.input_files()}
    source = config.root or context.stage_name
    with CollectionWriter(
        context.folder, "paq" if files else "generated", source, dev_queries=config.dev_queries
    ) as writer:
        if files:
            _read_questions(config, files["questions"], writer)
            path = files["passages"]
            add_passages(at_least_one(read_passages(path), path, "holds no passages"), writer)
        else:
            _take_queries(config, context, writer)
    return dict(Collection(context.folder).description)


def _read_questions(config: QuestionPairsConfig, path: Any, writer: CollectionWriter) -> None:
    """Add the questions of PAQ's metadata, each with its answers and the passages that the answers were taken from."""
    number = 0
    for place, record in at_least_one(read_objects(path), path, "holds no questions"):
        if config.subset is not None and config.subset not in field(record, "subsets", place, list):
            continue
        if config.number is not None and number == config.number:
            break
        identifier, number = f"paq-{number}", number + 1
        spans = field(record, "answers", place, list)
        found = [span.get("passage_id") if isinstance(span, dict) else None for span in spans]
        if not spans or not all(isinstance(one, str | int) and not isinstance(one, bool) for one in found):
            raise UserError(
                f'{place}: each entry of "answers" needs a "passage_id"; take PAQ.metadata.jsonl, not PAQ.jsonl'
            )
        for passage in dict.fromkeys(map(str, found)):
            writer.add_judgement("train", identifier, passage, 1, place)
        texts = [field(record, "answer", place, str, ""), *(field(span, "text", place, str, "") for span in spans)]
        answers = tuple(dict.fromkeys(filter(None, texts)))
        writer.add_query(Query(identifier, field(record, "question", place, str).strip(), answers), place)
    if not number:
        raise UserError(f"{path}: no question is of the subset {config.subset!r}; PAQ has L1, L4 and NE")


def _take_queries(config: QuestionPairsConfig, context: Context, writer: CollectionWriter) -> None:
    """Add the passages for which queries were generated, and the queries."""
    artifact = context.artifact("queries")
    queries, table = Queries(artifact.path), Passages(artifact.input("passages").path).table
    columns = [table.column(name)[:] for name in ("id", "title", "text", "document")]
    number = 0
    for row, passage in enumerate(zip(*columns, strict=True)):
        for text in queries.texts(row):
            if config.number is None or number < config.number:
                writer.add_judgement("train", f"query-{number}", passage[0], 1)
                writer.add_query(Query(f"query-{number}", text))
                number += 1
        writer.add_passage(Passage(*passage))
    if not number:
        raise context.error("queries", f"{config.queries} has no queries")
