"""Cells of the benchmark: which there are, what they cost, and how they are run and kept."""
