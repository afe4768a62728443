"""What a run or a sweep leaves for people: tables, figures, pages, curves."""
