"""A study as a typed TOML file: stages, tasks, methods, grids, tables, claims and figures, at two or more scales.

Everything a scale changes stands under ``[scales.NAME]`` of the same file. Tables, methods and claims cannot be changed by a
scale, so every cell of one scale exists in all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, NonNegativeInt, PositiveFloat, model_validator

from distilcal.config.base import (
    ListOf,
    Settings,
    allow_any_key,
    check_no_duplicates,
    collect_unknown_keys,
)
from distilcal.config.loading import parse_recipe, with_values
from distilcal.config.schema import Recipe, StageSettings
from distilcal.errors import InputError
from distilcal.metrics import ALL_METRICS, definition
from distilcal.study.claim_settings import ClaimPair, ClaimSettings, PremiseSettings, claim_pairs
from distilcal.study.places import PlaceSettings, merge_places
from distilcal.study.templates import check_known, merge_tables

# What a scale may change.
SCALED = ("note", "seeds", "data", "stages", "tasks", "grids", "search", "leave_out", "networks", "each", "values", "places")
MOST_POINTS = 100_000  # of a grid
BETWEEN_STAGES = ("teacher", "map", "model.start_from", "predictions", "calibrate")  # no axis can go over these
# Metrics that every study measures, so that tables and premises can use them; a file may define them otherwise.
ALWAYS_MEASURED: dict[str, dict[str, Any]] = {
    "accuracy": {"metric": "accuracy", "percent": True, "digits": 2},
    "confidence": {"metric": "confidence", "percent": True, "digits": 2},
    "ece": {"metric": "ece", "percent": True, "digits": 2},
    "nll": {"metric": "nll", "digits": 3},
    "brier": {"metric": "brier", "digits": 3},
    "aurc": {"metric": "aurc", "digits": 4},
}
FOLLOWED = (
    "accuracy",
    "nll",
    "ece",
    "brier",
    "entropy",
    "calibrated_nll",
)  # metrics of dev that training records after every epoch
FOLLOWED_ON_TRAIN = {"entropy": ("confidence_penalty", -1.0)}  # metric → the term of weight 0 that records it, and its sign


class MetricSettings(Settings):
    """How a metric is computed and shown in tables. Further keys are parameters of the metric."""

    model_config = ConfigDict(json_schema_extra=allow_any_key)

    metric: str = Field(default="", description="Name of the metric; in a file the default is the key of this table.")
    percent: bool = Field(default=False, description="Show the value times 100.")
    digits: int = Field(default=3, ge=0, le=10, description="Digits after the decimal point.")
    delta: float | None = Field(
        default=None, gt=0, description="Smallest difference that matters, in the unit in which tables show the metric."
    )
    settings: dict[str, Any] = Field(default_factory=dict, description="Parameters of the metric.")

    @property
    def unit(self) -> float:
        """By what a value is divided that stands in the unit of the tables."""
        return 100.0 if self.percent else 1.0

    @model_validator(mode="before")
    @classmethod
    def collect_parameters(cls, values: Any) -> Any:
        return collect_unknown_keys(cls, values)

    @model_validator(mode="after")
    def check_metric(self) -> Self:
        check_known(self.metric, ALL_METRICS, "there is no metric")
        definition(self.metric, self.settings)
        return self


class TaskSettings(Settings):
    """One column of a paper's table, or a few: its data, its changes to the stages, and the sets that are evaluated."""

    data: dict[str, Any] = Field(default_factory=dict, description="Changes to the study's data.")
    stages: dict[str, Any] = Field(default_factory=dict, description="Changes to the study's stages.")
    sets: dict[str, str | ListOf[str]] = Field(
        default_factory=dict,
        description="Name in the tables → split: `test`, or the name of another domain; a list of splits: the mean over them.",
    )
    cluster: str = Field(
        default="group",
        description="Which rows of a set share a source and are resampled together: `group`, those of one group of the data; "
        "`row`, each for itself; `id:SEPARATOR`, those whose ids agree up to the separator.",
    )
    here: dict[str, str] = Field(
        default_factory=dict, description="Name in the tables → the data that stand in for it at this scale."
    )

    @model_validator(mode="after")
    def check_sets(self) -> Self:
        for name, splits in self.sets.items():
            if not splits:
                raise InputError(f"sets.{name} names no split", remedy='write "test", or a list of splits')
        return self

    @model_validator(mode="after")
    def check_cluster(self) -> Self:
        is_prefix = self.cluster.startswith("id:") and len(self.cluster) > len("id:")
        if self.cluster not in ("group", "row") and not is_prefix:
            raise InputError(f"cluster = {self.cluster!r} is no kind of source", remedy='write "group", "row" or "id:@"')
        return self


