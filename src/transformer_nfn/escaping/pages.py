"""Text that a browser shows and does not obey."""

from html import escape

from transformer_nfn.escaping.terminals import for_terminal


def for_page(text: str) -> str:
    r"""The text for a page of HTML, within or outside of tags.

    Example:
        >>> for_page("<script>\n\u202ea & 'b'")
        '&lt;script&gt;\\n\\u202ea &amp; &#x27;b&#x27;'
    """
    return escape(for_terminal(text), quote=True)
