"""Places: where in the results of a study a value is taken from."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from distilcal.config.base import Settings


class PlaceSettings(Settings):
    """Where in the results a value is taken from; a row and a column of a table together define it."""

    name: str = Field(default="", description="Heading of the row or column.")
    method: str = Field(default="", description="Method.")
    task: str = Field(default="", description="Task.")
    set: str = Field(default="", description="One of the task's sets; empty: test.")
    metric: str = Field(default="", description="Metric.")
    scaled: bool | None = Field(default=None, description="Scaled by a temperature or not; unset: as the method is.")
    against: str = Field(default="", description="Method that this one is compared with.")


def merge_places(*parts: PlaceSettings) -> PlaceSettings:
    """Return the settings of several places as one; a later place overrides the earlier ones.

    Parameters
    ----------
    *parts : PlaceSettings
        The places; fields that are empty override nothing.

    Returns
    -------
    PlaceSettings

    Examples
    --------
    >>> place = merge_places(PlaceSettings(task="MRPC", metric="ece"), PlaceSettings(metric="nll"))
    >>> place.task, place.metric
    ('MRPC', 'nll')
    """
    fields: dict[str, Any] = {}
    for part in parts:
        fields |= {key: value for key, value in vars(part).items() if value not in ("", None)}
    return PlaceSettings(**fields)
