"""The reports of a run or a sweep: tables, figures, pages and curves."""
