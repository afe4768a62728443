"""General utilities: files, users' input files, caches, memory, processes, signals and progress."""
