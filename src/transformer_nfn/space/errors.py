"""Errors of `space`: what was expected, what came, and what to do."""


class DeclarationError(ValueError):
    """A block declaration that does not make sense."""


class ShapeError(ValueError):
    """A tensor whose shape, name or place does not fit its declaration."""


class UnknownFunctionError(ValueError):
    """A setting of a part whose function is not known, so that it cannot be run."""