class MethodSettings(Settings):
    """A row: a stage, as trained or divided by the temperature that is fitted on dev."""

    stage: str = Field(default="", description="Stage that is evaluated.")
    scaled: bool = Field(default=False, description="Divide its logits by the temperature that is fitted on dev.")


class GridSettings(Settings):
    """Stages that are trained at every point of a grid; the best point on dev stands for the stage, as teacher too."""

    stages: ListOf[str] = Field(default=(), min_length=1, description="Stages that are searched.")
    axes: ListOf[dict[str, Any]] = Field(
        default=(), min_length=1, description="Each axis: path in the stage → values; paths of one axis change together."
    )
    choose: Literal["calibrated_nll", "nll", "accuracy"] = Field(
        default="calibrated_nll",
        description="Metric on dev by which a point is chosen; `calibrated_nll` is the NLL after the temperature that is "
        "fitted on dev.",
    )
    sample: int = Field(default=0, ge=0, description="Only so many points, drawn at random; 0: all.")

    @model_validator(mode="after")
    def check_axes(self) -> Self:
        check_axes(self.axes, "axes")
        return self


class VariantSettings(Settings):
    """A method at every point of some axes, all of them evaluated: an ablation."""

    of: str = Field(default="", description="Method that is varied.")
    axes: ListOf[dict[str, Any]] = Field(
        default=(), description="Each axis: path in the stage → values; paths of one axis change together."
    )
    names: ListOf[str] = Field(default=(), description="A name for each axis, for the names of the variants.")

    @model_validator(mode="after")
    def check_axes(self) -> Self:
        check_axes(self.axes, f"variants of {self.of!r}")
        if len(self.names) != len(self.axes):
            raise InputError(
                f"variants of {self.of!r}: {len(self.names)} names for {len(self.axes)} axes",
                remedy="give a name for each axis",
            )
        return self


class TableSettings(Settings):
    """A table of the paper: rows and columns, what they have in common, and the paper's own values."""

    name: str = Field(default="", description="Name of the table.")
    title: str = Field(default="", description="Title above the table.")
    note: str = Field(default="", description="Note below the table.")
    rows: ListOf[PlaceSettings] = Field(default=(), description="Rows.")
    columns: ListOf[PlaceSettings] = Field(default=(), description="Columns.")
    common: PlaceSettings = Field(default=PlaceSettings(), description="What all cells have in common.")
    paper: ListOf[Any] = Field(
        default=(), description="The paper's values, a list for each row: numbers, `[mean, std]`, or `nan`."
    )

    @model_validator(mode="after")
    def check_paper(self) -> Self:
        if not self.paper:
            return self
        rows = [row if isinstance(row, (list, tuple)) else [] for row in self.paper]
        if len(rows) != len(self.rows) or any(len(row) != len(self.columns) for row in rows):
            raise InputError(
                f"table {self.name}: the paper's values do not fit the rows and columns", remedy="use nan for gaps"
            )
        for value in (value for row in rows for value in row):
            mean_and_std = isinstance(value, (list, tuple)) and len(value) == 2 and all(map(_is_number, value))
            if not _is_number(value) and not mean_and_std:
                raise InputError(
                    f"table {self.name}: the paper's value {value!r} is not a number", remedy="use a number, [mean, std] or nan"
                )
        return self


class PointSettings(Settings):
    """A point of a line, or a bar of a group: a method, the series it belongs to, and where it stands on the axis."""

    method: str = Field(default="", description="Method.")
    series: str = Field(default="", description="Name of its series.")
    x: float | str = Field(default=0.0, description="For `line`: its number on the axis; for `bars`: the name of its group.")


