"""Numbers to what a person looks at: the table of a run, its training curves, the passages found for a question."""
