"""Text that matplotlib draws as it is."""

from transformer_nfn.escaping.terminals import for_terminal


def for_picture(text: str) -> str:
    r"""One line in which dollar signs are drawn; matplotlib reads formulas between them.

    Only where `text.usetex` is off: TeX reads more than that.

    Example:
        >>> for_picture("$x$\n")
        '\\$x\\$\\n'
    """
    return for_terminal(text).replace("$", r"\$")
