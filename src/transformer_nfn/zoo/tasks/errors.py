"""Errors of the tasks: what was expected, what came, and what to do."""


class DataError(ValueError):
    """Data that is missing, damaged, or not what a task needs."""
