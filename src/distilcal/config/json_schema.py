"""JSON Schema of recipes, for editors that complete and check TOML files."""

from __future__ import annotations

from typing import Any

from distilcal.config.schema import Recipe

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def recipe_json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a recipe, with titles, descriptions, bounds and choices.

    Rules that involve more than one setting are not in it; they are checked when the recipe is loaded.

    Examples
    --------
    >>> recipe_json_schema()["properties"]["seed"]["minimum"]
    0
    """
    return {"$schema": DIALECT, **Recipe.model_json_schema(), "title": "distilcal recipe"}
