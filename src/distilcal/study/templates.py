"""What a study's file lists once, crossed: networks, pairs of them, lists of names, values and places.

A study's file is written like the setup of a paper. These tables are not settings; they are used up before settings are parsed:

``[each]``
    Lists. ``{name}`` in the name of a table, in a row or in a pair stands for every entry of the list ``name``:
    ``[stages."{network}-ls"]`` is a stage for each network. An entry may have attributes: ``{network.title}``. Lists that are
    declared first turn slowest, and neighbours that begin with the same list are repeated together. A text that is nothing but
    one name in braces becomes the value itself: a number, a list, a table.
``[pairs]``
    Lists of pairs "teacher/student", with the attributes ``teacher`` and ``student``.
``[networks.NAME]``
    Settings of a stage that belong to a network. A stage takes them with ``network = "NAME"``, or with ``"{teacher}"`` and
    ``"{student}"`` those of the task's ``pair``. A task may change them under ``networks``.
``[values]``
    Values that are used more than once: ``"{values.lr}"``.
``[places]``
    Lists of rows, columns or places that tables, claims and figures name.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from distilcal.errors import InputError

SECTIONS = ("each", "pairs", "networks", "values", "places")
ROLES = ("teacher", "student")  # of a pair; a task's texts and a stage's network may name them
DESCRIPTIVE = ("title",)  # attributes of a network that are not settings of a stage
PLACEHOLDER = re.compile(r"\{([A-Za-z_][\w-]*)((?:\.[\w-]+)*)\}")
Bindings = Mapping[str, Mapping[str, Any]]  # list → attributes of the entry that stands for it


def expand_templates(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Write out a study's file at a scale: everything crossed, the scale's changes on top.

    Parameters
    ----------
    table : mapping
        The study's file without its scales.
    changes : mapping
        What the scale changes.

    Returns
    -------
    dict
        The study without any of the tables above.

    Raises
    ------
    InputError
        If a list, an attribute, a network or a list of places is unknown; the message names the text and where it is.

    Examples
    --------
    >>> table = {
    ...     "each": {"network": {"bert": "BERT", "roberta": "RoBERTa"}},
    ...     "methods": {"{network.title} + LS": {"stage": "{network}-ls"}},
    ... }
    >>> expand_templates(table, {})
    {'methods': {'BERT + LS': {'stage': 'bert-ls'}, 'RoBERTa + LS': {'stage': 'roberta-ls'}}}
    """
    listed = merge_tables({name: table.get(name, {}) for name in SECTIONS}, _only(changes, SECTIONS))
    for name in SECTIONS:
        _as_table(listed[name], name)
    crossing = _Crossing(_parse_lists(listed["pairs"], listed["each"]), listed["values"])
    base = crossing.cross_table(_without(table, SECTIONS), {}, "")
    changed = crossing.cross_table(_without(changes, SECTIONS), {}, "")
    for kind in ("grids", "tasks"):  # a misspelt name would add a new one, and the change would be lost
        known = _as_table(base.get(kind, {}), kind)
        for name in _as_table(changed.get(kind, {}), f"{kind} of the scale"):
            check_known(name, known, f"the scale changes {kind}.{name}: there is no")
    study = merge_tables(base, changed)
    networks = crossing.cross_table(listed["networks"], {}, "networks")
    _apply_networks(study, networks)
    places = crossing.cross_table(listed["places"], {}, "places")
    _apply_places(study, places)
    return study