class FigureSettings(Settings):
    """A chart: metrics against each other, against a number, as bars, while training; reliability; features; a data map."""

    name: str = Field(default="", description="Name of the figure.")
    title: str = Field(default="", description="Title above the figure.")
    note: str = Field(default="", description="Note below the figure.")
    kind: Literal["scatter", "line", "bars", "training", "reliability", "projection", "map"] = Field(
        default="scatter", description="Kind of chart."
    )
    methods: ListOf[str] = Field(default=(), min_length=1, description="Methods that are shown.")
    points: ListOf[PointSettings] = Field(
        default=(), description="For `line` and `bars`, in place of `methods` and `values`: methods in several series."
    )
    places: ListOf[PlaceSettings] = Field(default=(), min_length=1, description="Tasks and sets that are shown.")
    x: str = Field(default="", description="For `scatter`: a metric; for `line`: the name of the axis.")
    y: str = Field(default="", description="A metric.")
    split: Literal["dev", "train"] = Field(
        default="dev",
        description="For `training`: on dev after every epoch, or on training batches up to the chosen number of epochs.",
    )
    values: ListOf[float] = Field(default=(), description="For `line`: the number on the axis of each method.")
    classes: ListOf[str] = Field(default=(), description="For `projection`: three classes.")

    @model_validator(mode="before")
    @classmethod
    def collect_methods(cls, values: Any) -> Any:
        """The methods of all points are what the figure shows."""
        points = values.get("points") if isinstance(values, Mapping) else None
        if not isinstance(points, (list, tuple)) or not points or values.get("methods"):
            return values
        named = [point.get("method", "") for point in points if isinstance(point, Mapping)]
        return {**values, "methods": list(dict.fromkeys(named))}

    @model_validator(mode="after")
    def check_points(self) -> Self:
        where = f"figure {self.name}"
        if self.points and self.kind not in ("line", "bars"):
            raise InputError(f"{where} of the kind {self.kind} has points", remedy="give methods; points are for line and bars")
        if self.kind == "line" and any(isinstance(point.x, str) for point in self.points):
            raise InputError(f"{where}: a point of a line needs a number x", remedy="write x = 1.0")
        return self

    @model_validator(mode="after")
    def check_kind(self) -> Self:
        where = f"figure {self.name}"
        if not self.methods or not self.places:
            raise InputError(f"{where} needs methods and places", remedy="add them")
        if self.kind == "training":
            check_known(self.y, FOLLOWED if self.split == "dev" else FOLLOWED_ON_TRAIN, f"{where}: training does not record")
        if self.kind == "line" and not self.points and len(self.values) != len(self.methods):
            raise InputError(
                f"{where}: {len(self.values)} values for {len(self.methods)} methods", remedy="give a value for each method"
            )
        if self.kind == "projection" and len(set(self.classes)) != 3:
            raise InputError(f"{where}: expected three classes, which span a plane", remedy='write classes = ["a", "b", "c"]')
        return self


class PointTableSettings(Settings):
    """A table of the points that were chosen in grids: a row for each task and method, our values beside the paper's."""

    name: str = Field(default="", description="Name of the table.")
    title: str = Field(default="", description="Title above the table.")
    note: str = Field(default="", description="Note below the title.")
    methods: ListOf[str] = Field(default=(), min_length=1, description="Methods.")
    parameters: dict[str, ListOf[str]] = Field(
        default_factory=dict,
        description="Heading → paths in the stage, as in the axes of a grid, of which the first that a stage has is shown.",
    )


class PaperSettings(Settings):
    """The publication whose tables a study fills."""

    authors: str = Field(default="", description="Authors, as they are cited.")
    title: str = Field(default="", description="Title of the paper.")
    venue: str = Field(default="", description="Where and when it appeared.")


class TheoremSettings(Settings):
    """Linear models on which a theorem is tested: rows × columns, shares of the teacher, temperatures."""

    name: Literal["theorem1", "theorem2"] = Field(default="theorem1", description="Which theorem on calibration transfer.")
    title: str = Field(default="", description="Title above the results.")
    rows: int = Field(default=400, ge=10, description="Examples.")
    columns: int = Field(default=5, ge=2, description="Features.")
    alphas: ListOf[Annotated[float, Field(ge=0, le=1)]] = Field(
        default=(0.1, 0.5, 0.9, 1.0), min_length=1, description="Shares of the teacher in the target, in [0, 1]."
    )
    temperatures: ListOf[Annotated[float, Field(gt=0)]] = Field(
        default=(1.0, 2.0, 5.0, 20.0), min_length=1, description="Temperatures, above 0."
    )


