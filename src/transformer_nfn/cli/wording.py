"""Counts, times and figures as commands write them: one way for all."""


def counted(number: int, thing: str, things: str | None = None) -> str:
    """A number of things.

    Example:
        >>> counted(1, "file"), counted(1200, "file"), counted(2, "copy", "copies")
        ('1 file', '1,200 files', '2 copies')
    """
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


def duration(seconds: float) -> str:
    """Seconds, in the unit that a person would use.

    Example:
        >>> duration(0.4), duration(119), duration(600), duration(8000)
        ('0.4 s', '119 s', '10 min', '2.2 h')
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def short_number(number: float) -> str:
    """A figure that nobody needs in full.

    Example:
        >>> short_number(9.999999974752427e-07), short_number(211144.0), short_number(1.23456)
        ('1e-06', '211,144', '1.235')
    """
    text = f"{number:.4g}"
    return f"{number:,.0f}" if abs(number) >= 1e4 and abs(number) < 1e9 else text
