"""The candidates: which students are worth trying in a situation, the most promising first.

A search that has time for a few only takes the first ones, so the order matters. It follows what the studies showed (see the
guide "What to use when"): most of the weight on the teacher at temperature 1, the learning rate next, then the size.

To add a candidate, append to the list in `build_candidates`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distilcal.config.schema import Recipe, StageSettings, TermSettings, ViewSettings
from distilcal.pipeline.distill import DistillSettings
from distilcal.pipeline.encoders import Configs, encoder_config, layer_count

FASTER, SLOWER = 2.0, 0.4  # factors of the learning rate: 1e-4 and 2e-5 around 5e-5
FEW_LABELS = 0.25  # share of labelled examples below which batches with more of them are tried


@dataclass(frozen=True)
class Situation:
    """What decides which candidates there are.

    Attributes
    ----------
    inputs : str
        Texts, choices, images or vectors.
    labelled, unlabelled : int
        Training examples of each kind.
    layers : int
        Layers of the teacher's encoder, if the search may choose how many the student keeps; else 0.
    graded : bool
        Whether the teacher has confidences; False for answers without any.
    """

    inputs: str
    labelled: int
    unlabelled: int = 0
    layers: int = 0
    graded: bool = True


@dataclass(frozen=True)
class Candidate:
    """A student to try.

    Attributes
    ----------
    name : str
        Short and unique: a stage of that name is trained.
    description : str
        In words, for people.
    stage : StageSettings
        Its settings; the search sets the number of epochs.
    """

    name: str
    description: str
    stage: StageSettings


def build_candidates(student: StageSettings, situation: Situation) -> list[Candidate]:
    """Return the candidates of a situation, the most promising first.

    Parameters
    ----------
    student : StageSettings
        The student as ``distill`` trains it; it is the first candidate, and the others are variants of it.
    situation : Situation
        What is known about data and teacher.

    Returns
    -------
    list of Candidate
        With different settings and names.

    Examples
    --------
    >>> from distilcal.config.schema import ModelSettings
    >>> terms = (TermSettings(weight=0.1), TermSettings(loss="kd", weight=0.9))
    >>> student = StageSettings(model=ModelSettings(name="mlp"), terms=terms, teacher="teacher")
    >>> [candidate.name for candidate in build_candidates(student, Situation("vectors", labelled=500))]
    ['kd', 'kd-fast', 'kd-only', 'kd-t2', 'kd-slow', 'kd-smooth', 'kd-t4']
    """
    candidates = [
        Candidate("kd", "as distill trains by default", student),
        Candidate("kd-fast", f"learning rate {student.train.lr * FASTER:g}", _with_rate(student, FASTER)),
    ]
    smaller = _every_third_layer(student, situation.layers)
    if smaller is not None:
        kept = f"{len(smaller.model.layers)} of {situation.layers} layers"
        candidates.append(Candidate("small-kd", kept, smaller))
    candidates.append(Candidate("kd-only", "the teacher's outputs alone, no labels", _with_terms(student, _kd(1.0))))
    if situation.inputs == "images":
        candidates.append(
            Candidate("kd-mixup", "labels on mixed images (mixup), the teacher on clean ones", _with_mixup(student))
        )
    if 0 < situation.labelled < FEW_LABELS * (situation.labelled + situation.unlabelled):
        half = student.replace(train=student.train.replace(labelled_share=0.5))
        candidates.append(Candidate("kd-half-labelled", "half of every batch labelled", half))
    if situation.graded:
        candidates.append(Candidate("kd-t2", "KD at temperature 2", _softened(student, 2.0)))
    candidates.append(Candidate("kd-slow", f"learning rate {student.train.lr * SLOWER:g}", _with_rate(student, SLOWER)))
    if smaller is not None:
        faster = _with_rate(smaller, FASTER)
        candidates.append(Candidate("small-kd-fast", f"{kept}, learning rate {faster.train.lr:g}", faster))
    smooth = _with_terms(student, TermSettings(weight=0.5, settings={"smoothing": 0.1}), _kd(0.5))
    candidates.append(Candidate("kd-smooth", "half labels, smoothed by 0.1, half teacher", smooth))
    if situation.graded:
        candidates.append(Candidate("kd-t4", "KD at temperature 4", _softened(student, 4.0)))
    return _distinct(candidates)


def choosable_layers(settings: DistillSettings, recipe: Recipe, changes: Sequence[str], configs: Configs) -> int:
    """Return the layers of the teacher's encoder, if how many of them the student keeps is left to us; else 0.

    Parameters
    ----------
    settings : DistillSettings
        What the user named: a student or its layers are not to be chosen.
    recipe : Recipe
        The recipe that was built from them.
    changes : sequence of str
        The changes that the user made to it.
    configs : mapping of str to mapping
        Configurations of models that are not on disk yet.

    Returns
    -------
    int
    """
    named = settings.student is not None or bool(settings.layers)
    if named or any(change.strip().startswith("stages.student.model") for change in changes):
        return 0
    source = recipe.stages["student"].model.name
    return layer_count(configs[source] if source in configs else encoder_config(source))


def control_of(student: StageSettings, alone: StageSettings) -> StageSettings:
    """Return the control of a student: the same network, batch and learning rate, trained without a teacher.

    Parameters
    ----------
    student : StageSettings
        A candidate.
    alone : StageSettings
        The stage without a teacher that the recipe has; its terms are used.

    Returns
    -------
    StageSettings
    """
    return alone.replace(model=student.model, train=student.train.replace(labelled_share=None))


def _kd(weight: float, **settings: Any) -> TermSettings:
    return TermSettings(loss="kd", weight=weight, settings={"temperature": 1.0, **settings})


def _with_terms(student: StageSettings, *terms: TermSettings) -> StageSettings:
    return student.replace(terms=terms)


def _with_rate(student: StageSettings, factor: float) -> StageSettings:
    lr = float(f"{student.train.lr * factor:.6g}")  # 1e-4, not 0.00010000000000000002
    return student.replace(train=student.train.replace(lr=lr))


def _softened(student: StageSettings, temperature: float) -> StageSettings:
    """The same terms, with KD at another temperature."""
    terms = []
    for term in student.terms:
        if term.loss == "kd":
            term = term.replace(settings={**term.settings, "temperature": temperature})
        terms.append(term)
    return student.replace(terms=tuple(terms))


def _with_mixup(student: StageSettings) -> StageSettings:
    terms = (TermSettings(weight=0.5, view="mixed"), _kd(0.5))
    return student.replace(terms=terms, views={"mixed": ViewSettings(kind="mixup")})


def _every_third_layer(student: StageSettings, layers: int) -> StageSettings | None:
    """The student with every third layer of the encoder; None if that is not smaller."""
    kept = tuple(range(0, layers, 3))
    if not kept or len(kept) >= len(student.model.layers):
        return None
    return student.replace(model=student.model.replace(layers=kept))


def _distinct(candidates: list[Candidate]) -> list[Candidate]:
    """Leave out candidates whose settings an earlier one has, such as KD alone where that is the default."""
    distinct: list[Candidate] = []
    for candidate in candidates:
        if candidate.stage not in [other.stage for other in distinct]:
            distinct.append(candidate)
    return distinct
