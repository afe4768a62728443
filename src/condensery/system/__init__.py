"""What any program needs: files, inputs that users give, caches, memory, processes and signals, progress."""