def merge_tables(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the base with the changes on top, table by table.

    A list is replaced, unless the change is a table whose keys are numbers: it changes those entries, counted from 0.

    Parameters
    ----------
    base, changes : mapping
        Plain tables, as TOML has them; neither is changed.

    Returns
    -------
    dict

    Raises
    ------
    InputError
        If a change is for an entry that a list does not have.

    Examples
    --------
    >>> merge_tables({"a": {"x": 1, "y": [{"w": 1}, {"w": 2}]}}, {"a": {"x": 3, "y": {"1": {"w": 5}}}})
    {'a': {'x': 3, 'y': [{'w': 1}, {'w': 5}]}}
    """
    result = copy.deepcopy(dict(base))
    for key, value in changes.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            result[key] = merge_tables(old, value)
        elif isinstance(old, list) and isinstance(value, Mapping):
            result[key] = _merge_entries(old, value, key)
        else:
            result[key] = copy.deepcopy(value)
    return result


def _merge_entries(entries: list[Any], changes: Mapping[str, Any], name: str) -> list[Any]:
    """A list with some of its tables changed, by their positions."""
    result = list(entries)
    for position, change in changes.items():
        if not position.isdecimal() or int(position) >= len(result):
            raise InputError(
                f"there is no entry {position!r} in {name}, a list of {len(result)}", remedy="count entries from 0"
            )
        result[int(position)] = merge_tables(result[int(position)], change)
    return result


def closest(name: str, known: Iterable[str]) -> str:
    """Return the known names that resemble this one, or all of them, for an error message.

    Parameters
    ----------
    name : str
        A name that is not known.
    known : iterable of str
        Those that are.

    Returns
    -------
    str
        At most four names that resemble it, joined by commas.

    Examples
    --------
    >>> closest("studnet", ["teacher", "student"])
    'student'
    """
    names = list(known)
    return ", ".join(get_close_matches(name, names, n=4, cutoff=0.4) or names)


def check_known(name: str, known: Iterable[str], problem: str) -> None:
    """Raise an ``InputError`` with the closest names if a name is not among the known ones.

    Parameters
    ----------
    name : str
        The name.
    known : iterable of str
        The names that exist.
    problem : str
        Start of the message; the name follows it.

    Raises
    ------
    InputError
        If the name is not known.

    Examples
    --------
    >>> check_known("studnet", ["teacher", "student"], "there is no stage")
    Traceback (most recent call last):
    ...
    distilcal.errors.InputError: there is no stage 'studnet'; did you mean student?
    """
    names = list(known)
    if name not in names:
        raise InputError(f"{problem} {name!r}", remedy=f"did you mean {closest(name, names)}?")


def _as_table(value: Any, where: str) -> Mapping[str, Any]:
    """Return the value, which must be a table."""
    if not isinstance(value, Mapping):
        raise InputError(f"{where} = {value!r}, expected a table", remedy="write [table] or { key = value }")
    return value


def _as_list(value: Any, where: str) -> Sequence[Any]:
    """Return the value, which must be a list."""
    if not isinstance(value, list):
        raise InputError(f"{where} = {value!r}, expected a list", remedy="write [[list]] or [ … ]")
    return value


def _only(table: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key in keys}


def _without(table: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in keys}


# ---- lists and crossing ------------------------------------------------------------------------------------------------


def _parse_lists(pairs: Mapping[str, Any], each: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """List → attributes of its entries; "" is the entry itself, ``title`` how it is called."""
    lists: dict[str, list[dict[str, Any]]] = {}
    for name, entries in pairs.items():
        lists[name] = []
        for entry in entries:
            teacher, slash, student = str(entry).partition("/")
            if not slash:
                raise InputError(f"pairs.{name}: {entry!r} is not a pair", remedy='write "teacher/student"')
            lists[name].append({"": entry, "title": entry, "teacher": teacher, "student": student})
    for name, entries in each.items():
        if name in lists or name in ROLES or name == "values":
            raise InputError(f"each.{name}: the name {name!r} is taken", remedy="choose another name")
        if isinstance(entries, Mapping):
            lists[name] = [_attributes(entry, attributes) for entry, attributes in entries.items()]
        elif isinstance(entries, list):
            lists[name] = [{"": entry, "title": _as_text(entry)} for entry in entries]
        else:
            raise InputError(f"each.{name} = {entries!r}, expected a list or a table", remedy=f"write {name} = [...]")
    return lists


def _attributes(entry: str, attributes: Any) -> dict[str, Any]:
    if isinstance(attributes, str):
        attributes = {"title": attributes}
    return {"": entry, "title": entry, **attributes}


def _as_text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class _Crossing:
    """Repeats tables and entries of lists for every entry of the lists that they name."""

    lists: Mapping[str, list[dict[str, Any]]]  # in the order in which they nest
    values: Mapping[str, Any]

    def cross_table(self, table: Mapping[str, Any], bound: Bindings, path: str) -> dict[str, Any]:
        """Write out the keys of a table that name lists. A key that comes twice is merged."""
        result: dict[str, Any] = {}
        items = [([key], (key, value)) for key, value in table.items()]
        for (key, value), bindings in self._repetitions(items, bound, path):
            name = str(self._fill(key, bindings, path))
            filled = self.cross(value, bindings, f"{path}.{name}".lstrip("."))
            if isinstance(result.get(name), Mapping) and isinstance(filled, Mapping):
                filled = merge_tables(result[name], filled)
            result[name] = filled
        return result

    def cross(self, value: Any, bound: Bindings, path: str) -> Any:
        """Write out a value: a table, a list, or a text."""
        if isinstance(value, Mapping):
            return self.cross_table(value, bound, path)
        if isinstance(value, list):
            items = [(list(_direct_texts(entry)), entry) for entry in value]
            return [self.cross(entry, bindings, path) for entry, bindings in self._repetitions(items, bound, path)]
        if isinstance(value, str):
            return self._fill(value, bound, path)
        return value

    def _repetitions(
        self, items: Sequence[tuple[list[str], Any]], bound: Bindings, path: str
    ) -> Iterator[tuple[Any, Bindings]]:
        """Every item with its bindings; neighbours whose outermost list is the same are repeated together."""
        start = 0
        while start < len(items):
            free = self._free_lists(items[start][0], bound, path)
            if not free:
                yield items[start][1], bound
                start += 1
                continue
            end = start + 1
            while end < len(items) and self._free_lists(items[end][0], bound, path)[:1] == free[:1]:
                end += 1
            for entry in self.lists[free[0]]:
                bindings = {**bound, free[0]: entry}
                for item in items[start:end]:
                    yield from self._repetitions([item], bindings, path)
            start = end

    def _free_lists(self, texts: Iterable[str], bound: Bindings, path: str) -> list[str]:
        """The lists that texts name and that are not bound yet, the outermost first."""
        named = {match[1] for text in texts for match in PLACEHOLDER.finditer(text)} - {"values", *ROLES}
        for name in named:
            check_known(name, self.lists, f"{path or 'the study'}: there is no list")
        return [name for name in self.lists if name in named and name not in bound]

    def _fill(self, text: str, bound: Bindings, path: str) -> Any:
        """A text with the names in braces replaced; the value itself if the text is nothing but one of them."""
        whole = PLACEHOLDER.fullmatch(text)
        if whole is not None:
            return copy.deepcopy(self._lookup(whole, bound, path))
        return PLACEHOLDER.sub(lambda match: _as_text(self._lookup(match, bound, path)), text)

    def _lookup(self, match: re.Match[str], bound: Bindings, path: str) -> Any:
        name, attribute = match[1], match[2].removeprefix(".")
        if name in ROLES:
            return match[0]  # of the task's pair, which is not known here
        if name == "values":
            check_known(attribute, self.values, f"{path}: there is no value")
            return self.values[attribute]
        if name not in bound:
            check_known(name, self.lists, f"{path}: there is no list")
            raise InputError(f"{path}: {match[0]} is not bound", remedy=f"write {{{name}}} in the name of its table")
        if attribute not in bound[name]:
            known = [key for key in bound[name] if key]
            check_known(attribute, known, f"{path}: {bound[name]['']!r} of {name} has no attribute")
        return bound[name][attribute]


def _direct_texts(entry: Any) -> Iterator[str]:
    """The texts of a list's entry by which it is repeated: itself, or those right inside it."""
    values = [entry]
    if isinstance(entry, Mapping):
        values = list(entry.values())
    elif isinstance(entry, list):
        values = entry
    for value in values:
        if isinstance(value, str):
            yield value


# ---- networks ----------------------------------------------------------------------------------------------------------


def _apply_networks(study: dict[str, Any], networks: Mapping[str, Any]) -> None:
    """Give every stage the settings of its network, and every task those of its pair."""
    by_role: dict[str, str] = {}  # stage → role in the task's pair
    by_name: dict[str, str] = {}  # stage → network that is the same in every task
    for name, stage in _as_table(study.get("stages", {}), "stages").items():
        if not isinstance(stage, dict) or "network" not in stage:
            continue
        network = stage.pop("network")
        if not isinstance(network, str):
            raise InputError(f"stages.{name}.network = {network!r}, expected a name", remedy="give the name of a network")
        role = network.strip("{}")
        if role in ROLES:
            by_role[name] = role
            continue
        check_known(network, networks, f"stages.{name}: there is no network")
        by_name[name] = network
        settings = _as_table(networks[network], f"networks.{network}")
        study["stages"][name] = merge_tables(_without(settings, DESCRIPTIVE), stage)
    for name, task in _as_table(study.get("tasks", {}), "tasks").items():
        if isinstance(task, Mapping):
            changed = _with_changed_networks(name, task, networks, by_name)
            study["tasks"][name] = _with_pair(name, changed, networks, by_role)


def _with_changed_networks(
    name: str, task: Mapping[str, Any], networks: Mapping[str, Any], by_name: Mapping[str, str]
) -> Mapping[str, Any]:
    """A task with what it changes in networks in the stages that name these."""
    changes = _as_table(task.get("networks", {}), f"tasks.{name}.networks")
    for network, settings in changes.items():
        check_known(network, networks, f"tasks.{name}: there is no network")
        _as_table(settings, f"tasks.{name}.networks.{network}")
    stages = dict(_as_table(task.get("stages", {}), f"tasks.{name}.stages"))
    for stage, network in by_name.items():
        if network in changes:
            own = _as_table(stages.get(stage, {}), f"tasks.{name}.stages.{stage}")
            stages[stage] = merge_tables(_without(changes[network], DESCRIPTIVE), own)
    return {**task, "stages": stages} if stages else task


def _with_pair(name: str, task: Mapping[str, Any], networks: Mapping[str, Any], by_role: Mapping[str, str]) -> dict[str, Any]:
    """A task with the settings of its pair's networks in its stages, and their titles in its texts."""
    pair = task.get("pair")
    result = _without(task, ("pair", "networks"))
    if pair is None:
        if by_role:
            raise InputError(f"tasks.{name} has no pair of networks", remedy='write pair = "teacher/student"')
        return result
    if not isinstance(pair, str) or pair.count("/") != 1:
        raise InputError(f"tasks.{name}.pair = {pair!r}, expected two networks", remedy='write pair = "teacher/student"')
    own = merge_tables(networks, task.get("networks", {}))
    names = dict(zip(ROLES, pair.split("/"), strict=True))
    stages = dict(result.get("stages", {}))
    for network in names.values():
        check_known(network, own, f"tasks.{name}: there is no network")
        _as_table(own[network], f"networks.{network}")
    for stage, role in by_role.items():
        changes = _as_table(stages.get(stage, {}), f"tasks.{name}.stages.{stage}")
        stages[stage] = merge_tables(_without(own[names[role]], DESCRIPTIVE), changes)
    bound = {role: {"": network, "title": network, **own[network]} for role, network in names.items()}
    texts = _as_table(result.get("here", {}), f"tasks.{name}.here")
    here = {key: _fill_roles(text, bound) if isinstance(text, str) else text for key, text in texts.items()}
    return {**result, "stages": stages, "here": here}


def _fill_roles(text: str, bound: Bindings) -> str:
    return PLACEHOLDER.sub(lambda match: str(bound[match[1]][match[2].removeprefix(".")]), text)


# ---- places ------------------------------------------------------------------------------------------------------------


def _apply_places(study: dict[str, Any], places: Mapping[str, Any]) -> None:
    """Replace the names of lists of places in tables, claims and figures by their entries."""
    for kind, keys in (("tables", ("rows", "columns")), ("claims", ("places",)), ("figures", ("places",))):
        for entry in _as_list(study.get(kind, []), kind):
            for key in keys:
                if isinstance(entry, dict) and key in entry:
                    where = f"{kind} {entry.get('name') or entry.get('text', '')!r}"
                    entry[key] = list(_spliced(entry[key], places, where))


def _spliced(entries: Any, places: Mapping[str, Any], where: str) -> Iterator[Any]:
    """Places, with names of lists replaced by the entries of the list; ``{ places = "x", … }`` adds to each of them."""
    for entry in [entries] if isinstance(entries, str) else _as_list(entries, where):
        if isinstance(entry, str):
            check_known(entry, places, f"{where}: there is no list of places")
            yield from _spliced(places[entry], places, where)
        elif isinstance(entry, Mapping) and "places" in entry:
            for place in _spliced(entry["places"], places, where):
                yield {**_as_table(place, f"{where}: a place"), **_without(entry, ("places",))}
        elif isinstance(entry, Mapping) and entry.get("against") and entry["against"] == entry.get("method"):
            yield _without(entry, ("against",))  # a row is not compared with itself
        else:
            yield entry
