"""Numbers in sentences: shares that somebody chose, and counts with their plural."""

from __future__ import annotations


def in_percent(share: float) -> str:
    """Format a share that somebody chose as a percentage, with as many digits as it has.

    Parameters
    ----------
    share : float
        In [0, 1].

    Returns
    -------
    str

    Examples
    --------
    >>> in_percent(0.95), in_percent(0.999)
    ('95%', '99.9%')
    """
    return f"{share * 100:.10g}%"


def counted(count: int, of: str = "row") -> str:
    """Format a number of things, with the plural where it is due.

    Parameters
    ----------
    count : int
        How many.
    of : str
        The noun in the singular.

    Returns
    -------
    str

    Examples
    --------
    >>> counted(1), counted(2000, "example")
    ('1 row', '2,000 examples')
    """
    return f"{count:,} {of}{'' if count == 1 else 's'}"
