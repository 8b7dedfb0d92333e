"""JSON Schema of studies, for editors that complete and check TOML files."""

from __future__ import annotations

from typing import Any

from distilcal.config.json_schema import DIALECT
from distilcal.config.schema import Recipe
from distilcal.study.schema import SCALED, Study

DATA = {"$ref": "#/$defs/DataSettings"}
STAGES = {"type": "object", "additionalProperties": {"$ref": "#/$defs/StageSettings"}}
PLACEHOLDER = {"type": "string", "pattern": r"^\{[^{}]+\}$"}  # a value that comes from a list or from [values]
LIST_CHANGES = {"type": "object", "patternProperties": {"^[0-9]+$": {"type": "object"}}, "additionalProperties": False}
NETWORK = {  # the settings of a stage that belong to a network; the stage checks them
    "type": "object",
    "properties": {"title": {"type": "string", "description": "How the network is called in texts."}},
}
NETWORKS = {
    "type": "object",
    "description": "Networks by name, each with the settings of a stage that belong to it.",
    "additionalProperties": NETWORK,
}
TEMPLATES = {
    "each": {
        "type": "object",
        "description": "Lists: {name} stands for every entry of the list of that name.",
        "additionalProperties": {"type": ["array", "object"]},
    },
    "pairs": {
        "type": "object",
        "description": "Lists of pairs of networks, teacher/student.",
        "additionalProperties": {"type": "array", "items": {"type": "string", "pattern": "/"}},
    },
    "networks": NETWORKS,
    "values": {"type": "object", "description": "Values that are used more than once: {values.NAME}."},
    "places": {
        "type": "object",
        "description": "Lists of rows, columns or places, by the names that tables, claims and figures use.",
        "additionalProperties": {"type": "array", "items": {"type": ["object", "string"]}},
    },
}
LIKE = {"type": "string", "description": "Another scale, whose changes come first."}
NAMED_PLACES = {"TableSettings": ("rows", "columns"), "ClaimSettings": ("places",), "FigureSettings": ("places",)}


def study_json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the TOML file of a study.

    It differs from the model in that a file has all scales, that its data and stages are those of a recipe, and that it lists
    once what is crossed (`distilcal.study.templates`).

    Examples
    --------
    >>> sorted(study_json_schema()["properties"]["scales"]["additionalProperties"]["properties"])
    ['data', 'each', 'grids', 'leave_out', 'like', 'networks', 'note', 'places', 'search', 'seeds', 'stages', 'tasks', 'values']
    """
    schema = Study.model_json_schema()
    definitions = schema["$defs"]
    definitions |= Recipe.model_json_schema()["$defs"]
    # Read-only fields are filled in when a study is loaded.
    properties = {name: entry for name, entry in schema["properties"].items() if not entry.get("readOnly")}
    for part in (properties, definitions["TaskSettings"]["properties"]):
        part["data"] = {**DATA, "description": part["data"]["description"]}
        part["stages"] = {**STAGES, "description": part["stages"]["description"]}
    for definition in definitions.values():
        for name, entry in definition.get("properties", {}).items():
            definition["properties"][name] = _with_placeholder(entry)
    stages_of_task = properties["chosen"]["additionalProperties"]
    stages_of_task["additionalProperties"] = {"anyOf": [stages_of_task["additionalProperties"], PLACEHOLDER]}
    _add_templates(definitions)
    properties |= TEMPLATES
    properties["scales"] = {
        "type": "object",
        "title": "Scales",
        "description": "Scales by name, each with its changes to the study.",
        "additionalProperties": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"like": LIKE, **{name: properties[name] for name in SCALED}},
        },
    }
    return {"$schema": DIALECT, **schema, "properties": properties, "title": "distilcal study"}


def _with_placeholder(entry: dict[str, Any]) -> dict[str, Any]:
    """A setting whose value may be a placeholder; entries of lists and tables may be, too, or be changed by their positions."""
    entry = dict(entry)
    description = {"description": entry.pop("description")} if "description" in entry else {}
    choices = [entry, PLACEHOLDER]
    if entry.get("type") == "array":
        items = entry.get("items", {})
        entry["items"] = {"anyOf": [items, PLACEHOLDER]} if items else {}
        choices.append(LIST_CHANGES)
    elif isinstance(entry.get("additionalProperties"), dict):
        entry["additionalProperties"] = {"anyOf": [entry["additionalProperties"], PLACEHOLDER]}
    return {"anyOf": choices, **description}


def _add_templates(definitions: dict[str, Any]) -> None:
    """What only the file has: the network of a stage, the pair and networks of a task, places by name."""
    definitions["StageSettings"]["properties"]["network"] = {
        "type": "string",
        "description": "Name of a network, or {teacher} or {student} of the task's pair.",
    }
    task = definitions["TaskSettings"]["properties"]
    task["pair"] = {"type": "string", "description": "The task's networks, teacher/student."}
    task["networks"] = {**NETWORKS, "description": "Changes to the study's networks."}
    for name, keys in NAMED_PLACES.items():
        for key in keys:
            entry = definitions[name]["properties"][key]
            listed = entry["anyOf"][0]
            named_or_more = {"type": "object", "properties": {"places": {"type": "string"}}, "required": ["places"]}
            listed["items"]["anyOf"] += [{"type": "string"}, named_or_more]
            entry["anyOf"].append({"type": "string"})
