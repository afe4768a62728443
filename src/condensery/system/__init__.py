"""General tools of a program: files, inputs that users give, caches, memory, processes and signals, progress."""
