"""Stage ``audit_negatives``: lists suspected false negatives of a mining stage, for a person to judge."""

from typing import Any

from condensery.reporting.suspects import COLUMNS, sheet_lines, shown
from condensery.retrieval.indexes.opening import open_index
from condensery.retrieval.negatives import open_negatives, open_relabelled
from condensery.retrieval.positive_aware import LEFT_OUT
from condensery.retrieval.suspects import Suspects, are_negatives, were_left_out
from condensery.stages.base import Artifact, Context
from condensery.stages.negatives.config import AuditNegativesConfig
from condensery.system.files import write_json
from condensery.text.collection import Collection
from condensery.text.sheets import write_sheet


def audit_negatives(config: AuditNegativesConfig, context: Context) -> dict[str, Any]:
    """Write sheet.csv, which a person fills in, and suspects.json, which the run's page shows."""
    collection = Collection(context.input("corpus"))
    suspects, left_out = _suspects(config, context, collection)
    lines = sheet_lines(suspects, collection, config.rows)
    write_sheet(context.folder / "sheet.csv", COLUMNS, lines)
    write_json(context.folder / "suspects.json", shown(suspects, collection, left_out))
    counts = {"suspects": len(suspects.queries), "on_the_sheet": len(lines)}
    found = f"{counts['suspects']:,} passages may be relevant to a query for which nobody judged them"
    context.say(f"{found}; sheet.csv lists the {counts['on_the_sheet']:,} most suspicious")
    return counts


def _suspects(config: AuditNegativesConfig, context: Context, collection: Collection) -> tuple[Suspects, bool]:
    """Return the suspects, and whether mining excluded them from the negatives."""
    mined, folder, runtime = context.artifact("negatives"), context.input("negatives"), context.runtime
    if config.scorer is None and (folder / f"{LEFT_OUT}.npy").exists():
        return were_left_out(folder, config.depth), True
    index = mined.input("retriever").path if config.scorer is None else context.input("scorer")
    scorer = open_index(index, collection, runtime.threads, device=runtime.search_device)
    relabelled = open_relabelled(folder, collection)
    qrels = collection.qrels(_split(mined))
    positives, judged = relabelled.added_to(qrels.positives()), relabelled.all_no(qrels)
    return are_negatives(open_negatives(folder, collection), scorer, positives, judged, config.depth), False


def _split(negatives: Artifact) -> str:
    """Return the split of the queries; denoised negatives have the split of the negatives before denoising."""
    while "split" not in negatives.manifest["config"]:
        negatives = negatives.input("negatives")
    return str(negatives.manifest["config"]["split"])
