"""What a study found, as it lies in ``results.json`` of its folder."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from distilcal.errors import InputError
from distilcal.io.atomic import read_object
from distilcal.report.formatting import one_line

RESULTS, PAGE = "results.json", "study.html"
FORMAT = 2
LONGEST = 2000  # characters of any text that comes from outside


def read_results(folder: Path) -> dict[str, Any]:
    """Read the results of a study, with its text in single lines and None for NaN.

    Parameters
    ----------
    folder : Path
        The folder of a study.

    Raises
    ------
    InputError
        If there is no ``results.json``, or one of another format.
    """
    path = folder / RESULTS
    if not path.exists():
        raise InputError("this is not the folder of a study", source=str(folder), remedy="give one made by distilcal study")
    results = read_object(path, ("name", "title", "scale", "tables", "claims", "figures", "failures"), newest=FORMAT)
    if results["format"] == 1:
        results = {**results, "claims": [_upgraded_claim(claim) for claim in results["claims"]]}
    cleaned: dict[str, Any] = _single_lines(results)
    return cleaned


def _upgraded_claim(claim: Mapping[str, Any]) -> dict[str, Any]:
    """A claim of format 1, which had neither controls nor δ nor premises."""
    parts = [{**part, "control": False, "unmet": []} for part in claim["parts"]]
    counts = dict(Counter(part["verdict"] for part in parts))
    return {"controls": [], "delta": None, "premises": [], "equal": 0, "counts": counts, **claim, "parts": parts}


def named_files(things: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield tables or charts, each with a unique file name that stays inside its folder.

    Parameters
    ----------
    things : sequence of dict
        Tables or charts of ``results.json``; their ``name`` may hold any characters.

    Yields
    ------
    tuple of (str, dict)
        A file name without extension, unique regardless of case, and the table or chart.

    Examples
    --------
    >>> [name for name, _ in named_files([{"name": "a b"}, {"name": "A/b"}])]
    ['a-b', 'A-b-2']
    """
    taken: set[str] = set()
    for thing in things:
        safe = re.sub(r"[^A-Za-z0-9._-]+", "-", thing["name"])[:80].strip(".-") or "unnamed"
        name, copies = safe, 1
        while name.lower() in taken:
            copies += 1
            name = f"{safe}-{copies}"
        taken.add(name.lower())
        yield name, thing


def _single_lines(value: Any) -> Any:
    """Text in single lines without signs that steer a terminal; NaN as None."""
    match value:
        case str():
            return one_line(value, LONGEST)
        case float() if math.isnan(value):
            return None
        case dict():
            return {one_line(str(key), LONGEST): _single_lines(inner) for key, inner in value.items()}
        case list():
            return [_single_lines(inner) for inner in value]
    return value
