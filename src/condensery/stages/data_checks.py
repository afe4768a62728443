"""Checks of finished data. They report data that a later stage will lack, before anything is trained.

``StageConfig.data_checks`` names the checks of a stage. A check takes the config and the artifact of the named input. Like
``StageConfig.input_error``, it returns the faulty field and the error message; None if there is no fault.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError, number_of
from condensery.evaluation.names import HIT, split_metric
from condensery.randomness import nested_subset
from condensery.retrieval.negatives import open_negatives
from condensery.retrieval.no_negatives import NoNegatives
from condensery.retrieval.relabelled import read_relabelled
from condensery.stages.base import Artifact
from condensery.stages.checks import NO_DEV
from condensery.text.collection import Collection
from condensery.tokens.spans import SPECIAL_TOKENS
from condensery.tokens.store import TokenStore
from condensery.training.dev_passages import parted_by_dev

Fault = tuple[str, str] | None
FEW = 100_000  # number of passages; in larger collections, the texts of passages are not compared


def judged(config: Any, corpus: Artifact) -> Fault:
    """Report a split without judgements, a query without relevant passages, and fewer queries than ``train_queries``."""
    collection = Collection(corpus.path)
    if config.split not in collection.splits:
        there = ", ".join(collection.splits) or "none"
        return "split", f"{config.split}, but the collection {collection.name} has judgements only for: {there}"
    qrels = collection.qrels(config.split)
    relevant = np.unique(qrels.query_rows[qrels.grades >= qrels.relevant_from])
    lacking = np.setdiff1d(qrels.query_set, relevant)
    if len(lacking) and (not len(relevant) or hasattr(config, "train_queries")):
        first, number = collection.queries.ids_at(lacking[:1])[0], number_of(len(lacking), "of its queries have")
        return "split", f"{config.split}: {number} no relevant passage, the first is {first!r}; judge one as relevant"
    wanted = getattr(config, "train_queries", None)
    if wanted is not None and wanted > len(relevant):
        there = number_of(len(relevant), "judged queries")
        return "train_queries", f"{wanted:,}, but the split {config.split} has {there}; null takes all"
    return None


def apart_from_dev(config: Any, corpus: Artifact) -> Fault:
    """Report that ``leave_out_dev_passages`` would leave out every training query."""
    collection = Collection(corpus.path)
    if not config.leave_out_dev_passages or parted_by_dev(_relevant(config, collection), collection)[1]:
        return None
    return "leave_out_dev_passages", "true, but each training query shares a relevant passage with dev; set false"


def measurable(config: Any, corpus: Artifact) -> Fault:
    """Report a split without queries, and metrics for which the split lacks judgements or answers."""
    collection, metrics = Collection(corpus.path), getattr(config, "metrics", [])
    if config.split not in collection.description["splits"]:
        there = ", ".join(collection.description["splits"]) or "none"
        return "split", f"{config.split}, but the collection {collection.name} has queries only for: {there}"
    by_answers = [name for name in metrics if split_metric(name)[0] == HIT]
    if by_answers and not _answered(collection, config.split):
        return "metrics", f"{by_answers[0]} needs answers; no query of the split {config.split} has one"
    others = [name for name in metrics if name not in by_answers]
    if config.split not in collection.splits and (others or getattr(config, "candidates", None)):
        needing = ("metrics", f"{others[0]} needs") if others else ("candidates", "a sample of candidates needs")
        return needing[0], f"{needing[1]} judgements; the split {config.split} has only answers"
    return None


def choosing(config: Any, corpus: Artifact) -> Fault:
    """Report that the split on which fusion weights are chosen lacks the judgements or answers that the metric needs."""
    collection = Collection(corpus.path)
    there = collection.description["splits"].get(config.split, {}).get("queries", 0)
    if not config.chooses or there < config.least_queries:
        return None
    by_answers = split_metric(config.metric)[0] == HIT
    measured = _answered(collection, config.split) if by_answers else config.split in collection.splits
    wanted = "answers" if by_answers else "judgements"
    return None if measured else ("metric", f"{config.metric} needs {wanted}; the split {config.split} has none")


def dev_queries(config: Any, corpus: Artifact) -> Fault:
    """Report ``by: dev`` if the collection has no dev queries."""
    if config.by != "dev" or "dev" in Collection(corpus.path).splits:
        return None
    return "by", NO_DEV


def answers(config: Any, corpus: Artifact) -> Fault:
    """Report ``without_answers`` if no query has answers."""
    if not config.without_answers or _answered(Collection(corpus.path), config.split):
        return None
    return "without_answers", f"true, but no query of the split {config.split} has an answer; set it to false"


def sheets(config: Any, corpus: Artifact) -> Fault:
    """Report filled-in sheets that do not fit the collection."""
    try:
        read_relabelled(config.filled(), Collection(corpus.path), config.split)
    except UserError as error:
        return "relabel", str(error)
    return None


def unjudged(config: Any, corpus: Artifact) -> Fault:
    """Report a collection in which every query is judged."""
    collection = Collection(corpus.path)
    if len(collection.unjudged()):
        return None
    return "corpus", f"every query of the collection {collection.name} is judged, so none is left to label; add queries"


def own_negatives(config: Any, corpus: Artifact) -> Fault:
    """Report that the collection's files give no negatives, and that the config names no other file."""
    collection = Collection(corpus.path)
    given = collection.given_negatives
    if config.file or (given is not None and np.isin(given[:, 0], collection.questions(config.split)).any()):
        return None
    return "file", f"the files of the collection {collection.name} have no negatives for {config.split}; name a file"