class Study(Settings):
    """A study at one scale. ``tables`` and everything after them are the same at every scale."""

    name: str = Field(default="", description="Name of the study; the default is the name of its file.")
    title: str = Field(default="", description="Title of the report.")
    paper: PaperSettings = Field(default=PaperSettings(), description="The paper whose tables these are.")
    scale: str = Field(default="", description="Scale at which the study was loaded.", json_schema_extra={"readOnly": True})
    note: str = Field(default="", description="What this scale is.")
    seeds: ListOf[NonNegativeInt] = Field(default=(0,), min_length=1, description="Seeds of the models.")
    data: dict[str, Any] = Field(default_factory=dict, description="Data settings that all tasks share, as in a recipe.")
    stages: dict[str, Any] = Field(default_factory=dict, description="Stages, as in a recipe, `like` included.")
    tasks: dict[str, TaskSettings] = Field(default_factory=dict, description="Tasks by name.")
    methods: dict[str, MethodSettings] = Field(default_factory=dict, description="Methods by the name of their row.")
    metrics: dict[str, MetricSettings] = Field(default_factory=dict, description="Metrics by the name used in tables.")
    grids: dict[str, GridSettings] = Field(default_factory=dict, description="Grids by name.")
    chosen: dict[str, dict[str, dict[str, Any]]] = Field(
        default_factory=dict, description="Points of the grids that the paper chose: task → stage → path → value."
    )
    search: bool = Field(
        default=True, description="Search the grids. Otherwise a stage is trained at its point in `chosen`, where it has one."
    )
    leave_out: ListOf[str] = Field(
        default=(), description="Methods that this scale leaves out of everything; `*` stands for any text."
    )
    variants: ListOf[VariantSettings] = Field(default=(), description="Ablations.")
    changes: dict[str, Any] = Field(
        default_factory=dict,
        description="Changes of each variant's stage to its base stage.",
        json_schema_extra={"readOnly": True},
    )
    tables: ListOf[TableSettings] = Field(default=(), description="Tables.")
    temperature_grid: ListOf[PositiveFloat] | None = Field(
        default=None,
        min_length=3,
        max_length=3,
        description="First, last and step of the temperatures among which the best on dev is taken; unset: the exact optimum.",
    )
    temperature_rows: bool = Field(
        default=True, description="Add a row `+ temperature` below every row of a table that temperature scaling can change."
    )
    score_tables: bool = Field(
        default=True,
        description="Add a table for every task and set, with accuracy, ECE, NLL, Brier score and AURC of every method "
        "that is measured there, as trained and with a temperature.",
    )
    points: ListOf[PointTableSettings] = Field(default=(), description="Tables of the points that were chosen in the grids.")
    claims: ListOf[ClaimSettings] = Field(default=(), description="Claims.")
    figures: ListOf[FigureSettings] = Field(default=(), description="Figures.")
    theorems: ListOf[TheoremSettings] = Field(default=(), description="Theorems that are tested on linear models.")

    @model_validator(mode="before")
    @classmethod
    def add_metrics(cls, values: Any) -> Any:
        """Add the metrics that every study measures to those of the file."""
        if not isinstance(values, Mapping) or not isinstance(values.get("metrics"), Mapping) or not values["metrics"]:
            return values
        return {**values, "metrics": {**values["metrics"], **_without_keys(ALWAYS_MEASURED, values["metrics"])}}

    @model_validator(mode="after")
    def check_complete(self) -> Self:
        for kind in ("tasks", "methods", "metrics", "stages"):
            if not getattr(self, kind):
                raise InputError(f"there are no {kind}", remedy=f"add [{kind}.NAME]")
        return self

    @model_validator(mode="after")
    def check_seeds(self) -> Self:
        check_no_duplicates(self.seeds, "seeds")
        return self

    @model_validator(mode="after")
    def check_stage_names(self) -> Self:
        for name, method in self.methods.items():
            check_known(method.stage, self.stages, f"methods.{name!r}: there is no stage")
        for name, grid in self.grids.items():
            for stage in grid.stages:
                check_known(stage, self.stages, f"grids.{name}: there is no stage")
        return self

    @model_validator(mode="after")
    def check_one_grid_per_stage(self) -> Self:
        for stage in self.stages:
            grids = [name for name, grid in self.grids.items() if stage in grid.stages]
            if len(grids) > 1:
                raise InputError(
                    f"stage {stage!r} is in the grids {' and '.join(grids)}", remedy="add a second stage with like"
                )
        return self


