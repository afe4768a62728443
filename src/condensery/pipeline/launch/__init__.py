"""Starts processes, and tells the hardware and the threads that each computes with."""
