"""JSON Schema of studies, for editors that complete and check TOML files."""

from __future__ import annotations

from typing import Any

from distilcal.config.json_schema import DIALECT
from distilcal.config.schema import Recipe
from distilcal.study.schema import SCALED, Study

DATA = {"$ref": "#/$defs/DataSettings"}
STAGES = {"type": "object", "additionalProperties": {"$ref": "#/$defs/StageSettings"}}


def study_json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the TOML file of a study.

    It differs from the model in that a file has all scales, and that its data and stages are those of a recipe.

    Examples
    --------
    >>> sorted(study_json_schema()["properties"]["scales"]["additionalProperties"]["properties"])
    ['data', 'grids', 'note', 'seeds', 'stages', 'tasks']
    """
    schema = Study.model_json_schema()
    schema["$defs"] |= Recipe.model_json_schema()["$defs"]
    # Read-only fields are filled in when a study is loaded.
    properties = {name: entry for name, entry in schema["properties"].items() if not entry.get("readOnly")}
    for part in (properties, schema["$defs"]["TaskSettings"]["properties"]):
        part["data"] = {**DATA, "description": part["data"]["description"]}
        part["stages"] = {**STAGES, "description": part["stages"]["description"]}
    properties["scales"] = {
        "type": "object",
        "title": "Scales",
        "description": "Scales by name, each with its changes to the study.",
        "additionalProperties": {
            "type": "object",
            "additionalProperties": False,
            "properties": {name: properties[name] for name in SCALED},
        },
    }
    return {"$schema": DIALECT, **schema, "properties": properties, "title": "distilcal study"}
