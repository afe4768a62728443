"""The check that queries were made for the passages that are searched."""

from condensery.errors import UserError
from condensery.stages.base import Context


def check_made_for(context: Context) -> None:
    """Raise ``UserError`` unless the queries were made for the stage's passages."""
    queries, passages = context.artifact("queries"), context.artifact("passages")
    if queries.input("passages").id != passages.id:
        raise UserError(
            f"stages.{context.stage_name}.queries: {queries.kind}/{queries.id} was made for other passages than"
            f" {passages.kind}/{passages.id}; set passages to the stage that its queries were made for"
        )