def _without_keys(table: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in keys}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def task_recipe(study: Study, task: str) -> Recipe:
    """Return the recipe of a task: all stages of the study, with what the task changes, on its data.

    Parameters
    ----------
    study : Study
        The study at one scale.
    task : str
        Name of the task.

    Returns
    -------
    Recipe

    Raises
    ------
    InputError
        If the task does not make a valid recipe.
    """
    settings = study.tasks[task]
    table = {
        "name": study.name or "study",
        "data": merge_tables(study.data, settings.data),
        "stages": merge_tables(study.stages, settings.stages),
    }
    try:
        return parse_recipe(table)
    except InputError as error:
        error.problem = f"tasks.{task}: {error.problem}"
        raise


def grid_points(axes: Sequence[Mapping[str, Sequence[Any]]]) -> list[tuple[tuple[str, Any], ...]]:
    """Return every point of a grid as (path, value) pairs.

    The last axis varies fastest. An axis may set several paths, whose values then move together.

    Parameters
    ----------
    axes : sequence of mappings of str to sequences
        For each axis, path in the stage → its values; the values of one axis are equally many.

    Returns
    -------
    list of Point
        One empty point if there are no axes.

    Examples
    --------
    >>> grid_points([{"train.lr": [0.1, 0.2]}, {"train.epochs": [3]}])
    [(('train.lr', 0.1), ('train.epochs', 3)), (('train.lr', 0.2), ('train.epochs', 3))]
    """
    points: list[tuple[tuple[str, Any], ...]] = [()]
    for axis in axes:
        steps = _axis_steps(axis)
        points = [(*point, *step) for point in points for step in steps]
    return points


def _axis_steps(axis: Mapping[str, Sequence[Any]]) -> list[tuple[tuple[str, Any], ...]]:
    """Return the steps of an axis: at each of them the (path, value) pairs of all its paths."""
    pairs_by_path = [[(path, value) for value in values] for path, values in axis.items()]
    return list(zip(*pairs_by_path, strict=True))


def with_variants(study: Study) -> Study:
    """Return the study with a stage and a method for every variant.

    Parameters
    ----------
    study : Study
        The study as its file has it.

    Returns
    -------
    Study
        A method "KD" with a variant over "T" gets methods such as "KD, T 4".

    Raises
    ------
    InputError
        If a variant is of a method that does not exist, or is called as another stage or method.
    """
    stages, methods, changes = dict(study.stages), dict(study.methods), dict(study.changes)
    for variant in study.variants:
        check_known(variant.of, methods, "variants: there is no method")
        base = methods[variant.of]
        for steps in product(*(_axis_steps(axis) for axis in variant.axes)):
            # A variant is called by the first value of each axis, as "KD, T 4".
            labels = [f"{name} {_format_value(step[0][1])}" for name, step in zip(variant.names, steps, strict=True)]
            suffix = "-".join(label.replace(" ", "") for label in labels)
            stage, method = f"{base.stage}-{suffix}", f"{variant.of}, {', '.join(labels)}"
            if stage in stages or method in methods:
                kind, name = ("stage", stage) if stage in stages else ("method", method)
                raise InputError(
                    f"variants: there already is a {kind} {name!r}",
                    remedy="leave out values that come twice or differ only beyond six digits, or rename the other one",
                )
            stages[stage] = {"like": base.stage}
            changes[stage] = tuple(pair for step in steps for pair in step)
            methods[method] = base.replace(stage=stage)
    return study.replace(stages=stages, methods=methods, changes=changes)


def _format_value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def check_axes(axes: Sequence[Mapping[str, Any]], where: str) -> None:
    """Refuse axes without values, of unequal lengths, or over what decides which other stages a stage needs.

    Parameters
    ----------
    axes : sequence of mappings
        For each axis, path in the stage → list of values.
    where : str
        Where the axes are in the file, for the message.

    Raises
    ------
    InputError
        For the first axis that is invalid.

    Examples
    --------
    >>> check_axes([{"train.lr": [0.1, 0.2], "train.epochs": [3, 5]}], "grids.lr")
    >>> check_axes([{"teacher": ["large"]}], "grids.teachers")
    Traceback (most recent call last):
    ...
    distilcal.errors.InputError: grids.teachers: teacher cannot be searched; make a stage for each, with like
    """
    points = 1
    for axis in axes:
        lengths = {len(values) if isinstance(values, list) else 0 for values in axis.values()}
        if len(lengths) != 1 or 0 in lengths:
            raise InputError(f"{where}: the lists of an axis are empty or not of one length", remedy="they move together")
        points *= lengths.pop()
        if points > MOST_POINTS:
            raise InputError(f"{where}: too many points, expected at most {MOST_POINTS:,}", remedy="give fewer values")
        for path in axis:
            if path in BETWEEN_STAGES:
                raise InputError(f"{where}: {path} cannot be searched", remedy="make a stage for each, with like")


