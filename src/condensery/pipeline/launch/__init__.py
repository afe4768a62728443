"""How processes are started, and what each computes with."""
