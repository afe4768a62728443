"""Starts processes, and determines the hardware and the threads of each."""
