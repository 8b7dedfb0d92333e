"""A study as a typed TOML file: stages, tasks, methods, grids, tables, claims and figures, at two or more scales.

Everything a scale changes stands under ``[scales.NAME]`` of the same file. Tables, methods and claims cannot be changed by a
scale, so every cell of one scale exists in all others.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from distilcal.config.schema import Recipe, StageSettings, checked, recipe_from, settings_from
from distilcal.errors import InputError

SCALED = ("note", "seeds", "data", "stages", "tasks", "grids")  # what a scale may change
BETWEEN_STAGES = ("teacher", "map", "model.start_from", "predictions", "calibrate")  # no axis can go over these


@dataclass(frozen=True)
class MetricSettings:
    """How a figure is computed and shown. Keys beyond these are parameters of the metric."""

    metric: str = ""
    percent: bool = False  # shown times 100
    digits: int = 3
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskSettings:
    """One column of a paper's table, or a few: data, what it changes in the stages, and the sets that are measured."""

    data: dict[str, Any] = field(default_factory=dict)
    stages: dict[str, Any] = field(default_factory=dict)  # changes to the study's stages
    sets: dict[str, str] = field(default_factory=dict)  # name in the tables → split: "test", or the name of another domain
    here: dict[str, str] = field(default_factory=dict)  # name in the tables → what stands in for it at this scale


@dataclass(frozen=True)
class MethodSettings:
    """A row: a stage, as trained or divided by the temperature that suits dev."""

    stage: str = ""
    scaled: bool = False


@dataclass(frozen=True)
class GridSettings:
    """Stages that are trained at every point of a grid; the best on dev stands for the stage, as teacher too."""

    stages: tuple[str, ...] = ()
    axes: tuple[dict[str, Any], ...] = ()  # each: path in the stage → values; paths of one axis move together
    choose: Literal["accuracy", "nll"] = "accuracy"
    sample: int = 0  # only so many points, drawn at random; 0: all


@dataclass(frozen=True)
class VariantSettings:
    """A method at every point of some axes, all of them measured: an ablation."""

    of: str = ""
    axes: tuple[dict[str, Any], ...] = ()
    names: tuple[str, ...] = ()  # one word an axis, for the variants' names


@dataclass(frozen=True)
class PlaceSettings:
    """Where in the results a figure is taken; a row and a column of a table together say all of it."""

    name: str = ""
    method: str = ""
    task: str = ""
    set: str = ""
    metric: str = ""
    scaled: bool | None = None
    against: str = ""  # the method that this one is compared with


@dataclass(frozen=True)
class TableSettings:
    """A table of the paper: rows and columns, what they have in common, and the paper's own figures."""

    name: str = ""
    title: str = ""
    note: str = ""
    rows: tuple[PlaceSettings, ...] = ()
    columns: tuple[PlaceSettings, ...] = ()
    common: PlaceSettings = PlaceSettings()
    paper: tuple[Any, ...] = ()  # a list for each row; each figure a number, [mean, std], or nan


@dataclass(frozen=True)
class ClaimSettings:
    """What the paper says in words: one method's figure is lower (or higher) than another's, in so many of the places."""

    text: str = ""
    metric: str = ""
    lower: str = ""  # a method; or
    higher: str = ""
    than: str = ""
    pairs: tuple[tuple[str, ...], ...] = ()  # instead of the above: [lower or higher one, other] each
    direction: Literal["lower", "higher"] = "lower"  # of pairs
    places: tuple[PlaceSettings, ...] = ()  # task and set; empty: the first set of every task
    at_least: int = 0  # of all comparisons; 0: all


@dataclass(frozen=True)
class FigureSettings:
    """A picture: metrics against each other, against a number, over the epochs; reliability; features; a data map."""

    name: str = ""
    title: str = ""
    note: str = ""
    kind: Literal["scatter", "line", "training", "reliability", "projection", "map"] = "scatter"
    methods: tuple[str, ...] = ()
    places: tuple[PlaceSettings, ...] = ()
    x: str = ""  # scatter: a metric; line: the name of the axis
    y: str = ""  # a metric
    values: tuple[float, ...] = ()  # line: the number that belongs to each method
    classes: tuple[str, ...] = ()  # projection: three of them


