"""Batches: from a command line to runs, here or on a cluster, each in a process of its own."""
