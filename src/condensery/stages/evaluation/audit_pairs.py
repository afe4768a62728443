"""Stage ``audit_pairs``: checks whether contexts of pre-training relate to their passages (Wu et al. 2023, appendix A)."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.evaluation.pair_audit.bm25_ranks import NOT_FOUND, index_passages, ranks, summary
from condensery.evaluation.pair_audit.pairs import Pair, Pairs
from condensery.evaluation.pair_audit.sheets import Item, items_of, read_sheets, write_sheets
from condensery.evaluation.pair_audit.votes import Votes, judged
from condensery.reporting.pair_audit import write_tables
from condensery.retrieval.indexes.bm25 import BM25Index
from condensery.stages.base import Context
from condensery.stages.evaluation.config import AuditPairsConfig
from condensery.system.files import atomic, write_json
from condensery.system.progress import progress
from condensery.text.table import TextTable


def audit_pairs(config: AuditPairsConfig, context: Context) -> dict[str, Any]:
    """Write the sheets sheet-1.csv ..., the key to the sheets (pairs.jsonl), and the results audit.json and audit.md.

    Returns:
        the share of pairs that annotators judged high, by kind; None if the sheets are not filled in yet.

    Raises:
        UserError: the passages give fewer pairs than requested, or a filled-in sheet has a fault.
    """
    passages = TextTable(context.input("passages") / "passages.arrow")
    queries = next((folder / "queries.jsonl" for folder in context.inputs("queries")), None)
    drawn = _draw(Pairs(passages, queries, config.seed), config, context.place("pairs"))
    items = items_of([pairs[: config.pairs] for pairs in drawn.values()], config.groups, config.seed)
    sheets = write_sheets(items, context.folder, config.annotators, config.groups)
    votes = read_sheets(config._filled(), items, config.annotators, config.groups) if config.sheets else None
    ranks = _ranks(passages, drawn, config, context) if config.proxy_pairs else {}
    kinds: dict[str, dict[str, Any]] = {}
    for kind in drawn:
        kinds[kind] = {}
        if votes is not None:
            kinds[kind]["judged"] = judged(votes[[item.pair.kind == kind for item in items]])
        if ranks:
            kinds[kind]["proxy"] = summary(ranks[kind])
    audit = {"kinds": kinds, "passages": len(passages), "sheets": [path.name for path in sheets]}
    _write_key(context.folder / "pairs.jsonl", items, votes, drawn, ranks)
    write_json(context.folder / "audit.json", audit)
    write_tables(audit, context.folder / "audit.md")
    return {kind: numbers["judged"]["share"] if votes is not None else None for kind, numbers in kinds.items()}


def _draw(pairs: Pairs, config: AuditPairsConfig, key: str) -> dict[str, list[Pair]]:
    for kind in pairs.kinds:
        available = pairs.available(kind)
        if available < config.pairs:
            raise UserError(
                f"{key}: {config.pairs:,} {kind} pairs are wanted, but the passages make only {available:,};"
                f" set {key}={available} or less"
            )
    return {kind: pairs.draw(kind, max(config.pairs, config.proxy_pairs)) for kind in pairs.kinds}


def _ranks(
    passages: Any, drawn: Mapping[str, list[Pair]], config: AuditPairsConfig, context: Context
) -> dict[str, NDArray[Any]]:

    scratch = context.folder / ".bm25.tmp"  # the store removes folders of this name after an interruption
    try:
        index_passages(passages, scratch, config.k1, config.b, config.stopwords, config.stemmer)
        index = BM25Index(scratch, threads=context.runtime.threads)
        sample = {kind: pairs[: config.proxy_pairs] for kind, pairs in drawn.items()}
        with progress(context.stage_name, sum(map(len, sample.values())), "pairs") as task:
            return {kind: ranks(pairs, index, config.context_words, task) for kind, pairs in sample.items()}
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _write_key(
    path: Path,
    items: Sequence[Item],
    votes: Votes | None,
    drawn: Mapping[str, list[Pair]],
    ranks: Mapping[str, NDArray[Any]],
) -> None:
    """Write one line per pair on the sheets: its number, its texts, the number of votes for high, and BM25's rank or null."""
    rank_of = {
        pair: int(rank)
        for kind, kind_ranks in ranks.items()
        for pair, rank in zip(drawn[kind], kind_ranks, strict=False)
    }
    with atomic(path) as temporary, open(temporary, "w", encoding="utf-8", errors="replace") as stream:
        for at, item in enumerate(items):
            pair = item.pair
            rank = rank_of.get(pair, NOT_FOUND)
            record = {
                "number": item.number,
                "group": item.group + 1,
                "kind": pair.kind,
                "passage": pair.id,
                "context": pair.context_id or None,
                "passage_text": pair.text,
                "context_text": pair.context,
                "high_votes": None if votes is None else int(votes[at].sum()),
                "bm25_rank": None if rank == NOT_FOUND else rank,
            }
            stream.write(json.dumps(record, ensure_ascii=False) + "\n")
