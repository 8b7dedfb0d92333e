"""Which training examples the terms of a stage can use: all of them, or the labelled ones."""

from __future__ import annotations

from distilcal.config.schema import StageSettings
from distilcal.data import Dataset
from distilcal.data.splits import Splits
from distilcal.losses import LOSSES, needs_labels


def uses_unlabelled(stage: StageSettings) -> bool:
    """Return whether a stage learns from examples without a label: if one of its terms can, unless its settings say no.

    Parameters
    ----------
    stage : StageSettings
        The stage.

    Returns
    -------
    bool

    Examples
    --------
    >>> from distilcal.config.schema import ModelSettings, TermSettings
    >>> uses_unlabelled(StageSettings(model=ModelSettings(name="mlp"), terms=[TermSettings(loss="cross_entropy")]))
    False
    """
    if stage.unlabelled is False:
        return False
    return any(not needs_labels(LOSSES[term.loss]) for term in stage.terms if term.loss in LOSSES)


def stage_data(stage: StageSettings, splits: Splits) -> Dataset:
    """Return the training data of a stage: without the unlabelled examples if none of its terms can use them.

    Parameters
    ----------
    stage : StageSettings
        The stage.
    splits : Splits
        The data.

    Returns
    -------
    Dataset
        Labelled rows first.
    """
    return splits.train if uses_unlabelled(stage) else splits.labelled