@dataclass
class Requirements:
    """What tables, claims and figures need to know of a method on a task."""

    sets: dict[str, None] = field(default_factory=dict)  # splits, in the order of first use
    features: tuple[str, ...] = ()  # classes whose features are drawn
    map: bool = False  # whether the data map is drawn

    def add(self, other: Requirements) -> None:
        """Require everything that the other one requires, too."""
        self.sets |= other.sets
        self.features = tuple(dict.fromkeys((*self.features, *other.features)))
        self.map = self.map or other.map


def required_measurements(study: Study) -> dict[tuple[str, str], Requirements]:
    """Return what must be measured for everything that a table, claim or figure uses. Only these are trained.

    Parameters
    ----------
    study : Study
        The study at one scale.

    Returns
    -------
    dict of (str, str) to Requirements
        (method, task) → what is needed of it.
    """
    required: dict[tuple[str, str], Requirements] = {}

    def require(method: str, place: PlaceSettings, features: tuple[str, ...] = (), *, with_map: bool = False) -> None:
        needed = Requirements(dict.fromkeys(splits_of(study, place)), features, with_map)
        required.setdefault((method, place.task), Requirements()).add(needed)

    for table in study.tables:
        for row in table.rows:
            for column in table.columns:
                place = merge_places(table.common, row, column)
                require(place.method, place)
                if place.against:
                    require(place.against, place)
    for claim in study.claims:
        for place in claim_places(study, claim):
            for pair in claim_pairs(claim):
                for method in (pair.first, *pair.others):
                    require(method, place)
                for premise in pair_premises(claim, pair):
                    for method in premise.methods:
                        require(method, premise_place(premise, place))
    for figure in study.figures:
        for place in figure.places:
            for method in figure.methods:
                require(method, place, figure.classes, with_map=figure.kind == "map")
    return required


def claim_places(study: Study, claim: ClaimSettings) -> tuple[PlaceSettings, ...]:
    """Return where a claim is tested: its own places, or one for every task.

    Parameters
    ----------
    study : Study
        The study of the claim.
    claim : ClaimSettings
        The claim.

    Returns
    -------
    tuple of PlaceSettings
        A place for a whole task names no set; `splits_of` resolves it.
    """
    return claim.places or tuple(PlaceSettings(task=task) for task in study.tasks)


def pair_premises(claim: ClaimSettings, pair: ClaimPair) -> list[PremiseSettings]:
    """Return the premises of a claim that concern a pair: those of all comparisons, and those of its first method.

    Parameters
    ----------
    claim : ClaimSettings
        The claim.
    pair : ClaimPair
        One of its pairs.

    Returns
    -------
    list of PremiseSettings
    """
    return [premise for premise in claim.premises if premise.of in ("", pair.first)]


def premise_place(premise: PremiseSettings, place: PlaceSettings) -> PlaceSettings:
    """Return where a premise of a comparison must be true: the comparison's task, and its set or that of the premise.

    Parameters
    ----------
    premise : PremiseSettings
        The premise.
    place : PlaceSettings
        The place of the comparison.

    Returns
    -------
    PlaceSettings
        Models are as trained there, or as their method is scaled.
    """
    return PlaceSettings(task=place.task, set=premise.set or place.set)


def splits_of(study: Study, place: PlaceSettings) -> tuple[str, ...]:
    """Return the names of the splits that a place is measured on; its value is the mean over them.

    Parameters
    ----------
    study : Study
        The study of the place.
    place : PlaceSettings
        Names a task, and one of its sets or a split; without either, the split is test.

    Returns
    -------
    tuple of str
    """
    splits = study.tasks[place.task].sets.get(place.set, place.set or "test")
    return (splits,) if isinstance(splits, str) else tuple(splits)


def changed_stage(stage: StageSettings, changes: Iterable[tuple[str, Any]]) -> StageSettings:
    """Return a stage with values changed along their paths.

    Parameters
    ----------
    stage : StageSettings
        The stage; it stays as it is.
    changes : iterable of (str, value)
        Paths such as ``terms.0.weight`` and their new values.

    Returns
    -------
    StageSettings

    Raises
    ------
    InputError
        If a path does not exist, or a value is invalid.
    """
    changes = list(changes)
    return with_values(stage, changes) if changes else stage