@dataclass(frozen=True)
class TheoremSettings:
    """Linear models on which a theorem is tried: rows × columns, shares of the teacher, temperatures."""

    name: Literal["theorem1", "theorem2"] = "theorem1"
    title: str = ""
    rows: int = 400
    columns: int = 5
    alphas: tuple[float, ...] = (0.1, 0.5, 0.9, 1.0)
    temperatures: tuple[float, ...] = (1.0, 2.0, 5.0, 20.0)


@dataclass(frozen=True)
class Study:
    """A study at one scale. ``tables`` and the rest are the same at every scale."""

    name: str = ""
    title: str = ""
    scale: str = ""
    note: str = ""  # what this scale is
    seeds: tuple[int, ...] = (0,)
    data: dict[str, Any] = field(default_factory=dict)  # common to all tasks
    stages: dict[str, Any] = field(default_factory=dict)  # as in a recipe
    tasks: dict[str, TaskSettings] = field(default_factory=dict)
    methods: dict[str, MethodSettings] = field(default_factory=dict)
    metrics: dict[str, MetricSettings] = field(default_factory=dict)
    grids: dict[str, GridSettings] = field(default_factory=dict)
    variants: tuple[VariantSettings, ...] = ()
    changes: dict[str, Any] = field(default_factory=dict)  # what each variant's stage changes in the one it is like
    tables: tuple[TableSettings, ...] = ()
    claims: tuple[ClaimSettings, ...] = ()
    figures: tuple[FigureSettings, ...] = ()
    theorems: tuple[TheoremSettings, ...] = ()


def study_names() -> dict[str, Any]:
    """The studies that come with the package."""
    folder = files("distilcal").joinpath("study", "papers")
    return {f.name.removesuffix(".toml"): f for f in sorted(folder.iterdir(), key=lambda f: f.name) if f.name.endswith(".toml")}


def read_study(source: str, scale: str = "small", seeds: int | None = None) -> Study:
    """The study of that name, or in that file, at a scale; ``seeds`` is how many, the file's own first."""
    known = study_names()
    path = Path(source)
    if source in known:
        text = known[source].read_text(encoding="utf-8")
    elif path.suffix == ".toml":
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot be read: {error}", source=source, remedy="give a TOML file") from None
    else:
        raise InputError(f"there is no study {source!r}", remedy=f"did you mean {near(source, known)}?")
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"not readable as TOML: {error}", source=source, remedy="mend it") from None
    try:
        return study_from({"name": path.stem, **table}, scale, seeds)
    except InputError as error:
        error.source = error.source or source
        raise


def study_from(table: Mapping[str, Any], scale: str, seeds: int | None = None) -> Study:
    """The study that a table describes, at a scale."""
    scales = table.get("scales", {})
    if not isinstance(scales, Mapping) or not all(isinstance(said, Mapping) for said in scales.values()):
        raise InputError("scales is not a table of tables", remedy="write [scales.small]")
    if "changes" in table:
        raise InputError("unknown key changes", remedy="variants make them")
    if scale not in scales:
        raise InputError(f"there is no scale {scale!r}", remedy=f"the scales are {', '.join(scales) or 'none'}")
    changed = scales[scale]
    strange = [key for key in changed if key not in SCALED]
    if strange:
        raise InputError(
            f"scales.{scale}.{strange[0]} cannot be changed by a scale", remedy=f"it may change {', '.join(SCALED)}"
        )
    for kind in ("grids", "tasks"):  # a wrong name would be a new one, and the change be lost
        for name in changed.get(kind, {}):
            check_known(name, table.get(kind, {}), f"scales.{scale}.{kind}: there is no")
    whole = merged({key: value for key, value in table.items() if key != "scales"}, changed)
    if not isinstance(whole.get("metrics", {}), Mapping):
        raise InputError("metrics is not a table", remedy="write [metrics]")
    whole["metrics"] = {name: _metric(name, said) for name, said in whole.get("metrics", {}).items()}
    made: Study = settings_from(Study, {**whole, "scale": scale})
    if seeds is not None:
        if seeds < 1:
            raise InputError(f"{seeds} seeds", remedy="give at least 1")
        own = list(made.seeds)[:seeds]
        fresh = (s for s in range(10_000) if s not in own)
        made = replace(made, seeds=tuple(own + [next(fresh) for _ in range(seeds - len(own))]))
    from distilcal.study.validation import checked_study

    return checked_study(with_variants(made))


