"""The rows of the tables of runs: the models that were evaluated on a split, with size and speed."""

from __future__ import annotations

from typing import Any

from distilcal.runs import RunSummary

STATES = {"given": "as trained", "calibrated": "calibrated"}


def domain(split: str) -> str:
    """Return whether a split is in or out of domain, in words.

    Parameters
    ----------
    split : str
        The name of a split.

    Returns
    -------
    str

    Examples
    --------
    >>> domain("test"), domain("tweets")
    ('in domain', 'out of domain')
    """
    return "in domain" if split == "test" else "out of domain"


def table_rows(summary: RunSummary, split: str) -> list[dict[str, Any]]:
    """Return the models that were evaluated on a split, with their metrics, size and speed.

    Parameters
    ----------
    summary : RunSummary
        One or several runs.
    split : str
        The split.

    Returns
    -------
    list of dict
        ``model`` (RunModel), ``given``, ``calibrated`` and ``accepted`` as in ``metrics.json``, ``size``, ``ms`` and
        ``ms_spread`` as text.
    """
    rows = []
    for model in summary.models:
        if split not in model.facts["sets"]:
            continue
        metrics = model.facts["sets"][split]
        parameters, milliseconds = model.facts["parameters"], model.facts["ms_per_example"]
        spread = model.facts.get("ms_spread")  # missing in runs of earlier versions
        row = {
            "model": model,
            "given": metrics["given"],
            "calibrated": metrics["calibrated"],
            "accepted": metrics.get("accepted"),
            "size": "–" if parameters is None else _parameter_count(parameters),
            "ms": "–" if milliseconds is None else f"{milliseconds:.2f}",
            "ms_spread": "" if not spread else f"{spread[0]:.2f}–{spread[1]:.2f}",
        }
        rows.append(row)
    return rows


def _parameter_count(count: int) -> str:
    return f"{count / 1e6:.1f} M" if count >= 1e6 else f"{count:,}"