def enough_passages(config: Any, corpus: Artifact) -> Fault:
    """Report a collection with too few passages for the negatives of a query."""
    collection = Collection(corpus.path)
    passages, relevant = len(collection.passages), _relevant(config, collection)
    most = max(map(len, relevant.values()))
    if passages < FEW:
        most = max(most, int(NoNegatives.of(collection, relevant).numbers(np.fromiter(relevant, np.int64)).max()))
    if passages >= config.negatives_per_query + most:
        return None
    message = f"{config.negatives_per_query}, but up to {most:,} of {passages:,} passages cannot be negatives; lower it"
    return "negatives_per_query", message


def of_these_queries(config: Any, negatives: Artifact) -> Fault:
    """Report a source that has negatives for none of the training queries."""
    corpus = negatives.ancestor("corpus")
    if not config.negatives_per_query or config.labels or corpus is None:
        return None
    collection = Collection(corpus.path)
    if np.isin(open_negatives(negatives.path, collection).query_rows, _chosen(config, collection)).any():
        return None
    name = negatives.manifest["name"]
    return "negatives", f"{name} has no negatives for the {config.split} queries of this stage; name another"


def same_passages(config: Any, queries: Artifact) -> Fault:
    """Report queries that were made from other passages than the searched ones."""
    corpus, passages = queries.ancestor("corpus"), queries.input("passages").manifest["metrics"]["passages"]
    searched = corpus.manifest["metrics"]["passages"] if corpus else passages
    if passages == searched:
        return None
    message = f"{config.text_queries} was made for {passages:,} passages, but {searched:,} are searched;"
    return "text_queries", f"{message} set stage.passages.grouping=collection"


def examples(config: Any, sentences: Artifact) -> Fault:
    """Report that there are fewer training examples than the config asks for."""
    there = sentences.manifest["metrics"]["train"]
    if config.examples is None or config.examples <= there:
        return None
    return "examples", f"{config.examples:,}, but there are {there:,} training examples; null takes all"


def long_texts(config: Any, tokens: Artifact) -> Fault:
    """Report texts that are all too short for the measurement of attention."""
    store = _documents(tokens)
    lengths = store.document_lengths if config.texts == "documents" else store.lengths
    if (lengths >= config.min_length - 2).any():
        return None
    return "min_length", f"no text has {config.min_length} tokens; lower it"


def spans(config: Any, tokens: Artifact) -> Fault:
    """Report that all texts are too short for two spans, or that no two sentences fit ``length`` (inverse cloze task)."""
    if getattr(config, "queries", None):
        return None
    store = _documents(tokens, single_texts=getattr(config, "pairs_within", "") == "passage")
    if not (store.document_lengths >= 2 * config.min_length).any():
        what = "passage" if getattr(config, "pairs_within", "") == "passage" else "document"
        return "min_length", f"no {what} has {2 * config.min_length} tokens, so none gives two spans; lower it"
    if not hasattr(config, "keep_sentence"):
        return None
    sentences, starts = np.asarray(store.sentences), store.document_starts
    edges = np.unique(np.concatenate([sentences, starts]))  # (e,), first tokens of sentences and documents
    inner = np.flatnonzero(~np.isin(edges[1:-1], starts)) + 1  # edges between two sentences of one document
    if (edges[inner + 1] - edges[inner - 1] <= config.length - SPECIAL_TOKENS).any():
        return None
    return "length", f"{config.length}: no two successive sentences of a document fit; raise it, or add documents"


def _chosen(config: Any, collection: Collection) -> NDArray[np.integer]:
    """Return the rows of the judged training queries (q,), as ``judged_queries`` draws them."""
    queries = collection.qrels(config.split).query_set
    return queries[nested_subset(config.seed, len(queries), config.train_queries)]


def _relevant(config: Any, collection: Collection) -> dict[int, NDArray[np.integer]]:
    """Return the relevant passages of the queries of ``_chosen``, by query row."""
    positives = collection.qrels(config.split).positives()
    return {row: positives[row] for row in _chosen(config, collection).tolist()}


def _answered(collection: Collection, split: str) -> bool:
    known = collection.answers
    return known is not None and any(known.take(collection.questions(split)))


def _documents(tokens: Artifact, single_texts: bool = False) -> TokenStore:
    folder = tokens.path / "documents"
    return TokenStore(folder if folder.is_dir() else tokens.path / "passages", single_texts=single_texts)
