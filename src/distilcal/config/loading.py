"""Reads recipes from TOML files, changes single values (``--set``), and writes recipes back."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from distilcal.config.base import Settings, parse_settings
from distilcal.config.schema import Recipe, TermSettings, dependencies
from distilcal.errors import InputError, list_names
from distilcal.io.atomic import check_input

S = TypeVar("S", bound=Settings)


def load_recipe(path: str | Path, changes: Sequence[str] = ()) -> Recipe:
    """Load a recipe from a TOML file.

    Parameters
    ----------
    path : str or Path
        The file.
    changes : sequence of str
        Changes such as ``stages.student.train.epochs=5``, applied in order before the recipe is checked.

    Returns
    -------
    Recipe
        The recipe, with all rules checked that need no data.

    Raises
    ------
    InputError
        If the file cannot be read, a key is unknown, or a value is invalid.
    """
    path = Path(path)
    table = _read_toml(path)
    for change in changes:
        apply_change(table, change)
    try:
        return parse_recipe(table)
    except InputError as error:
        error.source = error.source or str(path)
        raise


def _read_toml(path: Path) -> dict[str, Any]:
    check_input(path, "write one with: distilcal example NAME")
    try:
        text = path.read_text(encoding="utf-8-sig")  # an editor may have put a mark before the first line
    except UnicodeDecodeError as error:
        raise InputError(f"not readable as TOML: {error}", source=str(path), remedy="save it as UTF-8") from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source=str(path), remedy="give a TOML file") from None
    return parse_toml(text, str(path))


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Parameters
    ----------
    text : str
        The content of the file.
    source : str
        The file, for messages.

    Returns
    -------
    dict

    Raises
    ------
    InputError
        If it is not TOML, or nested too deeply.

    Examples
    --------
    >>> parse_toml("[train]\\nepochs = 3", "recipe.toml")
    {'train': {'epochs': 3}}
    """
    try:
        return tomllib.loads(text)
    except ValueError as error:  # not TOML, or a number with too many digits
        raise InputError(f"not readable as TOML: {error}", source=source, remedy="fix the line") from None
    except RecursionError:
        raise InputError("its tables or lists are nested too deeply", source=source, remedy="write plain settings") from None


def parse_recipe(table: Mapping[str, Any]) -> Recipe:
    """Build a recipe from the table of a TOML file; stages with ``like`` inherit from the stage they name.

    Parameters
    ----------
    table : mapping
        Plain tables, lists, text and numbers; it stays as it is.

    Returns
    -------
    Recipe
        The recipe, with all rules checked that need no data.

    Raises
    ------
    InputError
        If a key is unknown, a value is invalid, or ``like`` does not name another stage.

    Examples
    --------
    >>> recipe = parse_recipe({"data": {"train": "t.csv"}, "stages": {"a": {"model": {"name": "linear"}}}})
    >>> recipe.stages["a"].train.epochs
    3
    """
    stages = table.get("stages")
    if isinstance(stages, Mapping):
        resolved: dict[str, Any] = {}
        for name in stages:
            resolve_like(name, stages, resolved)
        table = {**table, "stages": {name: resolved[name] for name in stages}}
    return parse_settings(Recipe, table)


def resolve_like(name: str, stages: Mapping[str, Any], resolved: dict[str, Any] | None = None) -> Any:
    """Return a stage's table on top of the table of the stage that its key ``like`` names.

    The tables ``model``, ``train`` and views of one name are merged key by key; every other key replaces the inherited one.

    Parameters
    ----------
    name : str
        Name of the stage.
    stages : mapping
        The tables of all stages.
    resolved : dict, optional
        Tables that are known already; those that are found on the way are added.

    Returns
    -------
    Any
        The table without ``like``; a stage that is not a table is returned unchanged.

    Raises
    ------
    InputError
        If ``like`` does not name another stage, or stages inherit from each other in a cycle.

    Examples
    --------
    >>> stages = {"a": {"train": {"epochs": 5, "lr": 0.1}}, "b": {"like": "a", "train": {"lr": 0.2}}}
    >>> resolve_like("b", stages)
    {'train': {'epochs': 5, 'lr': 0.2}}
    """
    resolved = {} if resolved is None else resolved
    chain: dict[str, None] = {}  # the stage, the one that it is like, and so on; a dict keeps the order and is fast to search
    while name not in resolved:
        own = stages[name]
        chain[name] = None
        if not isinstance(own, Mapping) or "like" not in own:
            resolved[name] = own
            break
        base = own["like"]
        if not isinstance(base, str) or base not in stages or base in chain:
            raise InputError(
                f"stages.{name}.like = {base!r} is not another stage", remedy=f"the stages are {list_names(list(stages))}"
            )
        name = base
    for heir in reversed(chain):
        if heir not in resolved:
            inherited = resolved[name]
            is_table = isinstance(inherited, Mapping)  # what is no table is refused under its own name
            resolved[heir] = _inherit(inherited, stages[heir]) if is_table else inherited
        name = heir
    return resolved[name]


