"""The endpoints of a run: what its recipe fixed beforehand to decide whether the main model is worth its trouble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distilcal.config.schema import EndpointSettings
from distilcal.endpoints import Endpoint, compare_endpoints, scale_by_dev
from distilcal.errors import InputError
from distilcal.predictions import Predictions


def evaluate_endpoints(
    folders: Sequence[Path], main: str, splits: Sequence[str], settings: EndpointSettings
) -> tuple[Endpoint, ...]:
    """Compare the main model with its control, from the predictions in the folders of one or several runs.

    Parameters
    ----------
    folders : sequence of Path
        Folders of runs of the same recipe, that differ in their seeds.
    main : str
        The stage of the main model.
    splits : sequence of str
        Names of the splits to take the means over: test and the other domains.
    settings : EndpointSettings
        The control and the metrics.

    Returns
    -------
    tuple of Endpoint
        One for each metric.

    Raises
    ------
    InputError
        If a model was not evaluated on one of the splits.
    """
    runs = []
    for folder in folders:
        runs.append((_read(folder, main, splits, settings), _read(folder, settings.against, splits, settings)))
    return tuple(compare_endpoints(runs, settings.metrics))


def endpoints_to_json(settings: EndpointSettings, splits: Sequence[str], endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Return endpoints as ``metrics.json`` has them.

    Parameters
    ----------
    settings : EndpointSettings
        The control and the metrics.
    splits : sequence of str
        What the means are over.
    endpoints : sequence of Endpoint
        What was measured.

    Returns
    -------
    dict
    """
    return {
        "against": settings.against,
        "state": settings.state,
        "splits": list(splits),
        "results": [endpoint.to_dict() for endpoint in endpoints],
    }


def _read(folder: Path, stage: str, splits: Sequence[str], settings: EndpointSettings) -> Mapping[str, Predictions]:
    predictions = {}
    for split in ("dev", *splits):
        path = folder / stage / "predictions" / f"{split}.npz"
        if not path.exists():
            raise InputError(
                f"endpoints: {stage} has no predictions on {split}", source=str(folder), remedy="choose another control"
            )
        predictions[split] = Predictions.load(path)
    if settings.state == "calibrated":
        return scale_by_dev(predictions)
    return {split: predictions[split] for split in splits}
