"""Splits of the hub that are no plain tables of texts and labels, turned into columns.

Each function takes a ``datasets.Dataset`` and returns its columns by name. To add one, write a function and name it as the
``convert`` of an entry in ``catalogue``.
"""

from __future__ import annotations

import re
from typing import Any

from distilcal.data.text_benchmarks import ekman_label

BRACKETED = re.compile(r"\[.*?\]")


def goemotions_columns(loaded: Any) -> dict[str, list[Any]]:
    """Return text, label and id of GoEmotions: its several fine labels become one of Ekman's.

    Parameters
    ----------
    loaded : datasets.Dataset
        With the columns text, labels (lists of class indices) and id.

    Returns
    -------
    dict of str to list
    """
    fine = loaded.features["labels"].feature.names
    ids = list(loaded["id"])
    labels = [ekman_label(id_, [fine[i] for i in row]) for id_, row in zip(ids, loaded["labels"], strict=True)]
    return {"text": list(loaded["text"]), "label": labels, "id": ids}


def hellaswag_columns(loaded: Any) -> dict[str, list[Any]]:
    """Return prompt, endings and label of HellaSwag: "activity: context", without bracketed marks.

    Parameters
    ----------
    loaded : datasets.Dataset
        With the columns activity_label, ctx_a, ctx_b, endings and label, a digit as text.

    Returns
    -------
    dict of str to list
    """
    parts = zip(loaded["activity_label"], loaded["ctx_a"], loaded["ctx_b"], strict=True)
    prompts = [
        f"{activity}: {_without_marks(f'{first} {second[:1].upper()}{second[1:]}')}" for activity, first, second in parts
    ]
    endings = [[_without_marks(ending) for ending in row] for row in loaded["endings"]]
    return {"prompt": prompts, "endings": endings, "label": list(loaded["label"])}


def _without_marks(text: str) -> str:
    return " ".join(BRACKETED.sub("", text).split())