def _inherit(inherited: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The table of a stage on top of the one that it is like."""
    merged = {**inherited, **{key: value for key, value in own.items() if key != "like"}}
    for key in ("model", "train"):
        merged_part = _merge_tables(inherited.get(key), own.get(key))
        if merged_part is not None:
            merged[key] = merged_part
    if isinstance(inherited.get("views"), Mapping) and isinstance(own.get("views"), Mapping):
        merged["views"] = {
            view: _merge_tables(inherited["views"].get(view, {}), settings) or settings
            for view, settings in own["views"].items()
        }
    return merged


def _merge_tables(inherited: Any, own: Any) -> dict[str, Any] | None:
    """Return both tables as one, or None if one of them is not a table."""
    if isinstance(inherited, Mapping) and isinstance(own, Mapping):
        return {**inherited, **own}
    return None


def as_table(value: Any) -> Any:
    """Return settings as plain tables and lists, without fields that are None: TOML has no null.

    Parameters
    ----------
    value : Any
        Settings, or a value in them.

    Returns
    -------
    Any
        A dict for settings and mappings, a list for lists and tuples, any other value itself.

    Examples
    --------
    >>> as_table(TermSettings(loss="kd", weight=0.9, settings={"temperature": 2.0}))
    {'loss': 'kd', 'weight': 0.9, 'view': 'plain', 'temperature': 2.0}
    """
    if isinstance(value, TermSettings):
        return {"loss": value.loss, "weight": value.weight, "view": value.view, **value.settings}
    if isinstance(value, BaseModel):
        return {name: as_table(part) for name, part in value if part is not None}
    if isinstance(value, Mapping):
        return {str(key): as_table(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [as_table(part) for part in value]
    return value


def to_toml(recipe: Recipe) -> str:
    """Return a recipe with all its fields as TOML, as `load_recipe` reads it.

    Parameters
    ----------
    recipe : Recipe
        The recipe.

    Returns
    -------
    str
    """
    import tomli_w

    return tomli_w.dumps(as_table(recipe))


def only_stages(recipe: Recipe, names: Sequence[str]) -> Recipe:
    """Return the recipe with these stages and those they depend on.

    Parameters
    ----------
    recipe : Recipe
        The recipe; it stays as it is.
    names : sequence of str
        Names of stages.

    Returns
    -------
    Recipe
        Its stages are in the order of the recipe.

    Raises
    ------
    InputError
        If a stage does not exist.

    Examples
    --------
    >>> stages = {"a": {"model": {"name": "linear"}}, "b": {"model": {"name": "linear"}}}
    >>> list(only_stages(parse_recipe({"data": {"train": "t.csv"}, "stages": stages}), ["b"]).stages)
    ['b']
    """
    unknown = [name for name in names if name not in recipe.stages]
    if unknown:
        close = get_close_matches(unknown[0], recipe.stages, n=3, cutoff=0.4) or list(recipe.stages)
        raise InputError(f"there is no stage {unknown[0]!r}", remedy=f"did you mean {', '.join(close)}?")
    needed = list(names)
    for name in needed:  # grows while it is iterated over
        needed += [other for other in dependencies(recipe.stages[name]) if other not in needed]
    return recipe.replace(stages={name: stage for name, stage in recipe.stages.items() if name in needed})


def apply_change(table: dict[str, Any], change: str) -> None:
    """Apply a change such as ``stages.student.train.epochs=5`` to a table.

    Parameters
    ----------
    table : dict
        The table of a TOML file; it is changed in place, and tables that are missing on the way are added.
    change : str
        ``key.path=value``; the value is TOML, or text where it is not valid TOML. Lists are entered by number, from 0.

    Examples
    --------
    >>> table = {"terms": [{"weight": 1.0}]}
    >>> apply_change(table, "terms.0.weight=0.5")
    >>> table
    {'terms': [{'weight': 0.5}]}
    """
    path, equals, text = change.partition("=")
    if not equals or not path.strip():
        raise InputError(f"--set {change!r}: expected key=value", remedy="write it as stages.student.train.epochs=5")
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except (ValueError, RecursionError):  # ValueError: not TOML, or a number with too many digits
        value = text
    try:
        set_value(table, path.strip(), value)
    except InputError as error:
        error.problem = f"--set {change!r}: {error.problem}"
        raise


def set_value(table: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a path such as ``terms.0.weight`` in a table; tables that are missing on the way are added.

    Parameters
    ----------
    table : dict
        The table; it is changed in place.
    path : str
        Keys, joined by dots; lists are entered by number, from 0.
    value : Any
        The new value.

    Raises
    ------
    InputError
        If the path leads through a value that is not a table, or to an entry that a list does not have.

    Examples
    --------
    >>> table = {"terms": [{"weight": 1.0}]}
    >>> set_value(table, "terms.0.weight", 0.5)
    >>> table
    {'terms': [{'weight': 0.5}]}
    """
    *parents, last = path.split(".")
    place: Any = table
    for key in parents:
        place = place[_list_index(place, key)] if isinstance(place, list) else place.setdefault(key, {})
        if not isinstance(place, (dict, list)):
            raise InputError(f"{key} is not a table, so {path} is no setting", remedy="name a key of a table")
    if isinstance(place, list):
        place[_list_index(place, last)] = value
    else:
        place[last] = value


def _list_index(entries: list[Any], key: str) -> int:
    if not key.isdecimal() or int(key) >= len(entries):
        raise InputError(f"there is no entry {key!r} in a list of {len(entries)}", remedy="entries are counted from 0")
    return int(key)


def with_values(settings: S, changes: Iterable[tuple[str, Any]]) -> S:
    """Return a copy of settings with values changed at their paths, checked once all of them are changed.

    Parameters
    ----------
    settings : Settings
        A recipe or a part of one.
    changes : iterable of (str, value)
        Paths through fields, lists (by number) and tables, such as ``terms.0.weight``, and their new values.

    Examples
    --------
    >>> from distilcal.config.schema import TrainSettings
    >>> with_values(TrainSettings(), [("lr", 1), ("epochs", 7)]).lr
    1.0
    """
    table = as_table(settings)
    for path, value in changes:
        set_value(table, path, value)
    return parse_settings(type(settings), table)
