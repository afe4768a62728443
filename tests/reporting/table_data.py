"""A table as plain lists and dictionaries, for the tests that look at its lines."""

from dataclasses import asdict
from typing import Any

from condensery.reporting.table import Table


def data(table: Table) -> dict[str, Any]:
    """``{columns, notes, blocks: [{heading, published, rows: [{name, source, cells}]}]}``."""
    sources = table.sources or [""] * len(table.names)
    blocks = [
        {
            "heading": block.heading,
            "published": block.published,
            "rows": [
                {"name": table.names[i], "source": sources[i], "cells": [asdict(one) for one in table.cells[i]]}
                for i in places
            ],
        }
        for block, places in table.by_block()
    ]
    return {"columns": table.header, "notes": table.notes, "blocks": blocks}
