"""What a run stores about its cascade: promises that are chosen on dev and checked on every other split."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from distilcal.arguments import checked
from distilcal.errors import InputError
from distilcal.predictions import Predictions, join
from distilcal.selective.cascades import Cascade, cascade
from distilcal.selective.formatting import in_percent
from distilcal.selective.promises import (
    CascadeThreshold,
    Promise,
    PromiseCheck,
    check_promise,
    in_points,
    loss_threshold,
    output_threshold,
)
from distilcal.selective.thresholds import Threshold, threshold

MAX_LOSS = 0.005  # half a percentage point of accuracy


@dataclass(frozen=True)
class CascadeSplit:
    """A cascade on one split.

    Attributes
    ----------
    cascade : Cascade
        The student with its teacher.
    alone : Cascade or None
        The student that was trained alone with the same teacher, to compare; None if there is none.
    checks : mapping of str to PromiseCheck
        What became of every promise (``"accepted"``, ``"output"``, ``"loss"``); empty on dev, where they were chosen.
    """

    cascade: Cascade
    alone: Cascade | None
    checks: Mapping[Promise, PromiseCheck]


@dataclass(frozen=True)
class CascadeEvaluation:
    """The result of ``evaluate_cascade``.

    Attributes
    ----------
    student, teacher : str
        Names of the two models.
    alone : str or None
        Name of the student that was trained alone.
    accepted : Threshold
        The promise about the rows that the student keeps.
    output, loss : CascadeThreshold
        The promises about the whole output and about the loss to the teacher.
    splits : mapping of str to CascadeSplit
        Every split by name, dev first.
    sentence : str
        What to do, for somebody who reads one sentence only.
    """

    student: str
    teacher: str
    alone: str | None
    accepted: Threshold
    output: CascadeThreshold
    loss: CascadeThreshold
    splits: Mapping[str, CascadeSplit]
    sentence: str

    @property
    def costs(self) -> tuple[float, float] | None:
        """Cost of the student and of the teacher per row; None where they are not known."""
        return next(iter(self.splits.values())).cascade.costs

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON can hold it."""
        splits = {
            name: {
                "cascade": split.cascade.to_dict(),
                "alone": None if split.alone is None else split.alone.to_dict(),
                "checks": {promise: check.to_dict() for promise, check in split.checks.items()},
            }
            for name, split in self.splits.items()
        }
        return {
            "sentence": self.sentence,
            "student": self.student,
            "teacher": self.teacher,
            "alone": self.alone,
            "costs": None if self.costs is None else list(self.costs),
            "promises": {
                "accepted": {name: None if value != value else value for name, value in self.accepted.to_dict().items()},
                "output": self.output.to_dict(),
                "loss": self.loss.to_dict(),
            },
            "splits": splits,
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> CascadeEvaluation:
        """Return what :meth:`to_dict` stored."""
        splits = {
            name: CascadeSplit(
                cascade=Cascade.from_dict(split["cascade"]),
                alone=None if split["alone"] is None else Cascade.from_dict(split["alone"]),
                checks={promise: PromiseCheck.from_dict(check) for promise, check in split["checks"].items()},
            )
            for name, split in stored["splits"].items()
        }
        return cls(
            student=stored["student"],
            teacher=stored["teacher"],
            alone=stored["alone"],
            accepted=Threshold.from_dict(stored["promises"]["accepted"]),
            output=CascadeThreshold.from_dict(stored["promises"]["output"]),
            loss=CascadeThreshold.from_dict(stored["promises"]["loss"]),
            splits=splits,
            sentence=stored["sentence"],
        )


@checked
def evaluate_cascade(
    student: Mapping[str, Predictions],
    teacher: Mapping[str, Predictions],
    alone: Mapping[str, Predictions] | None = None,
    *,
    names: tuple[str, str, str | None] = ("student", "teacher", "alone"),
    accuracy: float = 0.95,
    max_loss: float = MAX_LOSS,
    confidence: float = 0.95,
    costs: tuple[float, float] | None = None,
    unit: str = "",
    points: int | None = 101,
) -> CascadeEvaluation:
    """Choose the thresholds of a cascade on dev, and check every promise on the other splits.

    Parameters
    ----------
    student, teacher : mapping of str to Predictions
        Calibrated predictions by the name of the split, both with ``"dev"``; splits that only one of them has are left out.
        No row of dev should be calibrated by a fit to its own label: see ``distilcal.calibrate.cross_fitted``.
    alone : mapping of str to Predictions, optional
        The same for the student that was trained without the teacher.
    names : (str, str, str or None)
        Names of student, teacher and the student that was trained alone.
    accuracy : float
        The accuracy that kept rows, and the whole output, should have.
    max_loss : float
        The accuracy that the pair may lose to the teacher, as a share.
    confidence : float
        The probability with which each promise holds.
    costs, unit, points
        As in ``cascade``.

    Returns
    -------
    CascadeEvaluation

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.uniform(0.5, 1.0, 4000)
    >>> rows = Predictions.from_confidences(scores, rng.random(4000) < scores)
    >>> better = Predictions.from_confidences(scores, rng.random(4000) < 0.9)
    >>> dev, test = np.arange(2000), np.arange(2000, 4000)
    >>> student = {"dev": rows.select(dev), "test": rows.select(test)}
    >>> teacher = {"dev": better.select(dev), "test": better.select(test)}
    >>> result = evaluate_cascade(student, teacher, max_loss=0.02, costs=(1, 40), unit="ms")
    >>> result.sentence
    "48% stay with the student; accuracy as the teacher's within 2 points (95%); 55% of its cost"
    """
    for whose, by_split in (("student", student), ("teacher", teacher)):
        if "dev" not in by_split:
            raise InputError(
                "there are no predictions on 'dev'", source=whose, remedy="give them: the thresholds are chosen there"
            )
    shared = ["dev", *(name for name in student if name in teacher and name != "dev")]
    limits: dict[Promise, Threshold | CascadeThreshold] = {
        "accepted": (accepted := threshold(student["dev"].rename("dev"), accuracy, confidence)),
        "output": (output := output_threshold(student["dev"].rename("dev"), accuracy, confidence)),
        "loss": (loss := loss_threshold(student["dev"].rename("dev"), teacher["dev"], max_loss, confidence)),
    }
    splits = {}
    for name in shared:
        own, others = join(student[name].rename(name), teacher[name])
        pair = cascade(own, others, costs=costs, unit=unit, points=points)
        without = None
        if alone is not None and name in alone:
            without = cascade(alone[name], teacher[name], costs=costs, unit=unit, points=points)
            without = replace(without, name=name, student=names[2] or "alone", teacher=names[1])
        checks: dict[Promise, PromiseCheck] = {}
        if name != "dev":
            checks = {promise: check_promise(limit, own, others) for promise, limit in limits.items()}
        splits[name] = CascadeSplit(replace(pair, name=name, student=names[0], teacher=names[1]), without, checks)
    return CascadeEvaluation(
        student=names[0],
        teacher=names[1],
        alone=None if alone is None else names[2],
        accepted=accepted,
        output=output,
        loss=loss,
        splits=splits,
        sentence=_recommendation(loss, {name: split.checks["loss"] for name, split in splits.items() if split.checks}, costs),
    )


def _recommendation(loss: CascadeThreshold, checks: Mapping[str, PromiseCheck], costs: tuple[float, float] | None) -> str:
    """Return what to do with the pair: how much stays, what is lost, what it costs, and where the promise is broken."""
    if not loss.reached:
        return f"do not: {loss.message}"
    coverage = checks["test"].coverage if "test" in checks else loss.coverage
    share = math.nan if costs is None else (costs[0] + (1 - coverage) * costs[1]) / costs[1]
    if share >= 1:
        return (
            f"do not: with {coverage:.0%} staying with the student the pair costs {share:.0%} of what the teacher alone costs, "
            f"for an accuracy within {in_points(loss.target)}"
        )
    sentence = (
        f"{coverage:.0%} stay with the student; accuracy as the teacher's within {in_points(loss.target)} "
        f"({in_percent(loss.level)})"
    )
    if costs is not None:
        sentence += f"; {share:.0%} of its cost"
    broken = [f"{name} ({-check.value * 100:+.1f} points)" for name, check in checks.items() if check.broken]
    if broken:
        sentence += f"; the promise is broken on {', '.join(broken)}"
    return sentence
