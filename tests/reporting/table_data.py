"""A table as plain lists and dictionaries, upright, for the tests that look at its lines."""

from dataclasses import asdict
from typing import Any

from condensery.reporting.table import Table


def data(table: Table) -> dict[str, Any]:
    """``{columns, notes, blocks: [{heading, published, rows: [{name, source, cells}]}]}``."""
    upright = table.turn() if table.turned else table
    sources = upright.sources or [""] * len(upright.names)
    blocks = [
        {
            "heading": block.heading,
            "published": block.published,
            "rows": [
                {"name": upright.names[i], "source": sources[i], "cells": [asdict(one) for one in upright.cells[i]]}
                for i in places
            ],
        }
        for block, places in upright.by_block()
    ]
    return {"columns": upright.header, "notes": table.notes, "blocks": blocks}
