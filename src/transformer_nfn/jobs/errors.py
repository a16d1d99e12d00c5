"""Errors of `jobs`: what was expected, what came, and what to do."""


class JobError(ValueError):
    """A folder, a name or an executor that cannot be used as asked."""


class DamagedError(JobError):
    """A file of a folder is not what was written there."""