def _metric(name: str, said: Any) -> dict[str, Any]:
    if not isinstance(said, Mapping):
        raise InputError(f"metrics.{name} = {said!r} is not a table", remedy=f"write {name} = {{ digits = 2 }}")
    shown = ("metric", "percent", "digits")
    return {
        "metric": name,
        **{key: value for key, value in said.items() if key in shown},
        "settings": {key: value for key, value in said.items() if key not in shown},
    }


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The base with the changes on top, table by table; lists are replaced."""
    made = dict(copy.deepcopy(dict(base)))
    for key, value in changes.items():
        old = made.get(key)
        made[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else copy.deepcopy(value)
    return made


def task_recipe(study: Study, task: str) -> Recipe:
    """The recipe of a task: all stages of the study, with what the task changes, on its data."""
    said = study.tasks[task]
    table = {
        "name": study.name or "study",
        "data": merged(study.data, said.data),
        "stages": merged(study.stages, said.stages),
    }
    try:
        return checked(recipe_from(table))
    except InputError as error:
        error.problem = f"tasks.{task}: {error.problem}"
        raise


def with_value(settings: Any, path: str, value: Any) -> Any:
    """A dataclass of settings with one value changed; the path goes through fields, lists (by number) and tables."""
    head, _, rest = path.partition(".")
    if isinstance(settings, Mapping):
        if rest and head not in settings:
            raise InputError(f"there is nothing called {head!r}", remedy=f"there is {', '.join(settings) or 'nothing'}")
        inner = with_value(settings[head], rest, value) if rest else value
        return {**settings, head: inner}
    if isinstance(settings, tuple):
        if not head.isdigit() or int(head) >= len(settings):
            raise InputError(f"{path!r}: there is no entry {head} of {len(settings)}", remedy="entries are counted from 0")
        i = int(head)
        if not rest and is_dataclass(settings[i]):
            raise InputError(f"{path!r} is a whole table", remedy="name a key in it")
        return (*settings[:i], with_value(settings[i], rest, value) if rest else value, *settings[i + 1 :])
    if not is_dataclass(settings) or isinstance(settings, type):
        raise InputError(f"{settings!r} has no setting {head!r}", remedy="the path goes too far")
    if not hasattr(settings, head):
        if hasattr(settings, "settings") and not rest:  # a parameter of a loss
            return replace(settings, settings={**settings.settings, head: value})
        raise InputError(f"there is no setting {head!r}", remedy=f"did you mean {near(head, vars(settings))}?")
    inner = with_value(getattr(settings, head), rest, value) if rest else _typed(type(settings), head, value)
    return replace(settings, **{head: inner})


def _typed(kind: type, name: str, value: Any) -> Any:
    return getattr(settings_from(kind, {name: value}), name)


def points(axes: Sequence[Mapping[str, Sequence[Any]]]) -> list[tuple[tuple[str, Any], ...]]:
    """Every point of a grid as (path, value) pairs; the last axis turns fastest, paths of one axis move together."""
    made: list[tuple[tuple[str, Any], ...]] = [()]
    for axis in axes:
        steps = list(zip(*([(path, value) for value in values] for path, values in axis.items()), strict=True))
        made = [(*point, *step) for point in made for step in steps]
    return made


def with_variants(study: Study) -> Study:
    """The study with a stage and a method for every variant."""
    stages, methods, changes = dict(study.stages), dict(study.methods), dict(study.changes)
    for variant in study.variants:
        check_known(variant.of, methods, "variants: there is no method")
        base = methods[variant.of]
        check_axes(variant.axes, f"variants of {variant.of!r}")
        if len(variant.names) != len(variant.axes):
            raise InputError(f"variants of {variant.of!r}: a word for each axis is wanted in names")
        for place in _positions(variant.axes):
            chosen = [(path, values[i]) for axis, i in zip(variant.axes, place, strict=True) for path, values in axis.items()]
            words = [
                f"{word} {_shown(next(iter(axis.values()))[i])}"
                for word, axis, i in zip(variant.names, variant.axes, place, strict=True)
            ]
            name = f"{variant.of}, {', '.join(words)}"
            stage = f"{base.stage}-{'-'.join(w.replace(' ', '') for w in words)}"
            stages[stage] = {"like": base.stage}
            changes[stage] = tuple(chosen)
            methods[name] = replace(base, stage=stage)
    return replace(study, stages=stages, methods=methods, changes=changes)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def check_axes(axes: Sequence[Mapping[str, Any]], where: str) -> None:
    """Refuse axes without values, of unequal lengths, or over what decides which other stages a stage needs."""
    for axis in axes:
        lengths = {len(values) if isinstance(values, list) else 0 for values in axis.values()}
        if len(lengths) != 1 or 0 in lengths:
            raise InputError(f"{where}: the lists of an axis are empty or not of one length", remedy="they move together")
        for path in axis:
            if path in BETWEEN_STAGES:
                raise InputError(f"{where}: {path} cannot be searched", remedy="make a stage for each, with like")


def _positions(axes: Sequence[Mapping[str, Sequence[Any]]]) -> list[tuple[int, ...]]:
    made: list[tuple[int, ...]] = [()]
    for axis in axes:
        made = [(*place, i) for place in made for i in range(len(next(iter(axis.values()))))]
    return made


def place_of(*parts: PlaceSettings) -> PlaceSettings:
    """What several places say together, the later ones on top of the earlier."""
    made: dict[str, Any] = {}
    for part in parts:
        made |= {key: value for key, value in vars(part).items() if value not in ("", None)}
    return PlaceSettings(**made)


@dataclass
class Wanted:
    """What the tables, claims and figures want to know of a method on a task."""

    sets: dict[str, None] = field(default_factory=dict)  # splits, in the order they are met
    features: tuple[str, ...] = ()  # classes whose features are drawn
    map: bool = False


def wanted(study: Study) -> dict[tuple[str, str], Wanted]:
    """(method, task) → what is looked at: only these are trained."""
    made: dict[tuple[str, str], Wanted] = {}

    def want(method: str, place: PlaceSettings) -> Wanted:
        found = made.setdefault((method, place.task), Wanted())
        found.sets[split_of(study, place)] = None
        return found

    for table in study.tables:
        for row in table.rows:
            for column in table.columns:
                place = place_of(table.common, row, column)
                for method in filter(None, (place.method, place.against)):
                    want(method, place)
    for claim in study.claims:
        for place in claim_places(study, claim):
            for method in (m for pair in claim_pairs(claim) for m in pair):
                want(method, place)
    for figure in study.figures:
        for place in figure.places:
            for method in figure.methods:
                found = want(method, place)
                found.features = tuple(dict.fromkeys((*found.features, *figure.classes)))
                found.map = found.map or figure.kind == "map"
    return made


def claim_places(study: Study, claim: ClaimSettings) -> tuple[PlaceSettings, ...]:
    """Where a claim is looked at: its own places, or the first set of every task."""
    return claim.places or tuple(PlaceSettings(task=task) for task in study.tasks)


def claim_pairs(claim: ClaimSettings) -> list[tuple[str, str]]:
    """The comparisons of a claim: the method that shall be lower or higher, and the other."""
    if claim.pairs:
        return [(pair[0], pair[1]) for pair in claim.pairs]
    return [(claim.lower or claim.higher, claim.than)]


def split_of(study: Study, place: PlaceSettings) -> str:
    """The split that a place is measured on."""
    sets = study.tasks[place.task].sets
    return sets.get(place.set, place.set or "test")


def near(name: str, known: Iterable[str]) -> str:
    """Names like this one, or all of them."""
    there = list(known)
    return ", ".join(get_close_matches(name, there, n=4, cutoff=0.4) or there)


def check_known(name: str, there: Iterable[str], problem: str) -> None:
    """Refuse a name that is not there, and list the near ones."""
    if name not in there:
        raise InputError(f"{problem} {name!r}", remedy=f"did you mean {near(name, there)}?")


def changed_stage(stage: StageSettings, changes: Iterable[tuple[str, Any]]) -> StageSettings:
    """A stage with values changed along their paths."""
    for path, value in changes:
        stage = with_value(stage, path, value)
    return stage
