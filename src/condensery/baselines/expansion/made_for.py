"""The check that queries were made for the passages that are searched."""

from condensery.stages.base import Context


def check_made_for(context: Context) -> None:
    """Raise ``UserError`` unless the queries were made for the stage's passages."""
    queries, passages = context.artifact("queries"), context.artifact("passages")
    if queries.input("passages").id != passages.id:
        made = f"{queries.reference} was made for other passages than {passages.reference}"
        raise context.error("queries", f"{made}; set passages to the stage that its queries were made for")
