"""Text that a terminal shows and does not obey."""


def for_terminal(text: str) -> str:
    r"""The text with every character that is not printed written as an escape sequence.

    These are control characters (ESC and those from 0x80 on among them), ends of lines and of
    paragraphs, marks that turn the direction of writing, other invisible ones, and bytes of a file
    name that are no UTF-8. What is left is one line, and doing it twice changes nothing.

    Example:
        >>> for_terminal("a\x1b[2J\n\u202eb ü [red]")
        'a\\x1b[2J\\n\\u202eb ü [red]'
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
