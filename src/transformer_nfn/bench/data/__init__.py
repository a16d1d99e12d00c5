"""The examples of a benchmark, and how they are divided."""
