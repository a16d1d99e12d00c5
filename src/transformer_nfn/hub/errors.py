"""Errors of `hub`: what was expected, what came, and what to do."""


class HubError(ValueError):
    """A source, a manifest or a folder of results that cannot be used as asked."""
