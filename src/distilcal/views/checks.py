"""Whether a view can be made of data and a model, before anything is trained."""

from __future__ import annotations

from distilcal.config.schema import ModelSettings, ViewSettings
from distilcal.data import Dataset, Images
from distilcal.errors import InputError


def check_view(settings: ViewSettings, data: Dataset, model: ModelSettings, path: str) -> None:
    """Refuse what this data and model cannot be mixed by."""
    pictures = isinstance(data.inputs, Images)
    kind = type(data.inputs).__name__.lower()
    if settings.kind in ("cutmix", "cutout") and not pictures:
        raise InputError(
            f"{path}: {settings.kind} cuts images, the data hold {kind}", remedy="use kind = 'mixup' or 'manifold'"
        )
    if model.frozen and settings.kind == "mixup":
        raise InputError(
            f"{path}: a frozen encoder's inputs cannot be mixed, its features are cached",
            remedy="use kind = 'manifold', with layers = [0] for the features as the encoder gives them",
        )
    if model.frozen and any(layer > len(model.hidden) for layer in settings.layers):
        raise InputError(f"{path}: the head has {len(model.hidden)} hidden layers", remedy="give numbers up to that")
    members = int(settings.fraction * len(data) + 1e-9)
    if settings.pairs == "regions" and members < 2:
        raise InputError(
            f"{path}: a region of fraction {settings.fraction:g} has {members} of {len(data)} examples, too few to pair",
            remedy="raise fraction, or train on more examples",
        )
    if settings.teacher == "mixed" and settings.kind == "manifold":
        raise InputError(
            f"{path}: a teacher cannot see what is mixed inside the student", remedy="use kind = 'mixup', or teacher = 'clean'"
        )
    if settings.variant == "author_code" and (settings.pairs not in ("similar", "dissimilar") or settings.candidates == "all"):
        raise InputError(
            f"{path}: variant = 'author_code' is of pairs by saliency in a batch",
            remedy="add pairs = 'similar' or 'dissimilar' and candidates = 'batch'",
        )
