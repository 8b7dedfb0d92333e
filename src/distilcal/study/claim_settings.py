"""Claims of a paper as settings: which methods are compared where, with which controls, and under which premises."""

from __future__ import annotations

from typing import Literal, NamedTuple, Self

from pydantic import Field, model_validator

from distilcal.config.base import ListOf, Settings
from distilcal.errors import InputError
from distilcal.study.places import PlaceSettings

# What each kind of premise compares: metric, and whether the first method's is the higher one.
COMPARED = {"better": ("accuracy", True), "calibrated": ("ece", False)}
OF_ONE_METHOD = ("overconfident", "above_chance")
OF_TWO_METHODS = (*COMPARED, "lower", "higher")


class PremiseSettings(Settings):
    """What must be true of the models for a claim to be tested at all: one of `better` … `above_chance`."""

    better: str = Field(default="", description="This method has a higher accuracy than `than`; or")
    calibrated: str = Field(default="", description="this method has a lower ECE than `than`; or")
    lower: str = Field(default="", description="this method has a lower `metric` than `than`; or")
    higher: str = Field(default="", description="this method has a higher `metric` than `than`; or")
    overconfident: str = Field(default="", description="this method's mean confidence is above its accuracy; or")
    above_chance: str = Field(
        default="", description="this method's accuracy is above the share of the most frequent class of the set."
    )
    than: str = Field(default="", description="The other method of `better`, `calibrated`, `lower` and `higher`.")
    metric: str = Field(default="", description="Metric of `lower` and `higher`.")
    by: float = Field(default=0.0, ge=0, description="By more than this, in the unit in which tables show the metric.")
    of: str = Field(default="", description="Only for comparisons whose first method is this one; empty: for all of the claim.")
    set: str = Field(default="", description="Set on which it must be true; empty: that of the comparison.")

    @model_validator(mode="after")
    def check_kind(self) -> Self:
        kinds = [kind for kind in (*OF_TWO_METHODS, *OF_ONE_METHOD) if getattr(self, kind)]
        if len(kinds) != 1:
            named = " and ".join(kinds) or "none"
            raise InputError(
                f"a premise is one of {', '.join((*OF_TWO_METHODS, *OF_ONE_METHOD))}, got {named}",
                remedy='write { overconfident = "METHOD" }, or a premise for each',
            )
        kind = kinds[0]
        if (kind in OF_TWO_METHODS) != bool(self.than):
            remedy = "name the other method" if kind in OF_TWO_METHODS else "leave out than"
            raise InputError(f"premise {kind} = {getattr(self, kind)!r} with than = {self.than!r}", remedy=remedy)
        if (kind in ("lower", "higher")) != bool(self.metric):
            remedy = "name the metric" if kind in ("lower", "higher") else "leave out metric, or write lower or higher"
            raise InputError(f"premise {kind} = {getattr(self, kind)!r} with metric = {self.metric!r}", remedy=remedy)
        return self

    @property
    def kind(self) -> str:
        """Which of the premises it is."""
        return next(kind for kind in (*OF_TWO_METHODS, *OF_ONE_METHOD) if getattr(self, kind))

    @property
    def method(self) -> str:
        """The method that it is about."""
        return str(getattr(self, self.kind))

    @property
    def methods(self) -> tuple[str, ...]:
        """All methods that it needs."""
        return (self.method, self.than) if self.than else (self.method,)

    @property
    def text(self) -> str:
        """The premise in words."""
        if self.kind == "overconfident":
            return f"{self.method} is overconfident"
        if self.kind == "above_chance":
            return f"{self.method} is more accurate than chance"
        metric, is_higher = COMPARED.get(self.kind, (self.metric, self.kind == "higher"))
        return f"{self.method} has {'a higher' if is_higher else 'a lower'} {metric} than {self.than}"


class ClaimSettings(Settings):
    """A statement of the paper: one method's metric is lower (or higher) than another's, in so many of the places."""

    text: str = Field(default="", description="The statement.")
    metric: str = Field(default="", description="Metric that is compared.")
    lower: str = Field(default="", description="Method whose metric is lower; or")
    higher: str = Field(default="", description="Method whose metric is higher.")
    than: str = Field(default="", description="Method that it is compared with.")
    pairs: ListOf[ListOf[str]] = Field(
        default=(),
        description="In place of these: lists of two methods, the lower (or higher) one first, and then controls of this pair.",
    )
    direction: Literal["lower", "higher"] = Field(default="lower", description="Direction of `pairs`.")
    control: ListOf[str] = Field(
        default=(), description="Methods that the first one must be lower (or higher) than, too, for the claim to hold."
    )
    places: ListOf[PlaceSettings] = Field(
        default=(), description="Tasks and sets where it is tested; empty: the test set of every task."
    )
    at_least: int = Field(default=0, ge=0, description="Number of comparisons in which it must hold; 0: all.")
    delta: float | None = Field(
        default=None,
        gt=0,
        description="Smallest difference that matters, in the unit in which tables show the metric; unset: that of the metric.",
    )
    premises: ListOf[PremiseSettings] = Field(
        default=(), description="What must be true of the models for a comparison to say anything about the claim."
    )

    @model_validator(mode="after")
    def check_comparison(self) -> Self:
        where = f"claim {self.text!r}"
        if self.pairs and (self.lower or self.higher or self.than):
            raise InputError(f"{where} has pairs and one of lower, higher, than", remedy="give one of the two")
        if not self.pairs and (bool(self.lower) == bool(self.higher) or not self.than):
            raise InputError(f"{where} needs lower or higher, and than", remedy="name two methods")
        if any(len(pair) < 2 for pair in self.pairs):
            raise InputError(f"{where}: expected two methods in each pair", remedy='write pairs = [["A", "B"]]')
        for pair in claim_pairs(self):
            if pair.first in (pair.second, *pair.controls):
                raise InputError(f"{where} compares {pair.first!r} with itself", remedy="name two methods")
        return self

    @property
    def expects_higher(self) -> bool:
        """Whether the first method's metric is claimed to be higher."""
        return self.direction == "higher" if self.pairs else bool(self.higher)


class ClaimPair(NamedTuple):
    """Two methods that a claim compares, and the controls that the first is compared with, too."""

    first: str
    second: str
    controls: tuple[str, ...] = ()

    @property
    def others(self) -> tuple[str, ...]:
        """All methods that the first one is compared with, the paper's own comparison first."""
        return (self.second, *self.controls)


def claim_pairs(claim: ClaimSettings) -> list[ClaimPair]:
    """Return the pairs of a claim: the method that shall be lower or higher, the other, and the controls.

    Parameters
    ----------
    claim : ClaimSettings
        The claim. Its controls are those of every pair, except where the pair compares with that method anyway.

    Returns
    -------
    list of ClaimPair

    Examples
    --------
    >>> claim = ClaimSettings(text="KD helps", metric="ece", lower="KD from MDCA", than="NLL", control=["KD from NLL"])
    >>> claim_pairs(claim)
    [ClaimPair(first='KD from MDCA', second='NLL', controls=('KD from NLL',))]
    """
    pairs = claim.pairs or ((claim.lower or claim.higher, claim.than),)
    listed = []
    for first, second, *own in pairs:
        controls = dict.fromkeys(method for method in (*own, *claim.control) if method != second)
        listed.append(ClaimPair(first, second, tuple(controls)))
    return listed
