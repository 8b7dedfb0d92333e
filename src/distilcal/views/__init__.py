"""Views and terms: a method is ``Σ weight · loss(view)``.

A view is one way a batch goes through the student; a term is a loss, its weight and the view it looks at. The plain view is the
batch as it stands; the others are described by ``ViewSettings`` and made by ``build_view``. Any function
``(network, batch) -> View`` is a view too: give it to ``fit`` by name.
"""

from typing import Literal

from distilcal.views.batch import (
    VIEW_FIELDS,
    Batch,
    StepContext,
    View,
    ViewMaker,
    concatenate_views,
    plain,
    select_kept_rows,
)
from distilcal.views.mixing import Mixing, build_view
from distilcal.views.terms import Term, build_term

VIEWS: dict[str, ViewMaker] = {"plain": plain}
Kind = Literal["mixup", "manifold", "cutmix", "cutout"]
MIXED: tuple[Kind, ...] = ("mixup", "manifold", "cutmix", "cutout")  # can be named by a term without settings

__all__ = [
    "MIXED",
    "VIEWS",
    "VIEW_FIELDS",
    "Batch",
    "Mixing",
    "StepContext",
    "Term",
    "View",
    "ViewMaker",
    "build_term",
    "build_view",
    "concatenate_views",
    "plain",
    "select_kept_rows",
]
